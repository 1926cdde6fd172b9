package master

import (
	"bytes"
	"flag"
	"math"
	"os"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGrowthIsSeenInSizes looks at a table every minute for an hour in which partitions end and begin, a server is away for a while, and rows of
// last week come in: only the rows of now count.
func TestGrowthIsSeenInSizes(t *testing.T) {
	const min = point.Nanos(60e9)
	begin := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixNano()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: 10 * time.Minute, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	var times []point.Nanos
	for i := range point.Nanos(8) {
		times = append(times, begin+i*10*min)
	}
	week := begin - 7*24*60*min
	m = m.Cover(append(times, week), func(id point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(id), Server: "s1"}}
	})
	var g *Growth
	rows := map[point.PartitionID]uint64{}
	for i := range point.Nanos(60) {
		now := begin + i*min
		sizes := map[lease.Partition]Size{}
		for p := range m.All() {
			if away := i >= 30 && i < 33; rows[p.ID] > 0 && !away {
				sizes[lease.Partition{Table: "cpu", ID: p.ID}] = Size{Rows: rows[p.ID], Bytes: int64(3 * rows[p.ID])}
			}
		}
		g = g.Observed(now, m, sizes)
		at, _ := m.Find(0, now)
		rows[at.ID] += 6000
		late, _ := m.Find(0, week)
		rows[late.ID] += 1_000_000
	}
	h := g.columns[column{}]
	f, ok := h.Forecast(begin+59*min, begin+120*min)
	if !ok || math.Abs(f.Level-100) > 1 {
		t.Errorf("the table grows by %v rows/s (%t), want 100", f.Level, ok)
	}
	if g.perRow[column{}] != 3 {
		t.Errorf("a row takes %v bytes", g.perRow[column{}])
	}
	// The growth while the server was away is unknown, not zero, and not a spike afterwards.
	if f, ok := h.Forecast(begin+38*min, begin+60*min); !ok || math.Abs(f.Level-100) > 1 {
		t.Errorf("after the server was away: %v rows/s (%t)", f.Level, ok)
	}
	encoded := g.Encode()
	again, err := DecodeGrowth(encoded)
	if err != nil || !bytes.Equal(again.Encode(), encoded) {
		t.Fatalf("read again: %v", err)
	}
	if next := again.Observed(begin+90*min, m, nil); next.at != begin+90*min || next.columns[column{}] == nil {
		t.Error("a master that takes over has lost the history")
	}
}

func goldenGrowth(t *testing.T) []byte {
	w := newWorld()
	w.Now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixNano()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.grows(m, 1000, 12.5, 25*time.Minute)
	return w.Growth["cpu"].Encode()
}

// TestRowsThatMoveAreNoGrowth: a partition that accepts rows is cut after its newest row, and the next one in the middle of the ring. Their rows move to the halves, many more a minute than come.
func TestRowsThatMoveAreNoGrowth(t *testing.T) {
	const min = point.Nanos(60e9)
	begin := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC).UnixNano()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: 24 * time.Hour, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	m = m.Cover([]point.Nanos{begin}, func(id point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(id), Server: "s1"}}
	})
	child := func(id point.PartitionID) topology.Child {
		return topology.Child{ID: id, Placements: []topology.Placement{{ID: point.PlacementID(id), Server: "s1"}}}
	}
	split := func(p point.PartitionID, at topology.Cut) {
		if m, err = m.Apply(topology.SplitBegin{Partition: p, Split: topology.Split{At: at, Low: child(m.NextID), High: child(m.NextID + 1)}}, topology.SplitFinalize{Partition: p, Low: m.NextID}); err != nil {
			t.Fatal(err)
		}
	}
	var g *Growth
	sizes := map[lease.Partition]Size{}
	add := func(p point.PartitionID, rows uint64, at point.Nanos) {
		key := lease.Partition{Table: "cpu", ID: p}
		s := sizes[key]
		sizes[key] = Size{Rows: s.Rows + rows, Bytes: s.Bytes + 3*int64(rows), MinTime: begin, MaxTime: max(s.MaxTime, at)}
	}
	for i := range point.Nanos(120) {
		now := begin + i*min
		switch i {
		case 30:
			split(1, topology.AtTime(now+min)) // into 2 and 3
		case 60:
			split(3, topology.AtRing(1<<63)) // into 4 and 5
		case 90: // all rows have moved
			if m, err = m.Apply(topology.UnloadFinal{Partition: 1}, topology.UnloadFinal{Partition: 3}); err != nil {
				t.Fatal(err)
			}
		}
		g = g.Observed(now, m, sizes)
		at, _ := m.Find(0, now)
		add(at.ID, 6000, now)
		switch {
		case i >= 30 && i < 60:
			add(2, 50_000, begin+30*min)
		case i >= 60 && i < 90:
			add(4, 50_000, begin+60*min)
			add(5, 50_000, begin+60*min)
		}
	}
	h := g.columns[column{}]
	if f, ok := h.Forecast(begin+119*min, begin+180*min); !ok || math.Abs(f.Level-100) > 5 {
		t.Errorf("the table grows by %v rows/s (%t), want 100", f.Level, ok)
	}
}

// TestPartitionsToComeCountWhatEachRepeats: partitions of an hour, and twice as many of half an hour, show that a row needs 2 bytes, and the series of a partition
// a million; so partitions of 3 MB should get a million rows.
func TestPartitionsToComeCountWhatEachRepeats(t *testing.T) {
	const min = point.Nanos(60e9)
	begin := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC).UnixNano()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[lease.Partition]Size{}
	op := topology.Create{}
	for i := range point.Nanos(17) { // eight of an hour, eight of half, and the one of now
		lo, width := begin+i*60*min, 60*min
		if i >= 8 {
			lo, width = begin+8*60*min+(i-8)*30*min, 30*min
		}
		id := point.PartitionID(i + 1)
		op.Partitions = append(op.Partitions, topology.Partition{ID: id, TimeLo: lo, TimeHi: lo + width, Placements: []topology.Placement{{ID: point.PlacementID(id), Server: "s1"}}})
		rows := int64(width/min) * 60_000
		sizes[lease.Partition{Table: "cpu", ID: id}] = Size{Rows: uint64(rows), Bytes: 2*rows + 1e6, MinTime: lo, MaxTime: lo + width - 1}
	}
	if m, err = m.Apply(op); err != nil {
		t.Fatal(err)
	}
	var g *Growth
	g = g.Observed(begin+12*60*min+15*min, m, sizes)
	if rows := g.weights[column{}].Rows(3e6); math.Abs(rows-1e6) > 1 {
		t.Errorf("partitions of 3 MB should get %.0f rows: %+v", rows, g.weights)
	}
	again, err := DecodeGrowth(g.Encode())
	if err != nil {
		t.Fatal(err)
	}
	size := func(id point.PartitionID) Size { return sizes[lease.Partition{Table: "cpu", ID: id}] }
	if w := again.Columns()[0].Weigh(begin+12*60*min+15*min, m, size); math.Abs(w.PerRow-2) > 1e-6 || math.Abs(w.PerPartition-1e6) > 1 {
		t.Errorf("people see %+v", w)
	}
	if w := again.Columns()[0].Weigh(begin, m, size); w.PerPartition != 0 || math.Abs(w.PerRow-2-1e6/3.6e6) > 1e-9 {
		t.Errorf("before any partition has ended people see %+v", w)
	}
}

func TestGrowthIsStoredAsDrawn(t *testing.T) {
	b := goldenGrowth(t)
	const name = "testdata/growth.golden"
	if *update {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(name); err != nil || !bytes.Equal(want, b) {
		t.Errorf("%s: %v, or it differs", name, err)
	}
	for i := range b {
		if _, err := DecodeGrowth(b[:i]); i != 1 && !fault.Is(err, fault.Corrupt) { // one byte is a table without columns
			t.Fatalf("%d bytes: %v", i, err)
		}
		for bit := range 8 {
			b[i] ^= 1 << bit
			if g, err := DecodeGrowth(b); err != nil && !fault.Is(err, fault.Corrupt) || err == nil && (i == 0 || i >= 1+28) {
				t.Fatalf("bit %d of byte %d: %v, %v", bit, i, g, err)
			}
			b[i] ^= 1 << bit
		}
	}
}

func FuzzDecodeGrowth(f *testing.F) {
	f.Add([]byte{growthVersion})
	if b, err := os.ReadFile("testdata/growth.golden"); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := DecodeGrowth(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		if _, err := DecodeGrowth(g.Encode()); err != nil {
			t.Fatalf("written again: %v", err)
		}
	})
}

// oneTable is a table that is there from a time on.
type oneTable struct {
	Tables
	m *topology.Map
}

func (o oneTable) Names() []string { return []string{o.m.Table} }

func (o oneTable) Get(string) (*topology.Map, bool) { return o.m, true }

// TestATableIsLookedAtOftenWhileItIsYoung: before its first look, and until five minutes of it are known; for six minutes at most, if its server is away; and a term that finds a recorded
// history looks once a minute.
func TestATableIsLookedAtOftenWhileItIsYoung(t *testing.T) {
	const second = point.Nanos(1e9)
	begin := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixNano()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	m = m.Cover([]point.Nanos{begin}, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "s1"}} })
	run := func(g *growths, away bool, from point.Nanos) (young point.Nanos) {
		for at := point.Nanos(0); at < 10*60*second; at += 15 * second {
			if g.young(from+at, oneTable{m: m}) {
				young = at
			}
			sizes := map[lease.Partition]Size{{Table: "cpu", ID: 1}: {Rows: 1000 + 100*uint64((from+at-begin)/second), Bytes: 1e6}}
			if away && at > 0 {
				sizes = nil
			}
			g.look(from+at, oneTable{m: m}, sizes)
			if h := g.tables["cpu"].columns[column{}]; !away && at >= 90*second {
				if f, ok := h.Forecast(from+at, from+at); !ok || math.Abs(f.Level-100) > 1 {
					t.Errorf("after %d s %v rows/s are expected (%t)", at/second, f.Level, ok)
				}
			}
		}
		return young
	}
	fresh := func() *growths { return &growths{tables: map[string]*Growth{}, seen: map[string]point.Nanos{}} }
	g := fresh()
	if !g.young(begin, oneTable{m: m}) {
		t.Error("a table that was not looked at may wait")
	}
	if young := run(g, false, begin); young < 4*60*second || young >= 6*60*second {
		t.Errorf("it is looked at often for %d s", young/second)
	}
	next := fresh()
	next.tables["cpu"] = g.tables["cpu"]
	if young := run(next, false, begin+10*60*second); young != 0 {
		t.Errorf("with a history it is looked at often for %d s", young/second)
	}
	if young := run(fresh(), true, begin); young < 5*60*second || young >= 6*60*second {
		t.Errorf("while its server is away it is looked at often for %d s", young/second)
	}
}
