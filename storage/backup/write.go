package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/time/rate"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
)

// Settings of a backup or a restore.
type Settings struct {
	// Link makes hard links instead of copies where it can: quick and without more space, on the same disk. A link is not checked,
	// and damage to the store's file damages the backup.
	Link bool
	// BytesPerSecond bounds copying; 0: no bound.
	BytesPerSecond int
	// Program is the version of the program, for operators.
	Program string
	// Progress, if not nil, is called after every segment.
	Progress func(Progress)
}

// Progress is the progress of a backup, a check or a restore.
type Progress struct {
	Segments, SegmentsAll int
	Bytes, BytesAll       int64
	Copied                int64 // bytes; the others existed already, or were linked
}

// Result is the result of a backup.
type Result struct {
	Name string
	Progress
	Missing []string
}

// job reads or copies segments and counts them.
type job struct {
	fs       vfs.FS
	set      Settings
	limit    *rate.Limiter // nil: none
	progress Progress
	buf      []byte
}

const copyBuffer = 1 << 20

func newJob(fs vfs.FS, set Settings, segments []Segment) *job {
	j := &job{fs: fs, set: set, buf: make([]byte, copyBuffer)}
	if set.BytesPerSecond > 0 {
		j.limit = rate.NewLimiter(rate.Limit(set.BytesPerSecond), max(copyBuffer, set.BytesPerSecond))
	}
	j.progress.SegmentsAll = len(segments)
	for i := range segments {
		j.progress.BytesAll += segments[i].Size
	}
	return j
}

// passed counts a finished segment.
func (j *job) passed(s *Segment) {
	j.progress.Segments++
	j.progress.Bytes += s.Size
	if j.set.Progress != nil {
		j.set.Progress(j.progress)
	}
}

// errDamaged reports a segment with changed bytes.
type errDamaged struct{ error }

// read copies a segment's file to w and compares it with the expected size and checksum. Errors: errDamaged, Unavailable, Canceled.
func (j *job) read(ctx context.Context, s *Segment, path string, w io.Writer) error {
	f, err := j.fs.Open(path)
	if oserror.IsNotExist(err) {
		return errDamaged{fault.Errorf(fault.Corrupt, "%s is missing", path)}
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "open %s", path)
	}
	defer f.Close()
	sum, size := xxhash.New(), int64(0)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.Read(j.buf)
		if n > 0 {
			if j.limit != nil {
				if err := j.limit.WaitN(ctx, n); err != nil {
					return err
				}
			}
			_, _ = sum.Write(j.buf[:n]) // never fails
			size += int64(n)
			if _, err := w.Write(j.buf[:n]); err != nil {
				return fault.Wrap(err, fault.Unavailable, "copy %s", path)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return errDamaged{fault.Wrap(err, fault.Corrupt, "read %s", path)}
		}
	}
	if size != s.Size || sum.Sum64() != s.Checksum {
		return errDamaged{fault.Errorf(fault.Corrupt, "%s has %d bytes with checksum %016x, and should have %d with %016x", path, size, sum.Sum64(), s.Size, s.Checksum)}
	}
	return nil
}

// copy copies a segment, durably but for its directory.
func (j *job) copy(ctx context.Context, s *Segment, from, to string) (err error) {
	f, err := j.fs.Create(to+tempSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "create %s", to)
	}
	err = j.read(ctx, s, from, f)
	if err == nil {
		err = fault.Wrap(f.Sync(), fault.Unavailable, "sync %s", to)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = fault.Wrap(j.fs.Rename(to+tempSuffix, to), fault.Unavailable, "rename %s", to)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(j.fs, to+tempSuffix))
	}
	j.progress.Copied += s.Size
	return nil
}

func removeIfThere(fs vfs.FS, path string) error {
	if err := fs.Remove(path); err != nil && !oserror.IsNotExist(err) {
		return fault.Wrap(err, fault.Unavailable, "remove %s", path)
	}
	return nil
}

// Write makes a backup in dir, which it creates if needed. Segments that are damaged in the store are listed as missing in the
// backup. Errors: Unavailable (the disk; another backup into dir runs), Canceled; then there is no new backup.
func Write(ctx context.Context, fs vfs.FS, dir string, c *Content, made time.Time, set Settings) (_ Result, err error) {
	files := fs.PathJoin(dir, segmentsDir)
	if err := fs.MkdirAll(files, 0o755); err != nil {
		return Result{}, fault.Wrap(err, fault.Unavailable, "make %s", files)
	}
	unlock, err := lock(fs, dir)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, unlock.Close()) }()
	j := newJob(fs, set, c.Segments)
	m := &Manifest{Version: formatVersion, Made: made.UTC(), Program: set.Program, Store: c.Store, Missing: c.Missing, Entries: c.Entries}
	for i := range c.Segments {
		s := &c.Segments[i]
		var bad errDamaged
		switch err := j.keep(ctx, s, fs.PathJoin(files, s.name())); {
		case errors.As(err, &bad):
			m.Missing = append(m.Missing, fmt.Sprintf("segment %d-%d of placement %s: %v", s.Epoch, s.Seq, s.Placement, bad))
		case err != nil:
			return Result{}, err
		}
		m.Segments = append(m.Segments, *s)
		j.passed(s)
	}
	if err := brick.SyncDir(fs, files); err != nil {
		return Result{}, err
	}
	if _, err := fs.Stat(fs.PathJoin(dir, m.name()+suffix)); err == nil {
		return Result{}, fault.Errorf(fault.Unavailable, "%s holds a backup of this very moment", dir)
	}
	return Result{Name: m.name(), Progress: j.progress, Missing: m.Missing}, writeManifest(fs, dir, m)
}

// keep copies a segment's file into the backup directory.
func (j *job) keep(ctx context.Context, s *Segment, to string) error {
	if st, err := j.fs.Stat(to); err == nil && st.Size() == s.Size {
		return nil
	}
	if j.set.Link && j.fs.Link(s.Path, to) == nil {
		return nil
	}
	return j.copy(ctx, s, s.Path, to)
}

func writeManifest(fs vfs.FS, dir string, m *Manifest) (err error) {
	b, err := m.encode()
	if err != nil {
		return err
	}
	if len(b) > manifestMax {
		return fault.Errorf(fault.TooLarge, "the backup names so many segments that its file would have %d bytes, at most %d are read", len(b), manifestMax)
	}
	path := fs.PathJoin(dir, m.name()+suffix)
	f, err := fs.Create(path+tempSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "create %s", path)
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fs.Rename(path+tempSuffix, path)
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "write %s", path)
	}
	return brick.SyncDir(fs, dir)
}

func lock(fs vfs.FS, dir string) (io.Closer, error) {
	c, err := fs.Lock(fs.PathJoin(dir, "LOCK"))
	return c, fault.Wrap(err, fault.Unavailable, "%s is in use by another backup or restore", dir)
}

// Prune removes all but the newest backups, and the segments that no remaining one names. A backup that cannot be read is kept,
// and then no segment is removed. Errors: Unavailable, Corrupt (a backup cannot be read).
func Prune(fs vfs.FS, dir string, keep int) (removed []string, err error) {
	unlock, err := lock(fs, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock.Close()) }()
	all, err := List(fs, dir)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for i, l := range all {
		if l.Err != nil {
			return nil, fault.Annotate(l.Err, "nothing is removed, since not all backups can be read")
		}
		if i < len(all)-max(keep, 1) {
			removed = append(removed, l.Name)
			continue
		}
		for k := range l.Manifest.Segments {
			used[l.Manifest.Segments[k].name()] = true
		}
	}
	for _, name := range removed {
		if err := removeIfThere(fs, fs.PathJoin(dir, name+suffix)); err != nil {
			return nil, err
		}
	}
	if err := brick.SyncDir(fs, dir); err != nil { // a backup is removed before its segments
		return nil, err
	}
	files := fs.PathJoin(dir, segmentsDir)
	names, err := fs.List(files)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "list %s", files)
	}
	for _, name := range names {
		if !used[name] {
			if err := removeIfThere(fs, fs.PathJoin(files, name)); err != nil {
				return nil, err
			}
		}
	}
	return removed, nil
}
