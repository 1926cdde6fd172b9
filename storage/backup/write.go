package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
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

// Write makes a backup of a store's files, which lie in fs. Segments that are damaged in the store are listed as missing in the
// backup. Errors: Unavailable (a disk, the network; another backup into the place runs), Canceled; then there is no new backup, and
// the next try copies only the segments that are not there yet.
func Write(ctx context.Context, fs vfs.FS, to Place, c *Content, made time.Time, set Settings) (_ Result, err error) {
	unlock, err := to.Lock(ctx, c.Store)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, unlock.Close()) }()
	there, err := to.List(ctx, SegmentsDir)
	if err != nil {
		return Result{}, err
	}
	j := newJob(set, c.Segments)
	m := &Manifest{Version: formatVersion, Made: made.UTC(), Program: set.Program, Store: c.Store, Missing: c.Missing, Entries: c.Entries, Segments: c.Segments}
	damaged, err := j.each(ctx, to.Streams(), func(ctx context.Context, s *Segment) (int64, error) {
		if size, ok := there[s.name()]; ok && size == s.Size {
			return 0, nil
		}
		return j.keep(ctx, fs, s, to)
	})
	if err != nil {
		return Result{}, err
	}
	for _, i := range slices.Sorted(maps.Keys(damaged)) {
		m.Missing = append(m.Missing, missingText(&c.Segments[i], damaged[i]))
	}
	fresh := map[string]bool{}
	for i := range c.Segments {
		if size, ok := there[c.Segments[i].name()]; !ok || size != c.Segments[i].Size {
			fresh[c.Segments[i].name()] = true
		}
	}
	if err := syncSegments(ctx, to, maps.Keys(fresh)); err != nil {
		return Result{}, err
	}
	return Result{Name: m.name(), Progress: j.progress, Missing: m.Missing}, writeManifest(ctx, to, m)
}

// syncSegments makes the names of the segments durable that a backup wrote, and those that an interrupted one left. If that fails they are removed, so that the next backup writes
// them again: it would find them, and a second fsync of the directory succeeds although the first lost the names that it could not write.
func syncSegments(ctx context.Context, to Place, fresh iter.Seq[string]) error {
	err := to.Sync(SegmentsDir)
	if err == nil {
		return nil
	}
	for name := range fresh {
		err = errors.Join(err, to.Remove(ctx, SegmentsDir+"/"+name))
	}
	return errors.Join(err, removeUnnamed(ctx, to))
}

// removeUnnamed removes the segments that no backup names, unless one cannot be read.
func removeUnnamed(ctx context.Context, at Place) error {
	names, err := names(ctx, at)
	if err != nil {
		return err
	}
	used := map[segmentFile]bool{}
	for _, name := range names {
		m, err := load(ctx, at, name)
		if err != nil {
			return err
		}
		use(used, m.Segments)
	}
	return removeUnused(ctx, at, used)
}

// keep copies a segment's file of the store to the place.
func (j *job) keep(ctx context.Context, fs vfs.FS, s *Segment, to Place) (copied int64, err error) {
	name := SegmentsDir + "/" + s.name()
	if l, ok := to.(linker); ok && j.set.Link && l.Link(s.Path, name) {
		return 0, nil
	}
	open := func() (io.ReadCloser, int64, error) { return openFile(fs, s.Path) }
	return s.Size, j.through(ctx, s, s.Path, open, func(r io.Reader) error { return to.Put(ctx, name, s.Size, r) })
}

func missingText(s *Segment, why error) string {
	return fmt.Sprintf("segment %d-%d of placement %s: %v", s.Epoch, s.Seq, s.Placement, why)
}

func writeManifest(ctx context.Context, to Place, m *Manifest) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	if len(b) > manifestMax {
		return fault.Errorf(fault.TooLarge, "the backup names so many segments that its file would have %d bytes, at most %d are read", len(b), manifestMax)
	}
	names, err := to.List(ctx, "")
	if err != nil {
		return err
	}
	if _, ok := names[m.name()+suffix]; ok {
		return fault.Errorf(fault.Unavailable, "%s holds a backup of this very moment", to)
	}
	if err := to.Put(ctx, m.name()+suffix, int64(len(b)), bytes.NewReader(b)); err != nil {
		return err
	}
	if err := to.Sync(""); err != nil {
		return errors.Join(err, to.Remove(ctx, m.name()+suffix)) // it is said to have failed, and must not count as a backup later
	}
	return nil
}

// Prune removes all but the newest backups up to the one that was just made, the segments that no remaining one names, and what interrupted backups left. Files of
// other names stay, as the place may hold more than backups, and so do backups of later names: the clock was ahead when those were made, or is behind now. The newest one that
// lacks nothing stays beside newer ones that lack parts. A backup that cannot be read is kept, and then nothing is removed. The holder is the identity of the store that prunes. Errors:
// Unavailable, Corrupt (a backup cannot be read).
func Prune(ctx context.Context, at Place, holder, made string, keep int) (removed []string, err error) {
	unlock, err := at.Lock(ctx, holder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock.Close()) }()
	names, err := names(ctx, at)
	if err != nil {
		return nil, err
	}
	whole, upTo := -1, len(names)
	if i := slices.IndexFunc(names, func(name string) bool { return name > made }); i >= 0 {
		upTo = i
	}
	newest := upTo - max(keep, 1) // the first of those that stay
	used := map[segmentFile]bool{}
	var ofWhole []Segment
	for i, name := range names { // one manifest in memory at a time, and the segments of another
		m, err := load(ctx, at, name)
		if err != nil {
			return nil, fault.Annotate(err, "nothing is removed, since not all backups can be read")
		}
		if i < upTo && len(m.Missing) == 0 {
			whole, ofWhole = i, m.Segments
		}
		if i >= newest {
			use(used, m.Segments)
		}
	}
	use(used, ofWhole)
	for i, name := range names[:max(newest, 0)] {
		if i != whole {
			removed = append(removed, name)
		}
	}
	for _, name := range removed {
		if err := at.Remove(ctx, name+suffix); err != nil {
			return nil, err
		}
	}
	if err := at.Sync(""); err != nil { // a backup is removed before its segments
		return nil, err
	}
	if err := removeUnused(ctx, at, used); err != nil {
		return nil, err
	}
	return removed, at.RemovePartial(ctx)
}

// removeUnused removes the other segments than those in use.
func removeUnused(ctx context.Context, at Place, used map[segmentFile]bool) error {
	files, err := at.List(ctx, SegmentsDir)
	if err != nil {
		return err
	}
	for name := range files {
		if g, ok := segmentOf(name); ok && !used[g] {
			if err := at.Remove(ctx, SegmentsDir+"/"+name); err != nil {
				return err
			}
		}
	}
	return nil
}

// segmentFile is the file of a segment in a place.
type segmentFile struct {
	checksum uint64
	size     int64
}

func use(used map[segmentFile]bool, segments []Segment) {
	for i := range segments {
		used[segmentFile{segments[i].Checksum, segments[i].Size}] = true
	}
}
