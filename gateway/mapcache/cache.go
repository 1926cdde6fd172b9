package mapcache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Settings are numbers a user sets.
type Settings struct {
	// BytesMax bounds the files, all together. Default 1 GiB. Smaller: some tables are missing after a start without the
	// store.
	BytesMax int64
}

// Cache is a directory of cache files. One process at a time; all methods are safe for concurrent use.
type Cache struct {
	// Constant after Open.
	dir      string
	settings Settings

	mu struct {
		sync.Mutex // held while a file is written: one at a time
		sizes      map[string]int64
	}
}

var _ tables.Cache = (*Cache)(nil)

// Open makes the directory if need be and removes half-written files. Errors are Unavailable.
func Open(dir string, s Settings) (*Cache, error) {
	if s.BytesMax == 0 {
		s.BytesMax = 1 << 30
	}
	c := &Cache{dir: dir, settings: s}
	c.mu.sizes = map[string]int64{}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "directory for cached maps")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "directory for cached maps")
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, suffixTemp) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return nil, fault.Wrap(err, fault.Unavailable, "remove a file left half written")
			}
			continue
		}
		if info, err := e.Info(); err == nil && strings.HasSuffix(name, suffix) {
			c.mu.sizes[name] = info.Size()
		}
	}
	return c, nil
}

// Check reads one file of the directory and reports whether it is intact. It changes nothing. Errors are Corrupt and
// Unavailable.
func Check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "cache file")
	}
	if info.Size() > fileMax {
		return fault.Errorf(fault.Corrupt, "cache file %s is over %d bytes", path, int64(fileMax))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "cache file")
	}
	f, err := decode(b)
	if err == nil {
		err = f.named(filepath.Base(path))
	}
	return fault.Annotate(err, "%s", path)
}

// Load implements tables.Cache. Unreadable files are left out; the error names them beside the rest.
func (c *Cache) Load() (found []tables.Cached, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for name := range c.mu.sizes {
		if !strings.HasPrefix(name, "t-") {
			continue
		}
		f, rerr := c.readLocked(name)
		if rerr == nil && (f.kind != kindTable || len(f.fields) != 3) {
			rerr = fault.Errorf(fault.Corrupt, "cache file %s is not of a table", name)
		}
		if rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		found = append(found, tables.Cached{Table: string(f.fields[0]), Row: f.fields[1], Map: f.fields[2], At: f.asOf(now)})
	}
	return found, err
}

// Save implements tables.Cache. Errors are TooLarge (beyond BytesMax) and Unavailable; the older file stays then.
func (c *Cache) Save(t tables.Cached) error {
	return c.write(fileName("t-", t.Table), &file{kindTable, t.At, [][]byte{[]byte(t.Table), t.Row, t.Map}})
}

// Forget implements tables.Cache.
func (c *Cache) Forget(table string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := fileName("t-", table)
	if err := os.Remove(filepath.Join(c.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, fault.Unavailable, "forget a cached map")
	}
	delete(c.mu.sizes, name)
	return nil
}

// Bytes is the size of all files together.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytesLocked()
}

func (c *Cache) bytesLocked() (n int64) {
	for _, size := range c.mu.sizes {
		n += size
	}
	return n
}

func (c *Cache) readLocked(name string) (*file, error) {
	path := filepath.Join(c.dir, name)
	if c.mu.sizes[name] > fileMax {
		return nil, fault.Errorf(fault.Corrupt, "cache file %s is over %d bytes", path, int64(fileMax))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "cache file")
	}
	f, err := decode(b)
	if err == nil {
		err = f.named(name)
	}
	return f, fault.Annotate(err, "%s", path)
}

// write puts a file in its place: fsynced, renamed, the directory fsynced.
func (c *Cache) write(name string, f *file) error {
	b := f.encode()
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.bytesLocked() - c.mu.sizes[name] + int64(len(b)); all > c.settings.BytesMax || len(b) > fileMax {
		return fault.Errorf(fault.TooLarge, "cached maps would take %d bytes, at most %d are allowed", all, c.settings.BytesMax)
	}
	path := filepath.Join(c.dir, name)
	temp, err := writeSynced(c.dir, b)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "cache file")
	}
	if err := os.Rename(temp, path); err != nil {
		return fault.Wrap(err, fault.Unavailable, "cache file")
	}
	c.mu.sizes[name] = int64(len(b))
	return fault.Wrap(syncDir(c.dir), fault.Unavailable, "directory for cached maps")
}

// writeSynced writes a file of a new name: processes that share the directory by mistake do not mix their bytes.
func writeSynced(dir string, b []byte) (path string, err error) {
	f, err := os.CreateTemp(dir, "*"+suffixTemp)
	if err != nil {
		return "", err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
