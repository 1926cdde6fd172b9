package partition

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/errors/oserror"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/segment"
)

// dropPrefix is the prefix of notes about dropped placements; their log and files may still be there.
const dropPrefix = "x/"

// DropKey is the key of a placement's drop note.
func DropKey(id point.PlacementID) []byte {
	return fmt.Appendf(nil, "%s%016x", dropPrefix, uint64(id))
}

// Dropping lists the placements with an unfinished drop of an earlier process.
func Dropping(b *brick.Brick) (ids []point.PlacementID, err error) {
	err = b.Scan([]byte(dropPrefix), func(k, _ []byte) error {
		id, err := strconv.ParseUint(string(k[len(dropPrefix):]), 16, 64)
		if err != nil {
			return fault.Errorf(fault.Corrupt, "the catalogue notes %q as being dropped", k)
		}
		ids = append(ids, point.PlacementID(id))
		return nil
	})
	return ids, err
}

// ResumeDrop has the files of a placement with an unfinished drop removed piece by piece, then its log records and the note. Until then the log
// must be read without them.
func ResumeDrop(b *brick.Brick, id point.PlacementID) {
	b.RemoveLater(brick.Dropped{Placement: id, Gone: func() error {
		if err := b.Drop(id); err != nil { // the process before may have ended before it did
			return err
		}
		return forgetDrop(b, id)
	}})
}

// forgetDrop deletes the note about a placement whose files are gone.
func forgetDrop(b *brick.Brick, id point.PlacementID) error {
	batch := b.NewBatch()
	batch.Delete(DropKey(id))
	return batch.Commit(false) // needs no fsync: dropping twice is harmless
}

// leftover classifies a segment file that the catalogue does not list.
type leftover int

const (
	superseded  leftover = iota // its rows are in the partition: of a flush or compaction that was not committed, or was replaced
	foreign                     // not written by this partition, or unreadable
	unaccounted                 // it holds frames that neither the catalogue nor the log has: one of them lost something
)

// judge is pure: info is the file's description of itself, ends is the partition's without it.
func judge(ident *Identity, info *segment.Info, ends []point.EpochEnd) leftover {
	if info.Table != ident.Table || info.Partition != ident.Partition {
		return foreign
	}
	if covers(ends, info.Ends) {
		return superseded
	}
	return unaccounted
}

// DoList is the remedy where a directory cannot be listed.
const DoList = "see that the server's user may read it and that its limit of open files is high enough, and start the server again"

// Tidy ends the recovery of a partition, once the log was replayed: it carries out the deletions in the log, and looks at files in
// the partition's directory that the catalogue does not list. Leftovers of a crashed flush or compaction are recognised by their
// description, and removed: their rows are in the listed segments or in the log. A file of unknown origin is put aside. A segment
// with rows that are nowhere else means that the catalogue or the log lost something: then the partition is damaged, and its files
// are not touched. strict is false for a log that promises nothing after a power cut (brick's NoSync): there such a file is put
// aside.
func (p *Partition) Tidy(strict bool) error {
	if p.Damaged() != nil {
		return nil
	}
	if err := p.redelete(); err != nil {
		return err
	}
	b := p.deps.Brick
	listed := map[string]bool{}
	for _, g := range p.Segments() {
		listed[b.FS().PathBase(b.SegmentPath(p.ident.Placement, g.ID))] = true
	}
	dir := b.SegmentDir(p.ident.Placement)
	names, err := b.FS().List(dir)
	switch {
	case oserror.IsNotExist(err):
		return nil // no segment was ever written here
	case isDamage(err): // there may be surplus, or a segment that catalogue and log do not know
		p.damage(fault.Wrap(err, fault.Corrupt, "list %s", dir))
		return nil
	case err != nil:
		return fault.Errorf(fault.Unavailable, "partition %s/%d: list its directory %s: %w; %s", p.ident.Table, p.ident.Partition, dir, err, DoList)
	}
	slices.Sort(names)
	for _, name := range names {
		if listed[name] {
			continue
		}
		if err := p.tidyFile(b.FS().PathJoin(dir, name), strict); err != nil {
			return err
		}
		if p.Damaged() != nil {
			return nil
		}
	}
	return nil
}

func (p *Partition) tidyFile(path string, strict bool) error {
	b := p.deps.Brick
	switch {
	case strings.HasSuffix(path, segment.TempSuffix): // never published, so nothing depends on it
		return p.removeLeftover(path, "of a segment that was not finished")
	case isSurplus(path):
		p.surplus.Store(true)
		return nil // its owner hands it over and removes it
	case p.isAdopting(path):
		return p.removeLeftover(path, "of a leader that was not adopted yet")
	case !strings.HasSuffix(path, ".seg"):
		return b.PutAside(path, "a file in the directory of a partition that is no segment")
	}
	r, err := segment.Open(b.FS(), path, segment.Info{}, p.deps.Cache)
	if err != nil {
		if !isDamage(err) && !fault.Is(err, fault.Invalid) {
			return fault.Annotate(err, "partition %s/%d", p.ident.Table, p.ident.Partition)
		}
		return b.PutAside(path, "a segment that the catalogue does not list, and that cannot be read")
	}
	info := r.Info()
	if err := r.Close(); err != nil {
		return fault.Wrap(err, fault.Unavailable, "close %s", path)
	}
	switch what := judge(&p.ident, &info, p.Ends()); {
	case what == superseded:
		return p.removeLeftover(path, "that holds nothing the listed ones and the log do not")
	case what == foreign:
		return b.PutAside(path, "a segment of another partition")
	case !strict:
		return b.PutAside(path, "a segment of frames that the log lost with the power")
	}
	p.damage(fault.Errorf(fault.Corrupt, "segment %s holds frames up to %v, but catalogue and log know only those up to %v", path, info.Ends, p.Ends()))
	return nil
}

// isAdopting reports whether a file is of a segment that was being adopted.
func (p *Partition) isAdopting(path string) bool {
	p.mu.Lock()
	id := p.mu.state.Adopting
	p.mu.Unlock()
	return id != nil && path == p.deps.Brick.SegmentPath(p.ident.Placement, *id)
}

func (p *Partition) removeLeftover(path, what string) error {
	p.log.Info("removing a segment file "+what, "file", path)
	return fault.Wrap(p.deps.Brick.FS().Remove(path), fault.Unavailable, "remove %s", path)
}
