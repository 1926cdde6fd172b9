package brick

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/database"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// StoreID distinguishes one store directory from another, and from itself after it was wiped (C72).
type StoreID [16]byte

// String prints 32 hexadecimal digits.
func (id StoreID) String() string { return hex.EncodeToString(id[:]) }

const (
	storeFile = "STORE"
	// LockFile is held, in both directories of a store, by the process that uses it.
	LockFile = "LOCK"
	// RestoringFile is in a data directory for as long as a restore fills it.
	RestoringFile = "RESTORING"
	storeForm     = "spillway store 1\nuuid %s\n"
	// rebuiltForm is of a store with a rebuilt catalogue: it is another one to its peers, and its log is the same.
	rebuiltForm = "spillway store 2\nuuid %s\nlog %s\n"

	catalogueDir = "catalogue"
	segmentsDir  = "segments"
)

// identity holds the ids of a store. They are the same until the store is rebuilt.
type identity struct {
	store StoreID // to its peers
	log   StoreID // in the log, mirror and witness
}

// lockDir locks a directory for this process. Errors are Unavailable.
func lockDir(fs vfs.FS, dir string) (io.Closer, error) {
	file := fs.PathJoin(dir, LockFile)
	c, err := fs.Lock(file)
	if err != nil {
		return nil, database.LockError(err, file, fmt.Sprintf("%s is in use: another process holds %s; stop it, or give this one a directory of its own", dir, file),
			fmt.Sprintf("start it as the user who owns %s, give that directory to its user, or name another by --data-dir (storage.log_dir, if that is set)", dir))
	}
	return c, nil
}

// readIdentities reads the identities in both directories. The log's own names the log only.
func readIdentities(fs vfs.FS, dataDir, logDir string) (id identity, found bool, err error) {
	id, found, err = readIdentity(fs, dataDir)
	if err != nil {
		return id, found, err
	}
	log, logFound, err := readIdentity(fs, logDir)
	switch {
	case err != nil:
		return id, found, err
	case logFound && !found:
		return id, found, fault.Errorf(fault.Corrupt, "%s holds the log of store %s, but %s has no file %s; is data_dir right? If it is, the file was lost: restore it from a backup, or copy that of the log directory", logDir, log.log, dataDir, storeFile)
	case logFound && log.log != id.log:
		return id, found, fault.Errorf(fault.Corrupt, "%s holds the log of store %s, but %s is store %s; is log_dir right? If it is, one of the two files %s is damaged: restore it from a backup", logDir, log.log, dataDir, id.log, storeFile)
	case found && !logFound:
		err = writeIdentity(fs, logDir, identity{id.log, id.log})
	}
	return id, found, err
}

// Exists reports whether there is a store in a data directory. Errors are Unavailable and Corrupt.
func Exists(fs vfs.FS, dataDir string) (bool, error) {
	_, found, err := readIdentity(fs, dataDir)
	return found, err
}

// identify reads or makes the identity of a store, and makes sure that both directories carry the same one.
func identify(fs vfs.FS, dataDir, logDir string) (identity, error) {
	id, found, err := readIdentities(fs, dataDir, logDir)
	if err != nil || found {
		return id, err
	}
	// The data directory first: a crash between leaves one without the log's, which readIdentities writes. The other order would look like a
	// log whose data is gone, and be refused.
	_, _ = rand.Read(id.store[:]) // never fails
	id.log = id.store
	if err := writeIdentity(fs, dataDir, id); err != nil {
		return id, err
	}
	return id, writeIdentity(fs, logDir, id)
}

func readIdentity(fs vfs.FS, dir string) (id identity, found bool, err error) {
	f, err := fs.Open(fs.PathJoin(dir, storeFile))
	if oserror.IsNotExist(err) {
		return id, false, nil
	}
	if err != nil {
		return id, false, fault.Wrap(err, fault.Unavailable, "open %s", fs.PathJoin(dir, storeFile))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return id, false, fault.Wrap(err, fault.Unavailable, "read %s", fs.PathJoin(dir, storeFile))
	}
	if id, ok := parseIdentity(string(b)); ok {
		return id, true, nil
	}
	return id, false, fault.Errorf(fault.Corrupt,
		"%s is damaged: it should hold the store's identity, two lines of 55 bytes in all, and holds %.80q; restore it: the file %s of the log directory and that of the data directory hold the same, so that a copy of the other one is right",
		fs.PathJoin(dir, storeFile), b, storeFile)
}

func parseIdentity(text string) (id identity, ok bool) {
	var store, log string
	if _, err := fmt.Sscanf(text, strings.TrimSpace(storeForm), &store); err == nil && parseStoreID(store, &id.store) {
		id.log = id.store
		return id, true
	}
	_, err := fmt.Sscanf(text, strings.TrimSpace(rebuiltForm), &store, &log)
	return id, err == nil && parseStoreID(store, &id.store) && parseStoreID(log, &id.log)
}

func parseStoreID(text string, id *StoreID) bool {
	if len(text) != 32 {
		return false
	}
	n, err := hex.Decode(id[:], []byte(text))
	return err == nil && n == len(id)
}

func (id identity) text() []byte {
	if id.store == id.log {
		return fmt.Appendf(nil, storeForm, id.store)
	}
	return fmt.Appendf(nil, rebuiltForm, id.store, id.log)
}

// writeIdentity writes beside and renames, so that a crash leaves no partial file.
func writeIdentity(fs vfs.FS, dir string, id identity) error {
	path := fs.PathJoin(dir, storeFile)
	f, err := fs.Create(path+".tmp", writeCategory)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "create %s", path)
	}
	if _, err = f.Write(id.text()); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fs.Rename(path+".tmp", path)
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "write %s", path)
	}
	return SyncDir(fs, dir)
}

// SyncDir makes a directory's entries durable. Errors are Unavailable.
func SyncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err == nil {
		err = d.Sync()
		if cerr := d.Close(); err == nil {
			err = cerr
		}
	}
	return fault.Wrap(err, fault.Unavailable, "sync directory %s", dir)
}

// MakeDir makes a directory and the missing ones above it, so that it is there after a power cut. A directory that is there already may be
// one whose name was never fsynced, because the process ended before it, so its name is fsynced all the same. After an fsync that failed that would prove
// nothing: a new one is removed then, and the next call makes it anew.
func MakeDir(fs vfs.FS, dir string) error {
	names, made := []string{dir}, 0 // to be made durable; those at the front did not exist
	for d := fs.PathDir(dir); fs.PathDir(d) != d; d = fs.PathDir(d) {
		if _, err := fs.Stat(d); err == nil {
			break
		}
		names = append(names, d)
	}
	_, missing := fs.Stat(dir)
	if missing != nil {
		made = len(names)
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return fault.Wrap(err, fault.Unavailable, "make directory %s%s", dir, wayOut(err))
	}
	for _, d := range names {
		if fs.PathDir(d) == d {
			continue
		}
		err := SyncDir(fs, fs.PathDir(d))
		if missing == nil && errors.Is(err, os.ErrPermission) {
			continue // the parent is of another user, and so are its fsyncs
		}
		if err != nil {
			for _, d := range names[:made] {
				_ = fs.Remove(d)
			}
			return err
		}
	}
	return nil
}

// wayOut says what to do about a directory that cannot be made; "": that is not known.
func wayOut(err error) string {
	switch {
	case errors.Is(err, os.ErrExist): // the name is there, and its target is not
		return " (it, or a directory above it, is a symbolic link to what is not there: mount the disk that it leads to, or remove the link)"
	case errors.Is(err, syscall.ENOTDIR):
		return " (it, or what should be a directory above it, is a file: name another directory)"
	case errors.Is(err, os.ErrPermission):
		return " (make it as a user who may, and give it to the user of this process, or name another directory)"
	}
	return ""
}

// FS returns the file system of all files of this store.
func (b *Brick) FS() vfs.FS { return b.fs }

// ID is the identity of the store.
func (b *Brick) ID() StoreID { return b.uuid }

// SegmentDir is the directory of a placement's segments: DataDir/segments/<placement>.
func (b *Brick) SegmentDir(p point.PlacementID) string {
	return b.fs.PathJoin(b.set.DataDir, segmentsDir, p.String())
}

// SegmentPath returns the path of a segment: SegmentDir/<epoch>-<seq>.seg.
func (b *Brick) SegmentPath(p point.PlacementID, id point.SegmentID) string {
	return b.fs.PathJoin(b.SegmentDir(p), id.String()+".seg")
}

// MakeSegmentDir makes p's segment directory; it will be there after a crash. Doing it again is fine and cheap. A failed fsync fences the brick.
func (b *Brick) MakeSegmentDir(p point.PlacementID) error {
	dir := b.SegmentDir(p)
	for _, d := range []string{b.fs.PathDir(dir), dir} {
		if _, durable := b.durable.Load(d); durable {
			if _, err := b.fs.Stat(d); err == nil {
				continue
			}
		}
		if err := b.fs.MkdirAll(d, 0o755); err != nil {
			return fault.Wrap(err, fault.Unavailable, "make directory %s", d)
		}
		parent, err := b.fs.OpenDir(b.fs.PathDir(d))
		if err != nil {
			return fault.Wrap(err, fault.Unavailable, "open directory %s", b.fs.PathDir(d))
		}
		if err := errors.Join(b.syncFinal(parent, b.fs.PathDir(d)), parent.Close()); err != nil {
			_ = b.fs.Remove(d) // if it is empty: the next start makes it anew, since its own fsync would prove nothing
			return err
		}
		b.durable.Store(d, true)
	}
	return nil
}

// syncFinal makes the names in an open directory durable. If that fails it is final, and fences the brick: the kernel may have dropped the name that it could not write, and
// the next fsync would succeed without it.
func (b *Brick) syncFinal(dir vfs.File, path string) error {
	if err := dir.Sync(); err != nil {
		b.Fence(fault.Wrap(err, fault.Unavailable, "sync directory %s", path))
		return b.Err()
	}
	return nil
}

// SyncSegmentDir makes the names in p's segment directory durable: the step between the fsync of a segment's bytes and
// its catalogue entry (I7).
func (b *Brick) SyncSegmentDir(p point.PlacementID) error { return SyncDir(b.fs, b.SegmentDir(p)) }

// RemoveSegmentDir deletes p's segments, durably: the caller may forget that they were to go. The catalogue entries that name them must be gone durably before.
func (b *Brick) RemoveSegmentDir(p point.PlacementID) error {
	dir := b.SegmentDir(p)
	b.durable.Delete(dir)
	if _, err := b.fs.Stat(b.fs.PathDir(dir)); oserror.IsNotExist(err) {
		return nil // no segment of any placement was ever written here
	}
	if err := b.fs.RemoveAll(dir); err != nil && !oserror.IsNotExist(err) {
		return fault.Wrap(err, fault.Unavailable, "remove %s", dir)
	}
	return SyncDir(b.fs, b.fs.PathDir(dir))
}

// NoSync reports whether acks wait for no fsync.
func (b *Brick) NoSync() bool { return b.set.NoSync }
