package topology

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Config is what a user sets for a table.
type Config struct {
	// Retention is how long rows are kept; 0: for ever.
	Retention time.Duration `json:"retention"`
	// PartitionWidth is the time a partition covers, aligned to its multiples since 1970.
	PartitionWidth time.Duration `json:"partition_width"`
}

// PartitionWidthMin bounds how many partitions a careless setting can make.
const PartitionWidthMin = time.Second

// Validate reports every mistake. Errors are Invalid.
func (c Config) Validate() error {
	if c.PartitionWidth < PartitionWidthMin {
		return fault.Errorf(fault.Invalid, "partition width %v is under the minimum of %v", c.PartitionWidth, PartitionWidthMin)
	}
	if c.Retention < 0 {
		return fault.Errorf(fault.Invalid, "retention %v is negative", c.Retention)
	}
	if c.Retention > 0 && c.Retention < c.PartitionWidth {
		return fault.Errorf(fault.Invalid, "retention %v is shorter than the partition width %v: rows would be dropped by whole partitions too early or too late", c.Retention, c.PartitionWidth)
	}
	return nil
}

// ServerID names a storage server.
type ServerID string

// Placement is one assignment of a partition to a server.
type Placement struct {
	ID     point.PlacementID `json:"id"`
	Server ServerID          `json:"server"`
}

// Partition is a rectangle of the keyspace and where it lies. PointHi and TimeHi are exclusive; PointHi 0 means 2^64.
type Partition struct {
	ID         point.PartitionID `json:"id"`
	PointLo    uint64            `json:"point_lo"`
	PointHi    uint64            `json:"point_hi"`
	TimeLo     point.Nanos       `json:"time_lo"`
	TimeHi     point.Nanos       `json:"time_hi"`
	Placements []Placement       `json:"placements"`
}

// Contains reports whether a key lies in the partition.
func (p *Partition) Contains(ring uint64, t point.Nanos) bool {
	return t >= p.TimeLo && t < p.TimeHi && ring >= p.PointLo && (p.PointHi == 0 || ring < p.PointHi)
}

// Overlaps reports whether the partition may hold rows of [lo, hi], both ends included.
func (p *Partition) Overlaps(lo, hi point.Nanos) bool { return p.TimeLo <= hi && p.TimeHi > lo }

// On finds the placement on a server.
func (p *Partition) On(s ServerID) (Placement, bool) {
	for _, pl := range p.Placements {
		if pl.Server == s {
			return pl, true
		}
	}
	return Placement{}, false
}

// Map is a table's partition map as of one transaction. It is never changed once it is shared.
type Map struct {
	Table  string            `json:"table"`
	Seq    uint64            `json:"seq"` // rises by one with every transaction
	Config Config            `json:"config"`
	NextID point.PartitionID `json:"next_id"`
	// Partitions by TimeLo, then PointLo.
	Partitions []Partition `json:"partitions"`
}

// New makes the map of a new table, without partitions.
func New(table string, c Config) (*Map, error) {
	if err := c.Validate(); err != nil {
		return nil, fault.Annotate(err, "table %q", table)
	}
	return &Map{Table: table, Seq: 1, Config: c, NextID: 1}, nil
}

// Find gives the partition of a key. The result is part of the map: do not change it.
func (m *Map) Find(ring uint64, t point.Nanos) (*Partition, bool) {
	// Partitions of one table do not overlap, so only those that start last at or before t can hold it, together with
	// the other columns of their row.
	i := sort.Search(len(m.Partitions), func(i int) bool { return m.Partitions[i].TimeLo > t })
	for i--; i >= 0; i-- {
		p := &m.Partitions[i]
		if p.Contains(ring, t) {
			return p, true
		}
		if p.TimeHi <= t && i > 0 && m.Partitions[i-1].TimeLo < p.TimeLo && p.PointLo == 0 && p.PointHi == 0 {
			return nil, false // a whole-ring partition lies between: nothing older can reach up to t
		}
	}
	return nil, false
}

// ByID gives a partition by its id.
func (m *Map) ByID(id point.PartitionID) (*Partition, bool) {
	for i := range m.Partitions {
		if m.Partitions[i].ID == id {
			return &m.Partitions[i], true
		}
	}
	return nil, false
}

// Overlapping lists the partitions that may hold rows of [lo, hi], oldest first.
func (m *Map) Overlapping(lo, hi point.Nanos) []*Partition {
	var ps []*Partition
	for i := range m.Partitions {
		if p := &m.Partitions[i]; p.Overlaps(lo, hi) {
			ps = append(ps, p)
		}
	}
	return ps
}

// Aligned gives the bounds of the aligned partition that a time belongs to. Times at the very ends of int64 get a
// narrower one rather than an overflow.
func (c Config) Aligned(t point.Nanos) (lo, hi point.Nanos) {
	w := int64(c.PartitionWidth)
	r := mod(t, w)
	if t < math.MinInt64+r {
		return math.MinInt64, t - r + w // the sum wraps twice and comes out right
	}
	lo = t - r
	if lo > math.MaxInt64-w {
		return lo, math.MaxInt64
	}
	return lo, lo + w
}

func mod(t, w int64) int64 {
	r := t % w
	if r < 0 {
		r += w
	}
	return r
}

// Cover returns a map in which a partition holds each of the times, in one transaction; the same map when all are
// covered already. New partitions are aligned to the width, cut where an older one (of another width) lies, and placed
// by place, which is called once per new partition.
func (m *Map) Cover(times []point.Nanos, place func(point.PartitionID) []Placement) *Map {
	next := m
	for _, t := range times {
		if _, ok := next.Find(0, t); ok || t == math.MaxInt64 {
			continue // no half-open range of int64 holds its last value: admission refuses it long before
		}
		if next == m {
			c := *m
			c.Seq++
			c.Partitions = slices.Clone(m.Partitions)
			next = &c
		}
		next.insert(t, place)
	}
	return next
}

func (m *Map) insert(t point.Nanos, place func(point.PartitionID) []Placement) {
	lo, hi := m.Config.Aligned(t)
	i := sort.Search(len(m.Partitions), func(i int) bool { return m.Partitions[i].TimeLo > t })
	if i > 0 {
		lo = max(lo, m.Partitions[i-1].TimeHi)
	}
	if i < len(m.Partitions) {
		hi = min(hi, m.Partitions[i].TimeLo)
	}
	p := Partition{ID: m.NextID, TimeLo: lo, TimeHi: hi, Placements: place(m.NextID)}
	m.NextID++
	m.Partitions = slices.Insert(m.Partitions, i, p)
}

// Drop returns a map without the named partitions; the same map when it has none of them.
func (m *Map) Drop(ids ...point.PartitionID) *Map {
	kept := make([]Partition, 0, len(m.Partitions))
	for _, p := range m.Partitions {
		if !slices.Contains(ids, p.ID) {
			kept = append(kept, p)
		}
	}
	if len(kept) == len(m.Partitions) {
		return m
	}
	c := *m
	c.Seq++
	c.Partitions = kept
	return &c
}

// WithConfig returns a map with another configuration. Partitions that exist keep their bounds.
func (m *Map) WithConfig(cfg Config) (*Map, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fault.Annotate(err, "table %q", m.Table)
	}
	c := *m
	c.Seq++
	c.Config = cfg
	return &c, nil
}

// Expired lists the partitions that lie wholly before the retention, seen from now: what may be dropped.
func (m *Map) Expired(now point.Nanos) []point.PartitionID {
	if m.Config.Retention == 0 {
		return nil
	}
	var ids []point.PartitionID
	for _, p := range m.Partitions {
		if p.TimeHi <= now-int64(m.Config.Retention) {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// Check reports the first broken invariant: order, overlap, empty or unaligned rectangles, double ids, no placement.
// What is read from a store is checked with it; its errors are Corrupt.
func (m *Map) Check() error {
	seen := map[point.PartitionID]bool{}
	var open []*Partition // those that reach up to where we are
	for i := range m.Partitions {
		p := &m.Partitions[i]
		switch {
		case p.TimeLo >= p.TimeHi:
			return fault.Errorf(fault.Corrupt, "table %q: partition %d is empty: [%d, %d)", m.Table, p.ID, p.TimeLo, p.TimeHi)
		case p.PointHi != 0 && p.PointLo >= p.PointHi:
			return fault.Errorf(fault.Corrupt, "table %q: partition %d has an empty ring range", m.Table, p.ID)
		case seen[p.ID] || p.ID >= m.NextID || p.ID == 0:
			return fault.Errorf(fault.Corrupt, "table %q: partition id %d is used twice or was never given out", m.Table, p.ID)
		case len(p.Placements) == 0:
			return fault.Errorf(fault.Corrupt, "table %q: partition %d lies nowhere", m.Table, p.ID)
		case i > 0 && compare(&m.Partitions[i-1], p) >= 0:
			return fault.Errorf(fault.Corrupt, "table %q: partitions are out of order at %d", m.Table, p.ID)
		}
		seen[p.ID] = true
		open = slices.DeleteFunc(open, func(q *Partition) bool { return q.TimeHi <= p.TimeLo })
		for _, q := range open {
			if ringOverlap(q, p) {
				return fault.Errorf(fault.Corrupt, "table %q: partitions %d and %d overlap (I2)", m.Table, q.ID, p.ID)
			}
		}
		open = append(open, p)
	}
	return nil
}

func compare(a, b *Partition) int {
	return cmp.Or(cmp.Compare(a.TimeLo, b.TimeLo), cmp.Compare(a.PointLo, b.PointLo))
}

func ringOverlap(a, b *Partition) bool {
	return (a.PointHi == 0 || b.PointLo < a.PointHi) && (b.PointHi == 0 || a.PointLo < b.PointHi)
}

// Encode gives the map's stored form: JSON with a version.
func (m *Map) Encode() []byte {
	b, err := json.Marshal(stored{V: 1, Map: m})
	if err != nil {
		fault.Bug("a partition map does not encode: %v", err)
	}
	return b
}

type stored struct {
	V int `json:"v"`
	*Map
}

// Decode reads what Encode wrote and checks it. Errors are Corrupt.
func Decode(b []byte) (*Map, error) {
	s := stored{Map: &Map{}}
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "partition map")
	}
	if s.V != 1 {
		return nil, fault.Errorf(fault.Corrupt, "partition map of version %d; this build reads version 1", s.V)
	}
	return s.Map, s.Map.Check()
}

// String draws the map, a partition a line; for scripts and people.
func (m *Map) String() string {
	s := fmt.Sprintf("%s seq=%d width=%v retention=%v\n", m.Table, m.Seq, m.Config.PartitionWidth, m.Config.Retention)
	for _, p := range m.Partitions {
		s += fmt.Sprintf("  p%d [%s, %s)\n", p.ID, stamp(p.TimeLo), stamp(p.TimeHi))
	}
	return s
}

func stamp(t point.Nanos) string { return time.Unix(0, t).UTC().Format(time.RFC3339Nano) }
