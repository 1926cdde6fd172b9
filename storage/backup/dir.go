package backup

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/database"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
)

// Dir is a directory with backups. Lock makes it.
type Dir struct {
	FS   vfs.FS
	Path string
}

func (d Dir) String() string { return d.Path }

// Held reports whether a directory holds backups; one that does not exist holds none. Errors: Unavailable.
func Held(fs vfs.FS, dir string) (bool, error) {
	names, err := fs.List(dir)
	if err != nil && !oserror.IsNotExist(err) {
		return false, fault.Wrap(err, fault.Unavailable, "list %s", dir)
	}
	return slices.ContainsFunc(names, isBackup), nil
}

func (d Dir) path(name string) string {
	return d.FS.PathJoin(append([]string{d.Path}, strings.Split(name, "/")...)...)
}

// List implements Place.
func (d Dir) List(_ context.Context, folder string) (map[string]int64, error) {
	dir := d.path(folder)
	names, err := d.FS.List(dir)
	if folder != "" && oserror.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "list %s", dir)
	}
	out := make(map[string]int64, len(names))
	for _, n := range names {
		st, err := d.FS.Stat(d.FS.PathJoin(dir, n))
		if oserror.IsNotExist(err) { // a temporary file that was renamed
			continue
		}
		if err != nil {
			return nil, fault.Wrap(err, fault.Unavailable, "list %s", dir)
		}
		if !st.IsDir() {
			out[n] = st.Size()
		}
	}
	return out, nil
}

// Read implements Place.
func (d Dir) Read(_ context.Context, name string) (io.ReadCloser, int64, error) {
	return openFile(d.FS, d.path(name))
}

// openFile opens a file of a disk. Errors: NotFound, Unavailable.
func openFile(fs vfs.FS, path string) (io.ReadCloser, int64, error) {
	f, err := fs.Open(path)
	if oserror.IsNotExist(err) {
		return nil, 0, fault.Errorf(fault.NotFound, "%s is missing", path)
	}
	if err != nil {
		return nil, 0, fault.Wrap(err, fault.Unavailable, "open %s", path)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, 0, fault.Wrap(errors.Join(err, f.Close()), fault.Unavailable, "read %s", path)
	}
	return diskReader{f, path}, st.Size(), nil
}

// diskReader reads a file of a disk: a part that the disk cannot read is lost.
type diskReader struct {
	io.ReadCloser
	path string
}

func (r diskReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = fault.Wrap(err, fault.Corrupt, "read %s", r.path)
	}
	return n, err
}

// Put implements Place.
func (d Dir) Put(_ context.Context, name string, _ int64, r io.Reader) error {
	return writeFile(d.FS, d.path(name), r)
}

// writeFile writes a file, durably but for its directory.
func writeFile(fs vfs.FS, to string, r io.Reader) error {
	f, err := fs.Create(to+tempSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "create %s", to)
	}
	buf := make([]byte, copyBuffer)
	if _, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{r}, buf); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fs.Rename(to+tempSuffix, to)
	}
	if err != nil {
		return errors.Join(fault.Wrap(err, fault.Unavailable, "write %s", to), removeIfThere(fs, to+tempSuffix))
	}
	return nil
}

func removeIfThere(fs vfs.FS, path string) error {
	if err := fs.Remove(path); err != nil && !oserror.IsNotExist(err) {
		return fault.Wrap(err, fault.Unavailable, "remove %s", path)
	}
	return nil
}

// Remove implements Place.
func (d Dir) Remove(_ context.Context, name string) error { return removeIfThere(d.FS, d.path(name)) }

// RemovePartial implements Place. Temporary files of others stay.
func (d Dir) RemovePartial(ctx context.Context) error {
	for _, folder := range []string{"", SegmentsDir} {
		files, err := d.List(ctx, folder)
		if err != nil {
			return err
		}
		for name := range files {
			if whole, ok := strings.CutSuffix(name, tempSuffix); ok && Ours(path.Join(folder, whole)) {
				if err := d.Remove(ctx, path.Join(folder, name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Sync implements Place.
func (d Dir) Sync(folder string) error { return brick.SyncDir(d.FS, d.path(folder)) }

// Lock implements Place.
func (d Dir) Lock(context.Context, string) (io.Closer, error) {
	files := d.path(SegmentsDir)
	if err := brick.MakeDir(d.FS, files); err != nil {
		return nil, err
	}
	if err := brick.MakeDir(d.FS, d.Path); err != nil { // made just now, or by a process that ended before its name was durable
		return nil, err
	}
	c, err := d.FS.Lock(d.path(lockName))
	return c, database.LockError(err, d.path(lockName), d.Path+" is in use by another backup or restore", "run the command as the user who owns "+d.Path+", or name another place")
}

// Streams implements Place: a disk is read in order.
func (d Dir) Streams() int { return 1 }

// Link implements linker.
func (d Dir) Link(from, name string) bool { return d.FS.Link(from, d.path(name)) == nil }

// LinkOut implements linker.
func (d Dir) LinkOut(name, to string) bool { return d.FS.Link(d.path(name), to) == nil }
