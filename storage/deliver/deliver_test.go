package deliver

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAClockThatRunsAheadDropsNoAckedRow: a server whose clock was set a month ahead, while it forwarded staged rows or moved those of a split, took them for older than their
// table keeps, and left out rows that were acknowledged.
func TestAClockThatRunsAheadDropsNoAckedRow(t *testing.T) {
	const hour = int64(time.Hour)
	now := 1000*hour + hour/2
	none, err := topology.New("t", topology.Config{PartitionWidth: time.Hour, Retention: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	m := none.Cover([]point.Nanos{now - 2*hour, now}, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "s1"}} })
	for _, c := range []struct {
		why                           string
		m                             *topology.Map
		now, at                       point.Nanos
		delivered, uncovered, expired int
	}{
		{"a row of now", m, now, now, 1, 0, 0},
		{"the clock is a month ahead, and the row has a partition", m, now + 720*hour, now - 2*hour, 1, 0, 0},
		{"the clock is a month ahead, and the row has none yet", m, now + 720*hour, now - hour, 0, 1, 0},
		{"the table has no partition yet", none, now + 720*hour, now, 0, 1, 0},
		{"the row is older than the table keeps", m, now, now - 26*hour, 0, 0, 1},
		{"the clock is a month behind", m, now - 720*hour, now - 26*hour, 0, 1, 0},
	} {
		s := &Scratch{Frame: frame.Frame{Defs: []point.Labels{point.MakeLabels(point.MetricName, "m")}, IDs: []point.DenseID{0}, Times: []point.Nanos{c.at}, Values: []float64{1}}}
		uncovered, expired := s.divide(c.m, c.now)
		delivered := 0
		for _, p := range s.parts {
			delivered += len(p.in.IDs)
		}
		if delivered != c.delivered || len(uncovered) != c.uncovered || expired != c.expired {
			t.Errorf("%s: %d delivered, %d without a partition, %d expired; want %d, %d and %d", c.why, delivered, len(uncovered), expired, c.delivered, c.uncovered, c.expired)
		}
	}
}
