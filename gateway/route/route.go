// Package route cuts a batch by the partition map as of one seq: (ring point, time) → partition.
//
// It is pure: it neither makes partitions nor waits. Times that no partition covers are returned, so that the caller can
// have them covered and route again by the newer map.
//
//	batch ──map as of seq n──▶ Share{partition 7} Share{partition 8} …      in order of first appearance
//	                      └──▶ times that lie nowhere yet
//
// A batch that lies wholly in one partition, as almost every one does, is not copied: its share aliases its columns.
package route

import (
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Share is the part of a batch that belongs to one partition. Rows keep the order they had in the batch: at equal times
// the later one wins.
type Share struct {
	Partition *topology.Partition

	IDs       []point.SeriesID
	Times     []point.Nanos
	Values    []float64
	Hists     []point.HistRow
	Exemplars []point.ExemplarRow
}

// Cutter cuts batches; reuse it, one goroutine at a time. Shares are good until the next Cut.
type Cutter struct {
	shares []Share
	byID   map[point.PartitionID]int
}

// Cut gives the shares of b, and the times of rows that no partition of m covers (then the shares are incomplete).
func (c *Cutter) Cut(m *topology.Map, b *point.Batch) (shares []Share, uncovered []point.Nanos) {
	c.reset()
	if p, ok := whole(m, b); ok {
		c.shares = append(c.shares, Share{Partition: p, IDs: b.IDs, Times: b.Times, Values: b.Values, Hists: b.Hists, Exemplars: b.Exemplars})
		return c.shares, nil
	}
	ring := func(id point.SeriesID) uint64 { return m.PointOf(b.Dict.Labels(id)) }
	var last *Share
	share := func(id point.SeriesID, t point.Nanos) *Share {
		if last != nil && last.Partition.PointLo == 0 && last.Partition.PointHi == 0 && last.Partition.Contains(0, t) {
			return last
		}
		p, ok := m.Find(ring(id), t)
		if !ok {
			uncovered = append(uncovered, t)
			return nil
		}
		last = c.of(p)
		return last
	}
	for i, id := range b.IDs {
		if s := share(id, b.Times[i]); s != nil {
			s.IDs, s.Times, s.Values = append(s.IDs, id), append(s.Times, b.Times[i]), append(s.Values, b.Values[i])
		}
	}
	for _, h := range b.Hists {
		if s := share(h.ID, h.Time); s != nil {
			s.Hists = append(s.Hists, h)
		}
	}
	for _, e := range b.Exemplars {
		if s := share(e.ID, e.Time); s != nil {
			s.Exemplars = append(s.Exemplars, e)
		}
	}
	return c.shares, uncovered
}

// whole finds the one partition, of the whole ring, that holds everything in b.
func whole(m *topology.Map, b *point.Batch) (*topology.Partition, bool) {
	lo, hi, ok := bounds(b)
	if !ok {
		return nil, false
	}
	p, ok := m.Find(0, lo)
	if !ok || p.PointLo != 0 || p.PointHi != 0 || !p.Contains(0, hi) {
		return nil, false
	}
	return p, true
}

func bounds(b *point.Batch) (lo, hi point.Nanos, ok bool) {
	switch {
	case len(b.Times) > 0:
		lo, hi = b.Times[0], b.Times[0]
	case len(b.Hists) > 0:
		lo, hi = b.Hists[0].Time, b.Hists[0].Time
	case len(b.Exemplars) > 0:
		lo, hi = b.Exemplars[0].Time, b.Exemplars[0].Time
	default:
		return 0, 0, false
	}
	for _, t := range b.Times {
		lo, hi = min(lo, t), max(hi, t)
	}
	for i := range b.Hists {
		lo, hi = min(lo, b.Hists[i].Time), max(hi, b.Hists[i].Time)
	}
	for i := range b.Exemplars {
		lo, hi = min(lo, b.Exemplars[i].Time), max(hi, b.Exemplars[i].Time)
	}
	return lo, hi, true
}

// of gives the share of a partition. The pointer is good until the next call.
func (c *Cutter) of(p *topology.Partition) *Share {
	i, ok := c.byID[p.ID]
	if !ok {
		i = len(c.shares)
		if i < cap(c.shares) {
			c.shares = c.shares[:i+1]
			s := &c.shares[i]
			*s = Share{IDs: s.IDs[:0], Times: s.Times[:0], Values: s.Values[:0], Hists: s.Hists[:0], Exemplars: s.Exemplars[:0]}
		} else {
			c.shares = append(c.shares, Share{})
		}
		c.shares[i].Partition = p
		c.byID[p.ID] = i
	}
	return &c.shares[i]
}

// reset clears the shares. One that aliased a batch must not be appended to: its columns are released.
func (c *Cutter) reset() {
	if len(c.shares) == 1 && len(c.byID) == 0 {
		c.shares[0] = Share{}
	}
	c.shares = c.shares[:0]
	if c.byID == nil {
		c.byID = map[point.PartitionID]int{}
	}
	clear(c.byID)
}
