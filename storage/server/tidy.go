package server

import (
	"strconv"

	"github.com/cockroachdb/errors/oserror"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
)

// tidy goes on with the drops that an earlier process began, and puts aside files and log records without an entry in the
// catalogue. It runs when catalogue and log were read whole and agree: only then can it decide that data is
// superfluous.
func (s *Server) tidy() error {
	known := map[string]bool{}
	for _, id := range s.dropping {
		s.deps.Log.Info("ending the drop of a placement", "placement", id)
		partition.ResumeDrop(s.deps.Brick, id)
		known[id.String()] = true
	}
	for _, t := range s.tables() {
		for _, p := range t.all() {
			known[p.Identity().Placement.String()] = true
			if err := p.Tidy(!s.deps.Brick.NoSync()); err != nil {
				return err
			}
		}
	}
	// Put aside, not deleted: a catalogue that lost an entry would otherwise cost the partition's files too. Files that
	// lie in lost+found are reported by Stats until a person removes them.
	if err := s.tidySegments(known); err != nil {
		return err
	}
	for id, n := range s.unknown {
		if err := s.deps.Brick.PutLogAside(id); err != nil {
			return err
		}
		s.deps.Log.Error("the log holds records of a placement that the catalogue does not know: they were put aside", "placement", id, "records", n)
	}
	return nil
}

// tidySegments puts aside the directories of placements without an entry in the catalogue.
func (s *Server) tidySegments(known map[string]bool) error {
	b := s.deps.Brick
	all := b.FS().PathDir(b.SegmentDir(0))
	names, err := b.FS().List(all)
	if oserror.IsNotExist(err) {
		return nil // no segment was ever written
	}
	if err != nil {
		return fault.Errorf(fault.Unavailable, "list the directory of all partitions' segments %s: %w; %s", all, err, partition.DoList)
	}
	for _, name := range names {
		id, err := strconv.ParseUint(name, 16, 64)
		if err != nil || len(name) != 16 || known[name] {
			continue
		}
		dir := b.SegmentDir(point.PlacementID(id))
		if files, err := b.FS().List(dir); err == nil && len(files) == 0 {
			if err := b.RemoveSegmentDir(point.PlacementID(id)); err != nil {
				return err
			}
			continue
		}
		if err := b.PutAside(dir, "segments of a placement that the catalogue does not know"); err != nil {
			return err
		}
	}
	return nil
}
