package retention_test

import (
	"math"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/retention"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

const day = int64(24 * time.Hour)

// days is a table that keeps rows for thirty days and has partitions of days 1 to n.
func days(t *testing.T, n int) *topology.Map {
	t.Helper()
	m, err := topology.New("t", topology.Config{PartitionWidth: 24 * time.Hour, Retention: 30 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var at []point.Nanos
	for d := 1; d <= n; d++ {
		at = append(at, int64(d)*day)
	}
	return m.Cover(at, func(point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 1, Server: "s1"}}
	})
}

func TestJudge(t *testing.T) {
	f := func(what string, partitions int, c retention.Clock, drop, held int) {
		t.Helper()
		v := retention.Judge(days(t, partitions), c, retention.Confirmed{})
		if len(v.Drop) != drop || len(v.Held) != held || (held > 0) != (v.Why != "") {
			t.Errorf("%s: drops %v, holds %v because %q; want %d and %d", what, v.Drop, v.Held, v.Why, drop, held)
		}
	}
	on := func(d int64) int64 { return d*day + day/2 }

	f("nothing is old", 30, retention.Clock{Wall: on(30), Seen: on(30)}, 0, 0)
	f("one day has passed", 32, retention.Clock{Wall: on(32), Seen: on(32) - 60e9}, 1, 0)
	f("the process was off for five days", 31, retention.Clock{Wall: on(36), Seen: on(31)}, 5, 0)
	f("the first start of a build that remembers the clock", 32, retention.Clock{Wall: on(32)}, 1, 0)

	f("a host boots in 2036", 31, retention.Clock{Wall: on(3650), Seen: on(31)}, 0, 31)
	f("and the clock was never seen", 31, retention.Clock{Wall: on(3650)}, 0, 31)
	f("a jump that makes a single day old", 32, retention.Clock{Wall: on(32), Seen: on(20)}, 0, 1)
	f("a jump forward while the process runs", 31, retention.Clock{Wall: on(100), Seen: on(31) + 60e9}, 0, 31)
	f("a person says that the clock is right", 31, retention.Clock{Wall: on(3650), Seen: on(31), Confirmed: on(3651)}, 31, 0)
	f("what a person said was of another day", 31, retention.Clock{Wall: on(3650), Seen: on(31), Confirmed: on(40)}, 0, 31)
	f("the clock goes back", 31, retention.Clock{Wall: on(10), Seen: on(31)}, 0, 0)

	f("more than half, without a jump: retention was shortened", 31, retention.Clock{Wall: on(50), Seen: on(50)}, 0, 19)
	f("half of it", 40, retention.Clock{Wall: on(50), Seen: on(50)}, 19, 0)
	f("a table that nobody writes to any more, day by day", 1, retention.Clock{Wall: on(32), Seen: on(32)}, 1, 0)
	f("its last two days", 2, retention.Clock{Wall: on(33), Seen: on(33)}, 2, 0)
}

// TestJudgeOfWhatAPersonConfirmed: a table of thirty-one days whose retention became two days.
func TestJudgeOfWhatAPersonConfirmed(t *testing.T) {
	on := func(d int64) int64 { return d*day + day/2 }
	keep := func(days int64) topology.SetConfig {
		return topology.SetConfig{Config: topology.Config{PartitionWidth: 24 * time.Hour, Retention: time.Duration(days * day)}}
	}
	long := days(t, 31)
	m, err := long.Apply(keep(2))
	if err != nil {
		t.Fatal(err)
	}
	said, ok := retention.Confirm(long, m, on(31))
	if want := (retention.Confirmed{Retention: 2 * 24 * time.Hour, From: math.MinInt64, Through: 29 * day}); said != want || !ok {
		t.Fatalf("confirmed is %+v %t, want %+v", said, ok, want)
	}
	if c, ok := retention.Confirm(long, m, on(1)); ok {
		t.Errorf("on the first day %+v is confirmed", c)
	}
	if c, ok := retention.Confirm(long, m, on(3650)); ok {
		t.Errorf("where all was too old before, %+v is confirmed", c)
	}
	some, ok := retention.Confirm(long, m, on(50)) // nineteen were too old before, and twelve become so
	if want := (retention.Confirmed{Retention: 2 * 24 * time.Hour, From: 20 * day, Through: 32 * day}); some != want || !ok {
		t.Errorf("confirmed is %+v %t, want %+v", some, ok, want)
	}
	if both := (retention.Confirmed{Retention: time.Hour, From: 29 * day, Through: 30 * day}).And(said); both != (retention.Confirmed{Retention: time.Hour, From: math.MinInt64, Through: 30 * day}) {
		t.Errorf("a loss behind another is %+v", both)
	}
	if one := (retention.Confirmed{Retention: time.Hour, From: 30 * day, Through: 31 * day}); one.And(said) != one {
		t.Errorf("a loss that is not next to another is %+v", one.And(said))
	}
	f := func(what string, keeps int64, c retention.Clock, said retention.Confirmed, drop, held int) {
		t.Helper()
		m, err := m.Apply(keep(keeps))
		if err != nil {
			t.Fatal(err)
		}
		if v := retention.Judge(m, c, said); len(v.Drop) != drop || len(v.Held) != held || (held > 0) != (v.Why != "") {
			t.Errorf("%s: drops %v, holds %v because %q; want %d and %d", what, v.Drop, v.Held, v.Why, drop, held)
		}
	}
	f("nothing", 2, retention.Clock{Wall: on(31), Seen: on(31)}, retention.Confirmed{}, 0, 28)
	f("all that is too old", 2, retention.Clock{Wall: on(31), Seen: on(31)}, said, 28, 0)
	f("and one more has become too old since", 2, retention.Clock{Wall: on(32), Seen: on(31)}, said, 29, 0)
	f("and three more, which are all that is left", 2, retention.Clock{Wall: on(36), Seen: on(31)}, said, 28, 3)
	f("a retention that became longer", 3, retention.Clock{Wall: on(31), Seen: on(31)}, said, 0, 27)
	f("and shorter still", 1, retention.Clock{Wall: on(31), Seen: on(31)}, said, 29, 0)
	f("what was too old before", 2, retention.Clock{Wall: on(50)}, some, 12, 19)
	f("a clock that jumps", 2, retention.Clock{Wall: on(40), Seen: on(31)}, said, 0, 31)
}
