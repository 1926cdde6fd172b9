package figures

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A column of the ring is uneven if the newest partitions of its table hold this many times its share of their rows, and these are enough to judge by.
const (
	unevenFrom = 2.0
	unevenRows = 100_000
	unevenOver = 8 // times that partitions cover, from the newest with rows
)

// UnevenColumn is a column of a table's ring that gets far more rows than its share.
type UnevenColumn struct {
	Newest *topology.Partition // the newest partition of it
	times  float64             // its rows against its share
}

// Uneven returns the column of the ring that gets most against its share, if that is far more; nil: none does. rows are those of partitions, as far as they are known.
func Uneven(m *topology.Map, rows map[point.PartitionID]uint64) *UnevenColumn {
	type span struct{ lo, hi point.Nanos }
	groups := map[span][]*topology.Partition{}
	for p := range m.All() {
		if p.State != topology.Unload && rows[p.ID] > 0 {
			at := span{p.TimeLo, p.TimeHi}
			groups[at] = append(groups[at], p)
		}
	}
	times := slices.SortedFunc(maps.Keys(groups), func(a, b span) int { return cmp.Compare(b.lo, a.lo) })
	type column struct{ lo, hi uint64 }
	of, newest, all := map[column]uint64{}, map[column]*topology.Partition{}, uint64(0)
	for _, at := range times[:min(len(times), unevenOver)] {
		for _, p := range groups[at] {
			c := column{p.PointLo, p.PointHi}
			if of[c] += rows[p.ID]; newest[c] == nil {
				newest[c] = p
			}
			all += rows[p.ID]
		}
	}
	var hot *UnevenColumn
	for c, n := range of {
		share := (float64(c.hi-c.lo-1) + 1) / math.Exp2(64) // a hi of 0 is 2^64
		if times := float64(n) / (share * float64(all)); all >= unevenRows && times >= unevenFrom && (hot == nil || times > hot.times) {
			hot = &UnevenColumn{newest[c], times}
		}
	}
	return hot
}

// RowsOf are the rows of partitions in the answer of a table's servers.
func RowsOf(s *peer.Stats) map[point.PartitionID]uint64 {
	rows := make(map[point.PartitionID]uint64, len(s.ByPartition))
	for i := range s.ByPartition {
		rows[s.ByPartition[i].ID] = s.ByPartition[i].Rows
	}
	return rows
}

// String says where the column lies and how uneven it is: a sentence that begins small and does not end.
func (u *UnevenColumn) String() string {
	return fmt.Sprintf("the column %s of the ring gets %.1f times its share of the rows", columnText(u.Newest), u.times)
}

func columnText(p *topology.Partition) string {
	hi := 1.0
	if p.PointHi != 0 {
		hi = RingShare(p.PointHi)
	}
	return fmt.Sprintf("%.1f–%.1f %%", 100*RingShare(p.PointLo), 100*hi)
}

// hottest bounds: series that are read to find the prefix with most of them, and prefixes that are counted.
const (
	hottestSeries   = 200_000
	hottestPrefixes = 1 << 16
)

// Hottest names the prefix with most series of a partition, by the table's ring rule; without one, the metric name. It reads some of the series where there are very many.
func Hottest(ctx context.Context, st peer.Storage, m *topology.Map, p *topology.Partition) (string, error) {
	set, err := st.Select(ctx, &peer.Select{Table: m.Table, Partitions: []point.PartitionID{p.ID}, Lo: p.TimeLo, Hi: p.TimeHi - 1, LabelsOnly: true,
		Matchers: []peer.Matcher{{Type: peer.MatchNotEqual, Name: point.MetricName}}})
	if err != nil {
		return "", err
	}
	defer func() { _ = set.Close() }()
	counts, all := map[string]int{}, 0
	for all < hottestSeries && len(counts) < hottestPrefixes && set.Next() {
		l := set.At().Labels
		name := m.Config.Ring.Prefix(l)
		if name == "" {
			name = l.Get(point.MetricName)
		}
		counts[name]++
		all++
	}
	if err := set.Err(); err != nil || all == 0 {
		return "", err
	}
	top := ""
	for name, n := range counts {
		if n > counts[top] || n == counts[top] && name < top {
			top = name
		}
	}
	return fmt.Sprintf("%.200s has %d of %d series there", top, counts[top], all), nil
}

// RingShare is where a point lies on the ring, from 0 to below 1.
func RingShare(point uint64) float64 { return float64(point) / (1 << 64) }
