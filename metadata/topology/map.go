package topology

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"sort"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Map is a table's partition map as of one transaction. It is never changed, and may be shared by any number of
// goroutines; Apply makes the next one, which shares the unchanged parts with this one.
type Map struct {
	Table  string
	Seq    uint64 // rises by one with every transaction (C13)
	Config Config
	NextID point.PartitionID // ids below it were given out, and never will be again
	// Layouts are the cuts of the ring for new partitions, by From. None: they span the whole ring.
	Layouts []Layout

	// Invariant: both indexes hold the same partitions; stops and shelves describe the content of their leaves.
	byTime  index[box]
	byID    index[number]
	stops   []stop
	shelves []shelf
	total   total // of the partitions in the indexes
}

// New makes the map of a new table, without partitions. Errors are Invalid.
func New(table string, c Config) (*Map, error) {
	if err := validName("table", table); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, fault.Annotate(err, "table %q", table)
	}
	c.InSyncWas = InSyncWas{} // it had no other settings before
	return &Map{Table: table, Seq: 1, Config: c.normal(), NextID: 1}, nil
}

// Chained reports whether a chain keeps the rows of a partition on several placements, where servers keep copies at all: its table has several replicas, or it is
// being copied to another server.
func (m *Map) Chained(p *Partition) bool {
	return m.Config.Replicas > 1 || len(p.Placements)+len(p.Joining) > 1
}

// PointOf is where a series lies on the ring of this table. The function of a rule never changes, and a table keeps its rule, so it is the same by every map of it.
func (m *Map) PointOf(l point.Labels) uint64 { return m.Config.Ring.Point(l) }

// Find gives the one partition that accepts writes of a key. The result is part of the map: do not change it.
func (m *Map) Find(ring uint64, t point.Nanos) (*Partition, bool) {
	i := sort.Search(len(m.stops), func(i int) bool { return m.stops[i].begin > t })
	for i--; i >= 0; i-- {
		s := &m.stops[i]
		if s.reach <= t {
			return nil, false
		}
		if s.end <= t {
			continue
		}
		es := s.entries
		j := len(es)
		if es[j-1].key.timeLo > t { // only in the first leaf
			j = sort.Search(len(es), func(j int) bool { return es[j].key.timeLo > t })
		}
		for j--; j >= 0; j-- {
			if e := &es[j]; e.key.contains(ring, t) && !e.key.closed {
				return e.p, true
			}
		}
	}
	return nil, false
}

// ByID gives a partition by its id, in whatever state. Children of a split that is not finalized are no partitions yet.
func (m *Map) ByID(id point.PartitionID) (*Partition, bool) {
	n := number(id)
	i := sort.Search(len(m.shelves), func(i int) bool { return m.shelves[i].first > n }) - 1
	if i < 0 {
		return nil, false
	}
	s := &m.shelves[i]
	// Where no id of the leaf is gone, it lies as far from the first as it is larger: then one look is enough.
	if j := n - s.first; j < number(len(s.entries)) && s.entries[j].key == n {
		return s.entries[j].p, true
	}
	j := sort.Search(len(s.entries), func(j int) bool { return s.entries[j].key >= n })
	if j < len(s.entries) && s.entries[j].key == n {
		return s.entries[j].p, true
	}
	return nil, false
}

// Overlapping lists the partitions to read for rows of [lo, hi], both ends included, oldest first: those that accept
// writes, and those that unload into them, in which the same rows may lie.
func (m *Map) Overlapping(lo, hi point.Nanos) []*Partition {
	var ps []*Partition
	m.overlapping(lo, hi, func(_ *box, p *Partition) bool {
		ps = append(ps, p)
		return true
	})
	return ps
}

// Beginning walks the partitions that begin in (after, until], in whatever state, by TimeLo, then PointLo, then ID.
func (m *Map) Beginning(after, until point.Nanos) iter.Seq[*Partition] {
	return func(yield func(*Partition) bool) {
		leaves := m.byTime.leaves
		first := sort.Search(len(leaves), func(i int) bool { return leaves[i].entries[0].key.timeLo > after })
		for _, l := range leaves[max(first-1, 0):] {
			es := l.entries
			for _, e := range es[sort.Search(len(es), func(i int) bool { return es[i].key.timeLo > after }):] {
				if e.key.timeLo > until || !yield(e.p) {
					return
				}
			}
		}
	}
}

// Len is how many partitions there are, in all states.
func (m *Map) Len() int { return m.byTime.n }

// All walks the partitions by TimeLo, then PointLo, then ID. They are part of the map: do not change them.
func (m *Map) All() iter.Seq[*Partition] {
	return func(yield func(*Partition) bool) {
		for _, l := range m.byTime.leaves {
			for i := range l.entries {
				if !yield(l.entries[i].p) {
					return
				}
			}
		}
	}
}

// Expired lists the partitions that lie wholly before the retention, seen from now. Of those that unload into
// others, and of these, only whole families (Droppable): the others wait until their rows have moved.
func (m *Map) Expired(now point.Nanos) []point.PartitionID { return m.Droppable(m.before(now)) }

func (m *Map) before(now point.Nanos) []point.PartitionID {
	before, ok := m.expiry(now)
	if !ok {
		return nil
	}
	var ids []point.PartitionID
	m.overlapping(math.MinInt64, before, func(b *box, p *Partition) bool {
		if b.timeHi <= before {
			ids = append(ids, p.ID)
		}
		return true
	})
	return ids
}

// expiry gives the time before which rows need not be kept; false: there is none.
func (m *Map) expiry(now point.Nanos) (point.Nanos, bool) {
	if r := int64(m.Config.Retention); r != 0 && now >= math.MinInt64+r {
		return now - r, true
	}
	return 0, false
}

// Cover returns a map in which partitions hold the whole ring at each of the times, in one transaction; the same map when
// they do already. It is Apply of Covering, for callers with a place that always gives one server or more.
func (m *Map) Cover(times []point.Nanos, place func(point.PartitionID) []Placement) *Map {
	c := m.Covering(times, place)
	if len(c.Partitions) == 0 {
		return m
	}
	next, err := m.Apply(c)
	if err != nil {
		fault.Bug("I2: covering %d times of table %q: %v", len(times), m.Table, err)
	}
	return next
}

// String draws the map, a partition a line; for scripts and people.
//
//	cpu seq=4 width=24h0m0s retention=0s replicas=2
//	  p1 [1970-01-01T00:00:00Z, 1970-01-02T00:00:00Z) s1 s2 +s3   splitting at 1970-01-01T12:00:00Z into p2 [s1] and p3 [s2]
func (m *Map) String() string {
	var b strings.Builder
	c := &m.Config
	fmt.Fprintf(&b, "%s seq=%d width=%v retention=%v replicas=%d", m.Table, m.Seq, c.PartitionWidth, c.Retention, c.Replicas)
	if !c.Ring.IsZero() {
		fmt.Fprintf(&b, " ring-by=%s", c.Ring)
	}
	if c.InSyncMin > 0 {
		fmt.Fprintf(&b, " in-sync=%d", c.InSyncMin)
	}
	if w := c.InSyncWas; w.Before > 0 {
		fmt.Fprintf(&b, " in-sync-was=%d before %s", w.Least, name(w.Before))
	}
	if w := c.InSyncWas; w.Most+w.Fewest > 0 {
		fmt.Fprintf(&b, " in-sync-was=%d..%d", cmp.Or(w.Fewest, c.MinInSync()), cmp.Or(w.Most, c.MinInSync()))
	}
	b.WriteByte('\n')
	for _, l := range m.Layouts {
		fmt.Fprintf(&b, "  columns from %s: weights %v, ranges%s\n", stamp(l.From), l.Weights, drawRanges(l.Ranges))
	}
	for p := range m.All() {
		b.WriteString("  ")
		b.WriteString(p.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// String draws the partition in one line.
func (p *Partition) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s [%s, %s)", name(p.ID), stamp(p.TimeLo), stamp(p.TimeHi))
	if p.PointLo != 0 || p.PointHi != 0 {
		fmt.Fprintf(&b, " ring [%#x, %s)", p.PointLo, ringEnd(p.PointHi))
	}
	for _, pl := range p.Placements {
		fmt.Fprintf(&b, " %s", pl.Server)
	}
	for _, pl := range p.Joining {
		fmt.Fprintf(&b, " +%s", pl.Server)
	}
	switch p.State {
	case Splitting:
		fmt.Fprintf(&b, " · splitting at %s", p.Split)
	case Unload:
		fmt.Fprintf(&b, " · unloading into %s", names(p.Into))
	}
	if p.Incomplete {
		b.WriteString(" · may be incomplete")
	}
	return b.String()
}

// String gives the time or the ring point.
func (c Cut) String() string {
	if c.ByTime {
		return stamp(c.Time)
	}
	return fmt.Sprintf("ring point %#x", c.Ring)
}

// String describes the cut, and the children.
func (s *Split) String() string { return fmt.Sprintf("%s into %s and %s", s.At, s.Low, s.High) }

// String gives the child's name and its servers.
func (c Child) String() string { return fmt.Sprintf("%s %s", name(c.ID), servers(c.Placements)) }

func servers(placed []Placement) string {
	var s []string
	for _, pl := range placed {
		s = append(s, string(pl.Server))
	}
	return "[" + strings.Join(s, " ") + "]"
}

func drawRanges(rs []Range) string {
	var b strings.Builder
	for _, r := range rs {
		fmt.Fprintf(&b, " %#x:c%d", r.Lo, r.Column)
	}
	return b.String()
}

func name(id point.PartitionID) string { return fmt.Sprintf("p%d", id) }

func names(ids []point.PartitionID) string {
	var s []string
	for _, id := range ids {
		s = append(s, name(id))
	}
	return strings.Join(s, " ")
}

func ringEnd(hi uint64) string {
	if hi == 0 {
		return "2^64"
	}
	return fmt.Sprintf("%#x", hi)
}

func stamp(t point.Nanos) string { return time.Unix(0, t).UTC().Format(time.RFC3339Nano) }
