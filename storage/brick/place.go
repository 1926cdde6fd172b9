package brick

import (
	"errors"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// ErrGone is in the chain of Err if the store is not where it was opened. A process that was started again at once would make an empty store there.
var ErrGone = errors.New("rows written now would not be found by a start")

// place is a file or directory under which the next start looks for the store. Files that are open outlive their names: a process whose directory was
// removed, moved away or unmounted goes on writing and fsyncing, and no start finds the rows.
type place struct {
	path string
	file vfs.File // stays open, so that its inode is given to no other file, and file systems that number by use go on numbering it so
}

// findPlaces opens the places of an opened store.
func (b *Brick) findPlaces() error {
	for _, path := range []string{b.fs.PathJoin(b.set.DataDir, storeFile), b.fs.PathJoin(b.set.LogDir, storeFile), b.fs.PathJoin(b.set.DataDir, catalogueDir)} {
		open := func(path string) (vfs.File, error) { return b.fs.Open(path) }
		if b.fs.PathBase(path) == catalogueDir {
			open = b.fs.OpenDir
		}
		f, err := open(path)
		if err != nil {
			return fault.Wrap(errors.Join(err, b.closePlaces()), fault.Unavailable, "look for %s", path)
		}
		b.places = append(b.places, place{path, f})
	}
	return nil
}

func (b *Brick) closePlaces() (err error) {
	for _, p := range b.places {
		err = errors.Join(err, p.file.Close())
	}
	b.places = nil
	return err
}

// checkPlaces fences the brick if its directories, or the log file that it writes, are not where a start would look for them. A look that fails
// otherwise says nothing.
func (b *Brick) checkPlaces() {
	if b.Frozen() || b.Err() != nil {
		return
	}
	for _, p := range b.places {
		if err := b.moved(p); err != nil {
			b.fenceGone(err)
			return
		}
	}
	// The file is full, and perhaps released, once another is written.
	cur := func() *logFile {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.mu.cur
	}
	if f := cur(); f != nil {
		if err := b.moved(place{b.filePath(f.number), f.sink.File}); err != nil && cur() == f {
			b.fenceGone(fault.Annotate(err, "the newest log file"))
		}
	}
}

// moved says why a start would not find an open file by its name, nil if it would, or where a look fails otherwise.
func (b *Brick) moved(p place) error {
	now, err := b.fs.Stat(p.path)
	if oserror.IsNotExist(err) {
		return fault.Wrap(ErrGone, fault.Unavailable, "%s is gone: it was removed, moved away or unmounted while this process used it; put it back before the next start", p.path)
	}
	own, ownErr := p.file.Stat()
	if err == nil && ownErr == nil && (now.DeviceID() != own.DeviceID() || inodeOf(now) != inodeOf(own)) {
		return fault.Wrap(ErrGone, fault.Unavailable, "%s is another file than the one in use: it was replaced, or something was mounted over it; put the former one back before the next start", p.path)
	}
	return nil
}

func (b *Brick) fenceGone(why error) {
	b.fence(fault.Wrap(why, fault.Unavailable, "the store in %s is fenced, and nothing is acked any more", b.set.DataDir))
}
