package backup

import (
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
	"github.com/spillwaydb/spillway/protocols/point"
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
	// Memory, if not nil, is called before lists of a backup's content, which are held until it ends, grow by so many bytes. Its error ends the backup or the restore.
	Memory func(bytes int64) error
}

// Hold books memory of the content's lists. Errors are those of Memory.
func (s *Settings) Hold(bytes int64) error {
	if s.Memory == nil {
		return nil
	}
	return fault.Annotate(s.Memory(bytes), "the lists of a backup's content")
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
// backup. A placement that is dropped before all of its segments are copied is left out. Errors: Unavailable (a disk, the network; another backup into the place runs), Canceled; then there is no new backup, and
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
	m.leaveOut(c, damaged)
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

// leaveOut removes the placements that were dropped meanwhile, and their segments from those that are damaged: their files went with the table, or with rows that are older
// than it keeps.
func (m *Manifest) leaveOut(c *Content, damaged map[int]error) {
	if c.Dropped == nil {
		return
	}
	gone, keys := map[point.PlacementID]bool{}, map[string]bool{}
	for i := range damaged {
		id := c.Segments[i].Placement
		if key, dropped := c.Dropped(id); dropped {
			gone[id], keys[string(key)] = true, true
		}
	}
	if len(gone) == 0 {
		return
	}
	maps.DeleteFunc(damaged, func(i int, _ error) bool { return gone[c.Segments[i].Placement] })
	m.Segments = slices.DeleteFunc(slices.Clone(m.Segments), func(g Segment) bool { return gone[g.Placement] })
	m.Entries = slices.DeleteFunc(slices.Clone(m.Entries), func(e Entry) bool { return keys[string(e.Key)] })
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
	return errors.Join(err, renewUnnamed(ctx, to))
}

// renewUnnamed removes the segments that no backup names. While a backup cannot be read, or a removed one may come back, they may be its segments: they are written again instead, under
// the same names. One that the disk cannot read stays as it is, and the others are written.
func renewUnnamed(ctx context.Context, at Place) error {
	names, err := names(ctx, at)
	if err != nil {
		return err
	}
	used, unread := segmentFiles{}, error(nil)
	for _, name := range names {
		_, err := readFiles(ctx, at, name, func(f segmentFile) { used.add(f) })
		if unread = errors.Join(unread, err); err != nil && !unreadable(err) {
			return err
		}
	}
	if unread == nil && at.Sync("") == nil {
		return removeUnused(ctx, at, used)
	}
	var damaged []error
	err = eachUnused(ctx, at, used, func(name string) error {
		f, size, err := at.Read(ctx, name)
		if err != nil {
			return err
		}
		src := &source{r: f}
		err = errors.Join(at.Put(ctx, name, size, src), f.Close())
		if fault.Is(src.err, fault.Corrupt) {
			damaged, err = append(damaged, err), nil
		}
		return err
	})
	return errors.Join(append(damaged, err)...)
}

// unreadable reports whether an error is that of a backup whose file is damaged, or of a later version: it cannot be read the next time either.
func unreadable(err error) bool { return fault.Is(err, fault.Corrupt) || fault.Is(err, fault.Invalid) }

// readFiles passes the files of a backup's segments to a function, also before it returns an error, and returns what else the backup says.
func readFiles(ctx context.Context, at Place, name string, file func(segmentFile)) (*manifestHead, error) {
	p := manifestReader{entry: func(*Entry) error { return nil }, table: func(*Table) error { return nil }, segment: func(g *Segment) error { file(segmentFile{g.Checksum, g.Size}); return nil }}
	return read(ctx, at, name, p.read)
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
	names, err := to.List(ctx, "")
	if err != nil {
		return err
	}
	if _, ok := names[m.name()+suffix]; ok {
		return fault.Errorf(fault.Unavailable, "%s holds a backup of this very moment", to)
	}
	if err := m.put(ctx, to, m.name()); err != nil {
		return err
	}
	if err := to.Sync(""); err != nil {
		return errors.Join(err, to.Remove(ctx, m.name()+suffix)) // it is said to have failed, and must not count as a backup later
	}
	return nil
}

// put writes the file of a backup.
func (m *Manifest) put(ctx context.Context, to Place, name string) error {
	size := int64(0)
	for b, err := range m.pieces() {
		if size += int64(len(b)); err != nil {
			return err
		}
	}
	if size > manifestMax {
		return fault.Errorf(fault.TooLarge, "the backup names so many segments that its file would have %d bytes, at most %d are read", size, int64(manifestMax))
	}
	next, stop := iter.Pull2(m.pieces())
	defer stop()
	return to.Put(ctx, name+suffix, size, &pieceReader{next: next})
}

// Prune removes all but the newest backups up to the one that was just made, the segments that no remaining one names, and what interrupted backups left. Files of
// other names stay, as the place may hold more than backups, and so do backups of later names: the clock was ahead when those were made, or is behind now. The newest one that
// lacks nothing stays beside newer ones that lack parts. While a backup cannot be read nothing is removed; the error names all such backups, and what to do. The holder is the identity of the store that prunes. Errors:
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
	used := segmentFiles{}
	var ofWhole []segmentFile
	var unread []error
	for i, name := range names { // of one backup in memory at a time, and of the whole one, the names of its segments' files
		var files []segmentFile
		m, err := readFiles(ctx, at, name, func(f segmentFile) { files = append(files, f) })
		switch {
		case err == nil:
		case unreadable(err):
			unread = append(unread, fault.Annotate(err, "%s", whatToDo(name, err)))
			continue
		default:
			return nil, err
		}
		if i < upTo && len(m.Missing) == 0 {
			whole, ofWhole = i, files
		}
		if i >= newest {
			used.add(files...)
		}
	}
	if len(unread) > 0 {
		return nil, fault.Annotate(errors.Join(unread...), "the backup is made, but no older one is removed, and no segment, since not all backups can be read")
	}
	used.add(ofWhole...)
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
		return nil, errors.Join(err, putBack(ctx, at, removed))
	}
	if err := removeUnused(ctx, at, used); err != nil {
		return nil, err
	}
	return removed, at.RemovePartial(ctx)
}

// whatToDo says how a backup that cannot be read is dealt with.
func whatToDo(name string, err error) string {
	if fault.Is(err, fault.Invalid) {
		return "remove older backups with the version of the program that wrote it"
	}
	return "nothing can be restored from it: put its file back from a copy, or remove " + name + suffix
}

// putBack writes files in place of those of backups that were removed, which name no segments and cannot be restored. Without them the next Prune would have none of these to remove: its own fsync succeeds
// although the first lost the removal, and a power cut brought backups back whose segments are gone.
func putBack(ctx context.Context, at Place, removed []string) (err error) {
	for _, name := range removed {
		made, _ := time.Parse(nameFormat, name) // one that was renamed has no time
		m := &Manifest{Version: formatVersion, Made: made, Removed: true, Missing: []string{"all of it: it was removed, and the fsync of that failed; it is removed again with the next backup that has --keep"}}
		err = errors.Join(err, m.put(ctx, at, name))
	}
	return err
}

// removeUnused removes the other segments than those in use.
func removeUnused(ctx context.Context, at Place, used segmentFiles) error {
	return eachUnused(ctx, at, used, func(name string) error { return at.Remove(ctx, name) })
}

// eachUnused calls f with the names of the segments that are not in use.
func eachUnused(ctx context.Context, at Place, used segmentFiles, f func(name string) error) error {
	files, err := at.List(ctx, SegmentsDir)
	if err != nil {
		return err
	}
	for name := range files {
		if g, ok := segmentOf(name); ok && !used[g] {
			if err := f(SegmentsDir + "/" + name); err != nil {
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

type segmentFiles map[segmentFile]bool

func (s segmentFiles) add(files ...segmentFile) {
	for _, f := range files {
		s[f] = true
	}
}
