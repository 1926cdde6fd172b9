package fanout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Stats implements query.Source. Each partition is there once, with the most that one of its copies has: one that is being filled has less.
//
// Servers do not say which series they share. Their counts are added up and divided by the copies that a partition has, and are at least the largest of one server: right
// where all servers have all partitions, or each series has rows in one of them. Label values are the most that one server has. A warning reports this if several servers
// have series.
func (s *Source) Stats(ctx context.Context, table string, topN int) (*peer.Stats, error) {
	found, err := everyServer(ctx, s, table, 1, func(ctx context.Context, st peer.Storage) (*peer.Stats, error) {
		return st.Stats(ctx, table, listed(topN))
	})
	if err != nil {
		return nil, err
	}
	sum := new(peer.Stats)
	for _, st := range found {
		sum.ByPartition = append(sum.ByPartition, st.ByPartition...)
		sum.Staged = append(sum.Staged, st.Staged...)
		sum.MinTime, sum.MaxTime = covering(sum.MinTime, sum.MaxTime, st.MinTime, st.MaxTime)
	}
	slices.SortFunc(sum.Staged, func(a, b peer.StagedStats) int { return strings.Compare(a.Server, b.Server) })
	copies := perPartition{entries: withRows(sum.ByPartition)}
	sum.ByPartition = onePerPartition(sum.ByPartition)
	copies.partitions = withRows(sum.ByPartition)
	sum.Partitions = len(sum.ByPartition)
	if knowing := addCounts(sum, found, copies, topN); topN > 0 && knowing > 1 {
		query.Warn(ctx, fmt.Sprintf("the counts of series are those of %d storage servers, divided by the copies of each row: a series with rows in partitions of different servers may count more than once; of label values it is the most that one server has", knowing))
	}
	return sum, nil
}

// perPartition says how many partitions have rows, and how many the servers named that do.
type perPartition struct{ partitions, entries int }

func withRows(ps []peer.PartitionStats) (n int) {
	for i := range ps {
		if ps[i].Rows > 0 {
			n++
		}
	}
	return n
}

// once is a sum of all copies for one, rounded up.
func (c perPartition) once(sum uint64) uint64 {
	if c.entries == 0 {
		return sum
	}
	return (sum*uint64(c.partitions) + uint64(c.entries) - 1) / uint64(c.entries)
}

// addCounts adds up the counts of all servers, and returns how many have series.
func addCounts(sum *peer.Stats, found []*peer.Stats, copies perPartition, topN int) (knowing int) {
	names, values, bytes, pairs := tallies{}, tallies{}, tallies{}, tallies{}
	var series, head, rows, size, segments tally
	for _, st := range found {
		if st.Series > 0 {
			knowing++
		}
		series.add(st.Series)
		head.add(st.HeadRows)
		rows.add(st.SegmentRows)
		size.add(st.SegmentBytes)
		segments.add(uint64(st.Segments))
		sum.LabelPairs = max(sum.LabelPairs, st.LabelPairs)
		names.add(st.SeriesByName)
		values.add(st.ValuesByLabel)
		bytes.add(st.BytesByLabel)
		pairs.add(st.SeriesByPair)
	}
	sum.Series, sum.HeadRows, sum.SegmentRows, sum.SegmentBytes = series.of(copies), head.of(copies), rows.of(copies), size.of(copies)
	sum.Segments = int(segments.of(copies))
	of := func(t tally) uint64 { return t.of(copies) }
	most := func(t tally) uint64 { return t.most }
	sum.SeriesByName, sum.ValuesByLabel = names.top(topN, of), values.top(topN, most)
	sum.BytesByLabel, sum.SeriesByPair = bytes.top(topN, most), pairs.top(topN, of)
	return knowing
}

// tally is the counts of several servers of one thing.
type tally struct{ sum, most uint64 }

func (t *tally) add(n uint64) { t.sum, t.most = t.sum+n, max(t.most, n) }

// of is how many there are, where each has so many copies.
func (t tally) of(c perPartition) uint64 { return max(t.most, c.once(t.sum)) }

// tallies is the tallies of names.
type tallies map[string]tally

func (c tallies) add(from []peer.NameCount) {
	for _, n := range from {
		t := c[n.Name]
		t.add(n.Count)
		c[n.Name] = t
	}
}

// top gives the n largest.
func (c tallies) top(n int, of func(tally) uint64) []peer.NameCount {
	out := make([]peer.NameCount, 0, len(c))
	for _, name := range slices.Sorted(maps.Keys(c)) {
		out = append(out, peer.NameCount{Name: name, Count: of(c[name])})
	}
	slices.SortStableFunc(out, func(a, b peer.NameCount) int { return cmp.Compare(b.Count, a.Count) })
	return out[:min(n, len(out))]
}

// listed is how many of the largest each server lists, for the n largest of all: an entry that is large in sum may be below
// the n largest of a server, and its count there must not be lost.
func listed(n int) int {
	if n == 0 {
		return 0
	}
	return max(10*n, 1000)
}

// onePerPartition makes one of the answers of several servers about a partition. A copy may have rows whose times are not known yet: they wait to be applied.
func onePerPartition(all []peer.PartitionStats) []peer.PartitionStats {
	slices.SortStableFunc(all, func(a, b peer.PartitionStats) int { return cmp.Compare(a.ID, b.ID) })
	out := all[:0]
	for _, p := range all {
		if len(out) == 0 || out[len(out)-1].ID != p.ID {
			out = append(out, p)
			continue
		}
		to := &out[len(out)-1]
		to.Rows, to.Bytes = max(to.Rows, p.Rows), max(to.Bytes, p.Bytes)
		to.MinTime, to.MaxTime = covering(to.MinTime, to.MaxTime, p.MinTime, p.MaxTime)
		to.Damaged, to.Differs, to.Unflushed = cmp.Or(to.Damaged, p.Damaged), cmp.Or(to.Differs, p.Differs), cmp.Or(to.Unflushed, p.Unflushed)
		to.Transfers = append(to.Transfers, p.Transfers...)
	}
	return out
}

// covering is the least time that covers two; 0 to 0: no rows with a known time.
func covering(lo, hi, lo2, hi2 point.Nanos) (from, to point.Nanos) {
	switch {
	case lo2 == 0 && hi2 == 0:
		return lo, hi
	case lo == 0 && hi == 0:
		return lo2, hi2
	}
	return min(lo, lo2), max(hi, hi2)
}
