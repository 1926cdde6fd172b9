package administration

import (
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/smear"
)

func TestATableIsAdvisedByItsLoad(t *testing.T) {
	const day = 24 * time.Hour
	f := func(name string, l loadOf, width time.Duration, columns int, window time.Duration, why ...string) {
		t.Helper()
		l.RowBytes, l.ServerRows, l.SplitBytes = 2, 100_000, 1<<30
		got := l.advise()
		mode := "off"
		if window > 0 {
			mode = "auto"
		}
		if time.Duration(got.Width) != width || got.Columns != columns || time.Duration(got.Window) != window || got.Smear != mode {
			t.Errorf("%s: %+v, want %v, %d columns, a window of %v", name, got, width, columns, window)
		}
		text := strings.Join(got.Why, "\n")
		for _, w := range why {
			if !strings.Contains(text, w) {
				t.Errorf("%s: %s\nlacks %q", name, text, w)
			}
		}
	}
	of := func(rows float64, servers, replicas int) loadOf {
		return loadOf{Rows: rows, Servers: servers, Replicas: replicas, MinInSync: replicas/2 + 1, Width: day, Columns: 1, Retention: 4 * day}
	}
	whole := func(l loadOf) loadOf { l.Whole = true; return l }
	kept := func(l loadOf, r time.Duration) loadOf { l.Retention = r; return l }
	f("nothing is written", of(0, 3, 1), day, 1, 0, "one server at a time", "is not cut")
	f("one server is enough", of(90_000, 3, 1), day, 1, 0, "one server at a time", "cut ahead of their time", "1h39m25s")
	f("one process", of(900_000, 1, 1), day, 1, 0, "only 1 servers")
	f("two servers are needed of four", of(190_000, 4, 1), day, 2, 0, "2 columns")
	f("two are needed of three: columns lie evenly on three", of(190_000, 3, 1), day, 3, 0)
	f("copies are work too", of(190_000, 8, 3), day, 4, 0, "work of 4 servers")
	f("more than there is", of(1e6, 3, 1), day, 3, 0, "add servers")
	f("whole ranges where one server is enough", whole(of(90_000, 3, 1)), day, 1, 0)
	f("whole ranges", whole(of(250_000, 3, 1)), 10*time.Second, 1, 30*time.Second, "staging_bytes_max", "of the 50000")
	f("whole ranges, kept longer: wider partitions", whole(kept(of(250_000, 3, 1), 6*day)), 15*time.Second, 1, 45*time.Second)
	f("whole ranges, kept too long", whole(kept(of(250_000, 3, 1), 90*day)), day, 3, 0, "too many within the retention", "3 columns")
	f("whole ranges, kept for ever", whole(kept(of(250_000, 3, 1), 0)), day, 3, 0, "set a retention")
	f("whole ranges on twenty servers need columns too", whole(kept(of(2e6, 20, 1), day)), 10*time.Second, 2, 100*time.Second)
	narrow := of(90_000, 3, 1)
	narrow.Width, narrow.Smear = 10*time.Second, smear.Rule{Mode: smear.Auto}
	f("narrow partitions for no reason", narrow, day, 1, 0)
	if got := narrow.advise(); got.changes(&narrow) == nil {
		t.Error("it changes nothing")
	}
	if l := of(90_000, 3, 1); func() bool { a := l.advise(); return a.changes(&l) != nil }() {
		t.Error("it changes a table that is as advised")
	}
	f("a retention shorter than a day", kept(of(90_000, 3, 1), time.Hour), time.Hour, 1, 0)
}

// TestAdviceGoesByTheSlowestServerThatWasBusy, and names that server.
func TestAdviceGoesByTheSlowestServerThatWasBusy(t *testing.T) {
	f := func(want float64, how string, all ...peer.Capacity) {
		t.Helper()
		rows, said := leastCapacity([]topology.ServerID{"s1", "s2", "s3"}[:len(all)], all)
		if rows != want || !strings.Contains(said, how) {
			t.Errorf("%v: %.0f rows/s, %s; want %.0f, %s", all, rows, said, want, how)
		}
	}
	f(200_000, "assumed")
	f(200_000, "assumed", peer.Capacity{}, peer.Capacity{}, peer.Capacity{})
	f(90_000, "of 2 servers that were busy, s2 in 7 minutes", peer.Capacity{RowsPerSecond: 120_000, Minutes: 60}, peer.Capacity{RowsPerSecond: 90_000, Minutes: 7}, peer.Capacity{})
	l := loadOf{Rows: 190_000, RowBytes: 2, ServerRows: 90_000, Measured: "measured", SplitBytes: 1 << 30, Servers: 3, Replicas: 1, Width: 24 * time.Hour, Columns: 1}
	if got := l.advise(); got.ServersNeeded != 3 || !strings.Contains(strings.Join(got.Why, "\n"), "90000 rows/s a server are measured") {
		t.Errorf("%+v", got)
	}
}
