package brick

import "fmt"

// Files is how many files a file system can hold, and how many more than it does. Total 0: it has no such bound, as Btrfs, or it
// is not known.
type Files struct{ Total, Free uint64 }

// FilesMin is how many files must be free for a store to accept writes. Flushes make two for each partition that has no segments
// yet; the log and the catalogue make few, and fence the brick where they cannot.
const FilesMin = 1024

// Fewer reports whether less than need files are free. A file system that has hardly more in all needs an eighth of them.
func (f Files) Fewer(need uint64) bool { return f.Total > 0 && f.Free < f.share(need) }

func (f Files) share(need uint64) uint64 { return min(need, f.Total/8) }

// filesShort returns why the brick is read-only when the file system of a directory can hold few files more; "": it can hold enough.
func (b *Brick) filesShort(dir string) string {
	if b.files == nil {
		return ""
	}
	f := b.files(dir)
	need := f.share(FilesMin)
	if b.readOnly.Load() != nil {
		need += need / 4
	}
	if f.Total == 0 || f.Free >= need {
		return ""
	}
	return fmt.Sprintf("the store is read-only: the file system of %s has room for %d more files, whatever their size, of %d (df -i); "+
		"remove files there", dir, f.Free, f.Total)
}
