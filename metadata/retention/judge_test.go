package retention_test

import (
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
		v := retention.Judge(days(t, partitions), c)
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
