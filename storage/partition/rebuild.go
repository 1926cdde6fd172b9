package partition

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Rebuilt is a catalogue entry made from the segments of a placement, with the problems found.
type Rebuilt struct {
	State   *State // nil: no source identifies the partition
	Changed bool   // it differs from the entry passed in
	Found   bool   // there are segments, readable or not
	Problem error  // why the entry lacks rows: its partition is closed; nil: it lacks none
}

// Rebuild makes the catalogue entry of a placement from a given one, perhaps old or missing, from the segments in dir, and from
// the log: after(seq) returns up to which seq the log continues from there, and the log's last one. An entry that agrees with log
// and segments stays as it is if it is exact, that is the newest there was, or no segment is newer. A segment that is missing or
// damaged stays in the entry if it was listed.
func Rebuild(fs vfs.FS, dir string, id point.PlacementID, known *State, exact bool, cache *segment.Cache, after func(seq uint64) (to, last uint64)) Rebuilt {
	found, bad := readInfos(fs, dir, cache)
	out := Rebuilt{State: known, Found: len(found) > 0 || bad != nil}
	if known != nil {
		out.Problem = lacking(known, found, after)
		if out.Problem == nil && (exact || bad != nil) || known.Incomplete != "" {
			return out
		}
	}
	st, err := describe(id, known, found)
	if err != nil {
		out.Problem = orElse(bad, err)
		return out
	}
	found = slices.DeleteFunc(found, func(i segment.Info) bool { return i.Table != st.Table || i.Partition != st.Partition })
	chain := bestChain(found)
	switch {
	case known == nil:
	case !covers(endsOf(chain), known.Ends):
		return out // a listed segment is missing: opening reports it
	case out.Problem == nil && covers(known.Ends, endsOf(chain)):
		return out
	}
	// Also if the log holds all frames of newer segments: deletions in the log are of rows in segments, and replayed rows are in none.
	st.Segments, st.Ends, st.NextSegment = withDeletions(st, chain, known), endsOf(chain), 1
	if n := len(st.Ends); n > 0 {
		st.Flushed = point.Serial(st.Ends[n-1])
	}
	for _, i := range found {
		st.NextSegment = max(st.NextSegment, i.ID.Seq+1)
	}
	if known != nil {
		st.NextSegment = max(st.NextSegment, known.NextSegment)
	}
	out.State, out.Changed = st, true
	if out.Problem = orElse(bad, lacking(st, found, after)); out.Problem != nil {
		st.Incomplete = out.Problem.Error()
	}
	return out
}

// describe begins an entry with the partition's identity.
func describe(id point.PlacementID, known *State, found []segment.Info) (*State, error) {
	switch {
	case known != nil:
		return &State{Identity: known.Identity, Deleted: known.Deleted}, nil
	case len(found) == 0:
		return nil, fault.Errorf(fault.Corrupt, "no segment names its partition")
	case !found[0].Described():
		return nil, fault.Errorf(fault.Corrupt, "its segments are of table %q, partition %d, and older than the times of partitions in segments",
			found[0].Table, found[0].Partition)
	}
	return &State{Identity: identityOf(id, &found[0])}, nil
}

func orElse(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// lacking reports the gap of an entry: a listed segment, or frames that are neither in its segments nor in the log, although a
// segment or the log has later ones.
func lacking(st *State, found []segment.Info, after func(seq uint64) (to, last uint64)) error {
	for _, g := range st.Segments {
		if !slices.ContainsFunc(found, func(i segment.Info) bool { return i.ID == g.ID && i.Checksum == g.Checksum }) {
			return fault.Errorf(fault.Corrupt, "segment %v is missing or damaged", g.ID)
		}
	}
	to, last := after(st.Flushed.Seq)
	for _, i := range found {
		for _, e := range i.Ends {
			last = max(last, e.Seq)
		}
	}
	if last > to {
		return fault.Errorf(fault.Corrupt, "frames %d to %d are neither in its segments nor in the log", to+1, last)
	}
	return nil
}

// readInfos reads the descriptions in the segments of dir, by rising id, each once. An unreadable one is an error beside the others.
func readInfos(fs vfs.FS, dir string, cache *segment.Cache) (found []segment.Info, bad error) {
	names, err := fs.List(dir)
	if oserror.IsNotExist(err) {
		return nil, nil // no segment was ever written here
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "list %s", dir)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".seg") {
			continue
		}
		path := fs.PathJoin(dir, name)
		info, err := segment.Describe(fs, path, cache)
		if err != nil {
			bad = orElse(bad, err)
			continue
		}
		found = append(found, info)
	}
	slices.SortFunc(found, func(a, b segment.Info) int {
		return cmp.Or(cmp.Compare(a.ID.Epoch, b.ID.Epoch), cmp.Compare(a.ID.Seq, b.ID.Seq))
	})
	return slices.CompactFunc(found, func(a, b segment.Info) bool { return a.ID == b.ID }), bad
}

// bestChain returns the chain that holds most: a major and the minors that are based on each other. Of two that hold the same, the
// one with the newer major is the other one compacted. found is by rising id. Two minors may have one base: a later leader's replaces one that only this placement
// had, whose file a crash may leave.
func bestChain(found []segment.Info) (best []segment.Info) {
	for i := range found {
		if found[i].Major {
			best = bestOn(found[i:i+1:i+1], found, best)
		}
	}
	return best
}

// bestOn returns the best of the chains that begin with one, and of another.
func bestOn(chain, found, best []segment.Info) []segment.Info {
	grown := false
	for i := range found {
		next := &found[i]
		if next.Major || next.Base != chain[len(chain)-1].ID || slices.ContainsFunc(chain, func(g segment.Info) bool { return g.ID == next.ID }) {
			continue
		}
		grown = true
		best = bestOn(append(slices.Clip(chain), *next), found, best)
	}
	if !grown && covers(endsOf(chain), endsOf(best)) {
		return chain
	}
	return best
}

func endsOf(chain []segment.Info) (ends []point.EpochEnd) {
	for _, i := range chain {
		ends = raise(ends, i.Ends...)
	}
	return ends
}

// covers reports whether a holds every frame that b does.
func covers(a, b []point.EpochEnd) bool {
	return !slices.ContainsFunc(b, func(e point.EpochEnd) bool {
		return !slices.ContainsFunc(a, func(h point.EpochEnd) bool { return h.Epoch == e.Epoch && h.Seq >= e.Seq })
	})
}

// withDeletions gives each segment of a chain its previously listed deletions, and those that later segments brought, which st
// remembers too.
func withDeletions(st *State, chain []segment.Info, known *State) []SegmentState {
	out := make([]SegmentState, len(chain))
	for i, info := range chain {
		out[i].Info = info
		if known != nil {
			for _, g := range known.Segments {
				if g.ID == info.ID {
					out[i] = g
				}
			}
		}
		st.bring(&info, out[:i])
	}
	return out
}

// identityOf returns the partition's identity as a segment states it.
func identityOf(id point.PlacementID, i *segment.Info) Identity {
	return Identity{Table: i.Table, Partition: i.Partition, Placement: id,
		TimeLo: i.Range.TimeLo, TimeHi: i.Range.TimeHi, PointLo: i.Range.PointLo, PointHi: i.Range.PointHi}
}
