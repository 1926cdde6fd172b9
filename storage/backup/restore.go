package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Verify reads a backup, the newest where name is "", with all its segments. Damaged segments are in the result's Missing, beside
// those missing from the beginning. Errors: NotFound, Invalid (the backup was removed), Corrupt (the backup's own file), Unavailable,
// Canceled.
func Verify(ctx context.Context, at Place, name string, set Settings) (Result, error) {
	name, m, err := pick(ctx, at, name, set)
	if err != nil {
		return Result{}, err
	}
	j := newJob(set, m.Segments)
	return j.all(ctx, at, name, m, func(ctx context.Context, g *Segment) (int64, error) { return 0, j.from(ctx, at, g, drain) })
}

// from hands the checked bytes of a backup's segment to write.
func (j *job) from(ctx context.Context, at Place, g *Segment, write func(io.Reader) error) error {
	name := SegmentsDir + "/" + g.name()
	open := func() (io.ReadCloser, int64, error) { return at.Read(ctx, name) }
	return j.through(ctx, g, name+" in "+at.String(), open, write)
}

// all calls do for each segment of a backup. Segments that do reports as damaged are in the result's Missing, beside those that were
// missing from the beginning; any other error ends it.
func (j *job) all(ctx context.Context, at Place, name string, m *Manifest, do func(context.Context, *Segment) (int64, error)) (Result, error) {
	damaged, err := j.each(ctx, at.Streams(), do)
	out := Result{Name: name, Missing: slices.Clone(m.Missing), Progress: j.progress}
	for _, i := range slices.Sorted(maps.Keys(damaged)) {
		if g := &m.Segments[i]; !namesSegment(m.Missing, g) {
			out.Missing = append(out.Missing, missingText(g, damaged[i]))
		}
	}
	return out, err
}

func namesSegment(missing []string, s *Segment) bool {
	prefix := fmt.Sprintf("segment %d-%d of placement %s:", s.Epoch, s.Seq, s.Placement)
	return slices.ContainsFunc(missing, func(m string) bool { return strings.HasPrefix(m, prefix) })
}

// Restore makes a store of a backup, the newest where name is "", in the data directory of d and s, which is empty or does not
// exist; or continues a restore of the same backup that did not end. The store has a new identity. Parts that cannot be restored
// are in the result's Missing: the start of the store reports them, and queries that touch them fail. Errors: NotFound, Invalid
// (the directory is not empty, or the backup was removed), Corrupt, Unavailable, Canceled.
func Restore(ctx context.Context, at Place, name string, d brick.Deps, s brick.Settings, set Settings) (_ Result, err error) {
	name, m, err := pick(ctx, at, name, set)
	if err != nil {
		return Result{}, err
	}
	if m.Tables != nil {
		return Result{}, fault.Errorf(fault.Invalid, "backup %q is of a cluster: `spillway restore --url` has a gateway of another cluster, or a standalone process, take its rows", name)
	}
	return restore(ctx, at, name, m, d, s, set)
}

// RestorePart makes a store of one placement of a cluster's backup, as Restore does.
func RestorePart(ctx context.Context, at Place, name string, m *Manifest, placement point.PlacementID, d brick.Deps, s brick.Settings, set Settings) (Result, error) {
	part, key := Manifest{Segments: m.OfPlacement(placement)}, partition.EntryKey(placement)
	for _, e := range m.Entries {
		if string(e.Key) == key {
			part.Entries = append(part.Entries, e)
		}
	}
	return restore(ctx, at, name, &part, d, s, set)
}

// restore fills a directory.
func restore(ctx context.Context, at Place, name string, m *Manifest, d brick.Deps, s brick.Settings, set Settings) (_ Result, err error) {
	if err := begin(d.FS, s.DataDir, name); err != nil {
		return Result{}, err
	}
	s.Restoring = true
	b, err := brick.Open(d, s)
	if err != nil {
		return Result{}, err
	}
	open := true
	defer func() {
		if open {
			err = errors.Join(err, b.Close())
		}
	}()
	if err := b.Recover(func(point.PlacementID) point.Serial { return point.Serial{} }, func(point.PlacementID, point.Serial, []byte) error { return nil }); err != nil {
		return Result{}, err
	}
	j := newJob(set, m.Segments)
	out, err := j.all(ctx, at, name, m, func(ctx context.Context, g *Segment) (int64, error) { return j.put(ctx, d.FS, b, g, at) })
	if err != nil {
		return out, err
	}
	if err := enter(b, m); err != nil {
		return out, err
	}
	open = false
	if err := b.Close(); err != nil {
		return out, err
	}
	if err := removeIfThere(d.FS, d.FS.PathJoin(s.DataDir, brick.RestoringFile)); err != nil {
		return out, err
	}
	return out, brick.SyncDir(d.FS, s.DataDir)
}

// begin marks the directory as one that a restore fills: no start treats it as a store until the restore ends.
func begin(fs vfs.FS, dataDir, name string) error {
	mark := fs.PathJoin(dataDir, brick.RestoringFile)
	if f, err := fs.Open(mark); err == nil {
		b, rerr := io.ReadAll(io.LimitReader(f, 1024))
		if err := errors.Join(rerr, f.Close()); err != nil {
			return fault.Wrap(err, fault.Unavailable, "read %s", mark)
		}
		switch of := strings.TrimSpace(string(b)); of {
		case name:
			return nil
		case "": // the try before ended at its first step
		default:
			return fault.Errorf(fault.Invalid, "%s is being filled from backup %q: go on with that one, or empty the directory", dataDir, of)
		}
	}
	names, err := fs.List(dataDir)
	if err != nil && !oserror.IsNotExist(err) {
		return fault.Wrap(err, fault.Unavailable, "list %s", dataDir)
	}
	if i := slices.IndexFunc(names, func(n string) bool { return n != "lost+found" && n != brick.RestoringFile }); i >= 0 { // mke2fs makes the first
		return fault.Errorf(fault.Invalid, "%s is not empty, there is %s: a restore needs an empty directory", dataDir, names[i])
	}
	if err := brick.MakeDir(fs, dataDir); err != nil {
		return err
	}
	f, err := fs.Create(mark, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write([]byte(name + "\n"))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "write %s", mark)
	}
	return brick.SyncDir(fs, dataDir)
}

// put copies a backup's segment into the store. One that an earlier try put there has its name only if it is whole; that try may have ended before the name was
// durable.
func (j *job) put(ctx context.Context, fs vfs.FS, b *brick.Brick, g *Segment, from Place) (copied int64, err error) {
	to := b.SegmentPath(g.Placement, point.SegmentID{Epoch: g.Epoch, Seq: g.Seq})
	if err := b.MakeSegmentDir(g.Placement); err != nil {
		return 0, err
	}
	if st, err := fs.Stat(to); err == nil && st.Size() == g.Size {
		return 0, syncName(fs, b, g, to)
	}
	if l, ok := from.(linker); ok && j.set.Link && l.LinkOut(SegmentsDir+"/"+g.name(), to) {
		return 0, syncName(fs, b, g, to)
	}
	if err := j.from(ctx, from, g, func(r io.Reader) error { return writeFile(fs, to, r) }); err != nil {
		return 0, err
	}
	return g.Size, syncName(fs, b, g, to)
}

// syncName makes the name of a segment durable. If that fails the file is removed, so that the next try writes it again: a second fsync of the directory would succeed although
// the first lost the names that it could not write.
func syncName(fs vfs.FS, b *brick.Brick, g *Segment, path string) error {
	err := b.SyncSegmentDir(g.Placement)
	if err != nil {
		err = errors.Join(err, removeIfThere(fs, path))
	}
	return err
}

// enter writes the catalogue entries of the restored parts, all at once.
func enter(b *brick.Brick, m *Manifest) error {
	epochs := map[point.PlacementID]point.Epoch{}
	for i := range m.Segments {
		g := &m.Segments[i]
		epochs[g.Placement] = max(epochs[g.Placement], g.Epoch)
	}
	for id, e := range epochs {
		if err := b.RaiseEpoch(id, e); err != nil {
			return err
		}
	}
	t := b.NewBatch()
	for _, e := range m.Entries {
		t.Set(e.Key, e.Value)
	}
	return t.Commit(true)
}
