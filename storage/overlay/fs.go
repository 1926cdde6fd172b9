package overlay

import (
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// FS is a vfs.FS over another one. All methods may be called from many goroutines. Files created in it are in memory.
type FS struct {
	under vfs.FS // never changed
	over  *vfs.MemFS

	mu struct {
		sync.Mutex
		gone  map[string]bool   // paths that were removed or replaced; those below a directory have entries of their own
		moved map[string]string // files of the disk under new names: where they lie there. The memory has an empty file for each
	}
}

var _ vfs.FS = (*FS)(nil)

// New lays a memory over a file system.
func New(under vfs.FS) *FS {
	f := &FS{under: under, over: vfs.NewMem()}
	f.mu.gone, f.mu.moved = map[string]bool{}, map[string]string{}
	return f
}

// onDisk returns the path on the disk of a file that the memory does not have; "": there is none.
func (f *FS) onDisk(name string) string {
	f.mu.Lock()
	at, moved := f.mu.moved[clean(name)]
	f.mu.Unlock()
	switch {
	case moved:
		return at
	case !f.inOver(name) && f.inUnder(name):
		return name
	}
	return ""
}

// setMoved notes where on the disk the file of a name lies; "": it lies there no more.
func (f *FS) setMoved(name, at string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if delete(f.mu.moved, clean(name)); at != "" {
		f.mu.moved[clean(name)] = at
	}
}

func (f *FS) isGone(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.gone[clean(name)]
}

func (f *FS) setGone(name string, gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if gone {
		f.mu.gone[clean(name)] = true
	} else {
		delete(f.mu.gone, clean(name))
	}
}

func clean(name string) string {
	if name = strings.TrimRight(name, "/"); name == "" {
		return "/"
	}
	return name
}

// inOver reports whether the memory has a file or directory under the name.
func (f *FS) inOver(name string) bool {
	_, err := f.over.Stat(name)
	return err == nil
}

// inUnder reports whether the disk has such a name that is not gone.
func (f *FS) inUnder(name string) bool {
	if f.isGone(name) {
		return false
	}
	_, err := f.under.Stat(name)
	return err == nil
}

func notExist(op, name string) error { return &os.PathError{Op: op, Path: name, Err: os.ErrNotExist} }

// Create implements vfs.FS.
func (f *FS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if _, err := f.Stat(f.PathDir(name)); err != nil {
		return nil, err
	}
	if err := f.over.MkdirAll(f.PathDir(name), 0o755); err != nil {
		return nil, err
	}
	f.setGone(name, true)
	f.setMoved(name, "")
	return f.over.Create(name, category)
}

// Open implements vfs.FS.
func (f *FS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if at := f.onDisk(name); at != "" {
		return f.under.Open(at, opts...)
	}
	if f.inOver(name) && !f.isDirBoth(name) {
		return f.over.Open(name, opts...)
	}
	if f.isGone(name) {
		return nil, notExist("open", name)
	}
	return f.under.Open(name, opts...)
}

// isDirBoth reports a directory that exists on the disk too: its names are those of both.
func (f *FS) isDirBoth(name string) bool {
	st, err := f.over.Stat(name)
	return err == nil && st.IsDir() && f.inUnder(name)
}

// copyMax is the largest file that is copied to memory when it is opened to write into it.
const copyMax = 64 << 10

// OpenReadWrite implements vfs.FS. A small file of the disk is copied; a larger one is read from the disk, and its Sync does nothing.
func (f *FS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	at := f.onDisk(name)
	switch {
	case at != "":
		file, err := f.under.Open(at, opts...)
		if err != nil {
			return nil, err
		}
		if st, err := file.Stat(); err != nil || st.Size() > copyMax {
			return readOnly{file, name}, err
		}
		return f.copyUp(file, name, category, opts...)
	case f.inOver(name):
		return f.over.OpenReadWrite(name, category, opts...)
	}
	return f.Create(name, category)
}

func (f *FS) copyUp(file vfs.File, name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	text, err := io.ReadAll(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	c, err := f.Create(name, category)
	if err != nil {
		return nil, err
	}
	_, err = c.Write(text)
	if err = errors.Join(err, c.Close()); err != nil {
		return nil, err
	}
	return f.over.OpenReadWrite(name, category, opts...)
}

// readOnly is a larger file of the disk that was opened for writing.
type readOnly struct {
	vfs.File
	name string
}

func (r readOnly) refuse() error {
	return fault.Errorf(fault.Unavailable, "write into %s: the store is only looked at", r.name)
}

func (r readOnly) Write([]byte) (int, error)          { return 0, r.refuse() }
func (r readOnly) WriteAt([]byte, int64) (int, error) { return 0, r.refuse() }
func (r readOnly) Preallocate(int64, int64) error     { return nil }
func (r readOnly) Sync() error                        { return nil }
func (r readOnly) SyncData() error                    { return nil }
func (r readOnly) SyncTo(int64) (bool, error)         { return true, nil }

// OpenDir implements vfs.FS: directories are opened to be synced.
func (f *FS) OpenDir(name string) (vfs.File, error) {
	if _, err := f.Stat(name); err != nil {
		return nil, err
	}
	if err := f.over.MkdirAll(name, 0o755); err != nil {
		return nil, err
	}
	return f.over.OpenDir(name)
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	over, under := f.inOver(name), f.inUnder(name)
	if !over && !under {
		return notExist("remove", name)
	}
	if over {
		if err := f.over.Remove(name); err != nil {
			return err
		}
	}
	f.setGone(name, true)
	f.setMoved(name, "")
	return nil
}

// RemoveAll implements vfs.FS.
func (f *FS) RemoveAll(name string) error {
	if names, err := f.List(name); err == nil {
		for _, n := range names {
			if err := f.RemoveAll(f.PathJoin(name, n)); err != nil {
				return err
			}
		}
	}
	f.setGone(name, true)
	f.setMoved(name, "")
	if f.inOver(name) {
		return f.over.RemoveAll(name)
	}
	return nil
}

// Rename implements vfs.FS, of directories file by file.
func (f *FS) Rename(oldname, newname string) error {
	st, err := f.Stat(oldname)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		if err := f.Link(oldname, newname); err != nil {
			return err
		}
		return f.Remove(oldname)
	}
	names, err := f.List(oldname)
	if err == nil {
		err = f.MkdirAll(newname, 0o755)
	}
	for _, n := range names {
		err = errors.Join(err, f.Rename(f.PathJoin(oldname, n), f.PathJoin(newname, n)))
	}
	return errors.Join(err, f.RemoveAll(oldname))
}

// Link implements vfs.FS. A file of the disk is read there under its new name: a segment may be larger than the memory.
func (f *FS) Link(oldname, newname string) error {
	if at := f.onDisk(oldname); at != "" {
		to, err := f.Create(newname, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		f.setMoved(newname, at)
		return to.Close()
	}
	from, err := f.Open(oldname)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := f.Create(newname, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// ReuseForWrite implements vfs.FS: the old file is removed, and a new one is made.
func (f *FS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Remove(oldname); err != nil {
		return nil, err
	}
	return f.Create(newname, category)
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(dir string, perm os.FileMode) error { return f.over.MkdirAll(dir, perm) }

// Lock implements vfs.FS: a reader locks nothing.
func (f *FS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// List implements vfs.FS.
func (f *FS) List(dir string) ([]string, error) {
	var names []string
	over, overErr := f.over.List(dir)
	names = append(names, over...)
	underErr := error(notExist("open", dir))
	if !f.isGone(dir) {
		var under []string
		under, underErr = f.under.List(dir)
		for _, n := range under {
			if !f.isGone(f.PathJoin(dir, n)) {
				names = append(names, n)
			}
		}
	}
	if overErr != nil && underErr != nil {
		return nil, underErr
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (vfs.FileInfo, error) {
	if at := f.onDisk(name); at != "" {
		return f.under.Stat(at)
	}
	if st, err := f.over.Stat(name); err == nil {
		return st, nil
	}
	if f.isGone(name) {
		return nil, notExist("stat", name)
	}
	return f.under.Stat(name)
}

// PathBase implements vfs.FS.
func (f *FS) PathBase(path string) string { return f.under.PathBase(path) }

// PathJoin implements vfs.FS.
func (f *FS) PathJoin(elem ...string) string { return f.under.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (f *FS) PathDir(path string) string { return f.under.PathDir(path) }

// GetDiskUsage implements vfs.FS: there is always room, since nothing is written to the disk.
func (f *FS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: math.MaxInt64, TotalBytes: math.MaxInt64}, nil
}

// Unwrap implements vfs.FS: the disk below has other contents than this file system shows.
func (f *FS) Unwrap() vfs.FS { return nil }
