package master

import (
	"math"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// expected are the recent rates of tables' columns, in bytes a second. From them follows the load that a partition will bring which accepts writes now or soon,
// and servers are chosen by that load: a partition that gets a gigabyte in a quarter of an hour counts as much as some dozens that get a few megabytes in two
// hours.
//
//	bytes in the next 2 h of a partition, by the mean of the last 3 h ─▶ the nearest power of two of SplitBytes/64, at least 1: its weight
//
// Powers of two, because the forecasts of partitions that are cut to one size differ by a tenth or two: these then weigh the same, and go round the servers as
// if they were counted. The least weight is 1, since each partition costs something. A partition of unknown load, as of a new table, has the mean weight of the
// others; where no load is known at all, partitions are counted.
type expected struct {
	rates   map[string][]columnRate // by table
	unit    float64                 // bytes
	unknown int64                   // the weight of a partition of which nothing is known
	now     point.Nanos
}

// columnRate is a column's bytes a second.
type columnRate struct {
	column
	bytes float64
}

const (
	// weightsSplit is how many of the least weight make a partition of SplitBytes.
	weightsSplit = 64
	// weightMax bounds a weight, so that sums are far from overflow.
	weightMax = 1 << 30
	// expectFor bounds the part of a partition's time that counts, from now or its beginning on: a wide one gets its rows over all of its time, and loads are
	// compared over some hours.
	expectFor = point.Nanos(2 * 3600e9)
	// rowBytesUnknown is the size of a row at rest while it is not known: then few have come.
	rowBytesUnknown = 16
)

func newExpected(s *State, set Settings) expected {
	e := expected{rates: map[string][]columnRate{}, unit: float64(set.SplitBytes) / weightsSplit, unknown: 1, now: s.Now}
	if set.SplitBytes <= 0 {
		e.unit = float64(splitBytesDefault) / weightsSplit
	}
	for table, g := range s.Growth {
		for _, c := range g.Columns() {
			if rate, ok := c.Rows.Lately(s.Now); ok {
				perRow := c.BytesPerRow
				if perRow == 0 {
					perRow = rowBytesUnknown
				}
				e.rates[table] = append(e.rates[table], columnRate{column{c.Lo, c.Hi}, rate * perRow})
			}
		}
	}
	return e
}

// learn computes the weight of partitions of which nothing is known: the mean of all others that accept writes now or soon.
func (v *view) learn() {
	sum, n := int64(0), int64(0)
	for _, m := range v.Tables {
		if len(v.expected.rates[m.Table]) == 0 {
			continue
		}
		for p := range m.All() {
			if v.past(p) {
				continue
			}
			if w, ok := v.expected.known(m.Table, p); ok {
				sum, n = sum+w, n+1
			}
		}
	}
	v.expected.unknown = max(sum/max(n, 1), 1)
}

// weight is the load that a partition is expected to bring.
func (v *view) weight(table string, p *topology.Partition) int64 {
	if w, ok := v.expected.known(table, p); ok {
		return w
	}
	return v.expected.unknown
}

// known is the weight of a partition; false: nothing is known of its ring range.
func (e *expected) known(table string, p *topology.Partition) (weight int64, ok bool) {
	rate := 0.0
	for _, c := range e.rates[table] {
		if share := c.in(p); share > 0 {
			rate, ok = rate+share*c.bytes, true
		}
	}
	if !ok {
		return 0, false
	}
	bytes := rate * max(min(float64(p.TimeHi)-float64(max(p.TimeLo, e.now)), float64(expectFor)), 0) / 1e9
	return int64(min(math.Exp2(math.Round(math.Log2(max(bytes/e.unit, 1)))), weightMax)), true
}

// in is the share of a column that lies in a partition's ring range, from 0 to 1.
func (c column) in(p *topology.Partition) float64 {
	end := func(hi uint64) float64 {
		if hi == 0 {
			return 1 << 64
		}
		return float64(hi)
	}
	lo, hi := max(float64(c.lo), float64(p.PointLo)), min(end(c.hi), end(p.PointHi))
	return max(hi-lo, 0) / (end(c.hi) - float64(c.lo))
}
