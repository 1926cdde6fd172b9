package master

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Growth is the number of rows that each column of a table got over time, computed from the sizes of its partitions: presplits are planned from it. Only
// partitions whose time includes now, or did a moment ago, count: late rows, and rows of the future, say nothing about the load to come. A Growth never
// changes.
type Growth struct {
	at      point.Nanos                    // of the newest look
	rows    map[point.PartitionID]uint64   // of the partitions that counted then
	columns map[column]*presplit.History   // in rows per second
	perRow  map[column]float64             // bytes at rest, with those that each partition repeats
	weights map[column]presplit.Weight     // the two apart
	unknown map[point.PartitionID]struct{} // those of which no size was known then
}

// column is a range of the ring, [lo, hi); hi 0 is 2^64.
type column struct{ lo, hi uint64 }

const (
	// growthGapMax is the longest time between two looks whose difference gives a rate.
	growthGapMax = point.Nanos(10 * 60e9)
	// growthLate is how long after its end a partition still counts as one whose time includes now.
	growthLate = point.Nanos(5 * 60e9)
	// perRowFrom are the rows from which the bytes of a row are known.
	perRowFrom = 1000
	// columnsMax bounds the columns whose growth is recorded. Tables with more are not presplit.
	columnsMax = 64
)

// columnsAt are the columns of a table at a time.
func columnsAt(m *topology.Map, at point.Nanos) []column {
	ranges := m.RangesAt(at)
	out := make([]column, len(ranges))
	for i, r := range ranges {
		out[i].lo = r.Lo
		if i+1 < len(ranges) {
			out[i].hi = ranges[i+1].Lo
		}
	}
	return out
}

func (c column) has(point uint64) bool { return c.lo <= point && (c.hi == 0 || point < c.hi) }

// is reports whether a partition covers exactly this column.
func (c column) is(p *topology.Partition) bool { return p.PointLo == c.lo && p.PointHi == c.hi }

// Observed returns the growth with one more look at the sizes of a table's partitions. A nil Growth is empty.
func (g *Growth) Observed(now point.Nanos, m *topology.Map, sizes map[lease.Partition]Size) *Growth {
	cols := columnsAt(m, now)
	out := &Growth{at: now, rows: map[point.PartitionID]uint64{}, columns: map[column]*presplit.History{}, perRow: map[column]float64{}, weights: map[column]presplit.Weight{}, unknown: map[point.PartitionID]struct{}{}}
	if len(cols) > columnsMax {
		return out
	}
	if g == nil {
		g = &Growth{}
	}
	since := g.at
	comparable := since != 0 && since < now && now-since <= growthGapMax
	if !comparable {
		since = now
	}
	for _, c := range cols {
		h := g.columns[c].Clone()
		out.columns[c] = h
		grown, known := uint64(0), comparable
		for _, p := range m.Overlapping(since-growthLate, now) {
			if !c.has(p.PointLo) {
				continue
			}
			size, ok := sizes[lease.Partition{Table: m.Table, ID: p.ID}]
			before, had := g.rows[p.ID]
			switch {
			case !ok && !had: // never written to, as far as is known; else its first size is no growth
				out.unknown[p.ID] = struct{}{}
				continue
			case !ok: // its server is away
				known = false
				out.rows[p.ID] = before
				continue
			}
			out.rows[p.ID] = size.Rows
			_, missed := g.unknown[p.ID]
			switch {
			case inherits(m, p, sizes): // rows that are moved here are no growth, but look like new ones
				known = known && p.TimeHi <= now
			case had && size.Rows > before:
				grown += size.Rows - before
			case !had && (missed && p.TimeLo < since-growthGapMax || !missed && p.TimeLo < since-growthLate):
				known = false // it is older than the time between the looks
			case !had:
				grown += size.Rows
			}
		}
		if known {
			h.Observe(since, now, float64(grown))
		}
		if b, w, ok := weigh(now, m, c, func(id point.PartitionID) Size { return sizes[lease.Partition{Table: m.Table, ID: id}] }); ok {
			out.perRow[c], out.weights[c] = b, w
		} else if b, ok := g.perRow[c]; ok {
			out.perRow[c], out.weights[c] = b, g.weights[c]
		}
	}
	return out
}

// inherits reports whether rows of another partition may be moving into p.
func inherits(m *topology.Map, p *topology.Partition, sizes map[lease.Partition]Size) bool {
	for _, q := range m.Overlapping(p.TimeLo, p.TimeHi-1) {
		if !slices.Contains(q.Into, p.ID) {
			continue
		}
		if size, ok := sizes[lease.Partition{Table: m.Table, ID: q.ID}]; !ok || size.MaxTime >= p.TimeLo {
			return true
		}
	}
	return false
}

// weigh computes the bytes of a column's row at rest, with and without those that each partition repeats: from the newest partitions that ended a while ago,
// or, before there is one, from the one whose time includes now.
func weigh(now point.Nanos, m *topology.Map, c column, size func(point.PartitionID) Size) (perRow float64, w presplit.Weight, ok bool) {
	const few, far = 8, 24 * 3600e9
	var ended []*topology.Partition
	var sum Size
	for _, p := range m.Overlapping(now-far, now) {
		of := size(p.ID)
		if !c.has(p.PointLo) || of.Rows < perRowFrom {
			continue
		}
		if p.TimeHi <= now-2*growthLate {
			ended = append(ended, p)
		} else {
			sum.Bytes, sum.Rows = sum.Bytes+of.Bytes, sum.Rows+of.Rows
		}
	}
	slices.SortFunc(ended, func(a, b *topology.Partition) int { return cmp.Compare(b.TimeHi, a.TimeHi) })
	var closed []presplit.Weighed
	for i, p := range ended {
		of := size(p.ID)
		if i == 0 {
			sum = Size{}
		}
		if i < few {
			sum.Bytes, sum.Rows = sum.Bytes+of.Bytes, sum.Rows+of.Rows
		}
		closed = append(closed, presplit.Weighed{Rows: float64(of.Rows), Bytes: float64(of.Bytes)})
	}
	if sum.Rows == 0 || sum.Bytes <= 0 {
		return 0, w, false
	}
	perRow = float64(sum.Bytes) / float64(sum.Rows)
	if w, ok = presplit.WeightOf(closed); !ok {
		w = presplit.Weight{PerRow: perRow}
	}
	return perRow, w, true
}

// Weigh learns the size of the column's row at rest, and of the bytes that each partition repeats, from closed partitions. Without any it is the recorded size
// of a row.
func (c ColumnGrowth) Weigh(now point.Nanos, m *topology.Map, size func(point.PartitionID) Size) presplit.Weight {
	if _, w, ok := weigh(now, m, column{c.Lo, c.Hi}, size); ok {
		return w
	}
	return presplit.Weight{PerRow: c.BytesPerRow}
}

// GrowthPrefix covers the rows of the tables' growth; each is a list of columns, sorted, with a presplit.History for each:
//
//	version 1 │ per column: lo, hi, bytes of a row (float64), length of the history (uint32), the history        little-endian
const GrowthPrefix = "growth/"

const growthVersion = 1

// ColumnGrowth is the growth of one column of a table: of the ring range [Lo, Hi), Hi 0 is 2^64.
type ColumnGrowth struct {
	Lo, Hi uint64
	// BytesPerRow is the size of a row at rest, with its share of what each partition repeats; 0: not known yet.
	BytesPerRow float64
	// Rows is the history of the column, in rows per second. It belongs to the growth.
	Rows *presplit.History
}

// Columns lists the columns in the order of the ring.
func (g *Growth) Columns() []ColumnGrowth {
	var out []ColumnGrowth
	for c, h := range g.columns {
		out = append(out, ColumnGrowth{c.lo, c.hi, g.perRow[c], h})
	}
	slices.SortFunc(out, func(a, b ColumnGrowth) int { return cmp.Compare(a.Lo, b.Lo) })
	return out
}

// Encode gives the row's value.
func (g *Growth) Encode() []byte {
	b := []byte{growthVersion}
	for _, c := range g.Columns() {
		h := c.Rows.Append(nil)
		b = binary.LittleEndian.AppendUint64(b, c.Lo)
		b = binary.LittleEndian.AppendUint64(b, c.Hi)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(c.BytesPerRow))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(h)))
		b = append(b, h...)
	}
	return b
}

// DecodeGrowth reads a row. The first look after it counts as the first one: the growth meanwhile is not known. Errors are Corrupt.
func DecodeGrowth(b []byte) (*Growth, error) {
	corrupt := func(what string) (*Growth, error) {
		return nil, fault.Errorf(fault.Corrupt, "a record of a table's growth, of %d bytes, %s", len(b), what)
	}
	if len(b) == 0 || b[0] != growthVersion {
		return corrupt("does not begin with version 1")
	}
	g := &Growth{columns: map[column]*presplit.History{}, perRow: map[column]float64{}, weights: map[column]presplit.Weight{}}
	const header = 8 + 8 + 8 + 4
	for rest := b[1:]; len(rest) > 0; {
		if len(rest) < header || len(g.columns) == columnsMax {
			return corrupt("ends within a column, or has too many")
		}
		c := column{binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint64(rest[8:])}
		bytes, n := math.Float64frombits(binary.LittleEndian.Uint64(rest[16:])), int(binary.LittleEndian.Uint32(rest[24:]))
		if rest = rest[header:]; n > len(rest) || !(bytes >= 0) || math.IsInf(bytes, 1) {
			return corrupt("has values out of range")
		}
		h, err := presplit.DecodeHistory(rest[:n])
		if err != nil {
			return nil, err
		}
		g.columns[c] = h
		if rest = rest[n:]; bytes > 0 {
			g.perRow[c], g.weights[c] = bytes, presplit.Weight{PerRow: bytes}
		}
	}
	return g, nil
}
