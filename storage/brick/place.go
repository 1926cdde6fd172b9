package brick

import (
	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// place is a file or directory under which the next start looks for the store. Files that are open outlive their names: a process whose directory was
// removed, moved away or unmounted goes on writing and fsyncing, and no start finds the rows.
type place struct {
	path   string
	device vfs.DeviceID
	inode  uint64 // 0: unknown
}

func placeOf(path string, info vfs.FileInfo) place {
	return place{path: path, device: info.DeviceID(), inode: inodeOf(info)}
}

// findPlaces notes the places of an opened store.
func (b *Brick) findPlaces() error {
	for _, path := range []string{b.fs.PathJoin(b.set.DataDir, storeFile), b.fs.PathJoin(b.set.LogDir, storeFile), b.fs.PathJoin(b.set.DataDir, catalogueDir)} {
		info, err := b.fs.Stat(path)
		if err != nil {
			return fault.Wrap(err, fault.Unavailable, "look for %s", path)
		}
		b.places = append(b.places, placeOf(path, info))
	}
	return nil
}

// checkPlaces fences the brick if its directories, or the log file that it writes, are not where a start would look for them. A look that fails
// otherwise says nothing.
func (b *Brick) checkPlaces() {
	if b.Frozen() || b.Err() != nil {
		return
	}
	for _, p := range b.places {
		info, err := b.fs.Stat(p.path)
		switch {
		case oserror.IsNotExist(err):
			b.Fence(errGone(p.path))
			return
		case err == nil && placeOf(p.path, info) != p:
			b.Fence(fault.Errorf(fault.Unavailable, "%s is another file than at the start: the directory was replaced, or something was mounted over it, while this process used it; rows written now would be lost. Put the directory back", p.path))
			return
		}
	}
	if b.logFileIsGone() {
		b.Fence(errGone(b.set.LogDir + ": the newest log file"))
	}
}

// logFileIsGone looks for the file to which the log is written.
func (b *Brick) logFileIsGone() bool {
	writes := func() (number uint32, any bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.mu.cur == nil {
			return 0, false
		}
		return b.mu.cur.number, true
	}
	n, any := writes()
	if !any {
		return false
	}
	if _, err := b.fs.Stat(b.filePath(n)); !oserror.IsNotExist(err) {
		return false
	}
	now, any := writes()
	return any && now == n // else it was full and released meanwhile
}

func errGone(path string) error {
	return fault.Errorf(fault.Unavailable, "%s is gone: it was removed, moved away or unmounted while this process used it; rows written now would be lost. Put it back", path)
}
