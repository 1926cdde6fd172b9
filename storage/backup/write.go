package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	if err := to.Sync(SegmentsDir); err != nil {
		return Result{}, err
	}
	return Result{Name: m.name(), Progress: j.progress, Missing: m.Missing}, writeManifest(ctx, to, m)
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
	return to.Sync("")
}

// Prune removes all but the newest backups, the segments that no remaining one names, and what interrupted backups left. Files of
// other names stay, as the place may hold more than backups. A backup that cannot be read is kept, and then nothing is removed. The holder is the identity of the store that prunes. Errors:
// Unavailable, Corrupt (a backup cannot be read).
func Prune(ctx context.Context, at Place, holder string, keep int) (removed []string, err error) {
	unlock, err := at.Lock(ctx, holder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock.Close()) }()
	all, err := List(ctx, at)
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
		if err := at.Remove(ctx, name+suffix); err != nil {
			return nil, err
		}
	}
	if err := at.Sync(""); err != nil { // a backup is removed before its segments
		return nil, err
	}
	files, err := at.List(ctx, SegmentsDir)
	if err != nil {
		return nil, err
	}
	for name := range files {
		if !used[name] && isSegment(name) {
			if err := at.Remove(ctx, SegmentsDir+"/"+name); err != nil {
				return nil, err
			}
		}
	}
	return removed, at.RemovePartial(ctx)
}
