package forward_test

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// TestAGatewayWithASlowClockWrites: partitions send its inserts back, since others wrote there by better clocks. It goes on from their stamps.
func TestAGatewayWithASlowClockWrites(t *testing.T) {
	slow := forward.NewClockOf(7, func() point.Nanos { return time.Now().Add(-time.Hour).UnixNano() })
	c := newClusterWith(t, func(d *forward.Deps) { d.Clock = slow }, forward.Settings{}, "n1")
	c.must(c.write(0))
	n1 := c.servers[topology.ServerID("n1")]
	for i := range 3 {
		n1.seen.Take(rank.At(time.Now().UnixNano()) | 1 + point.Stamp(i)*rank.Step)
		c.must(c.write(point.Nanos(i + 1)))
	}
	if n1.late != 1 {
		t.Errorf("%d inserts were sent back, one is enough", n1.late)
	}
	if got := slow.Reserve(1); rank.Time(got) < time.Now().Add(-time.Minute).UnixNano() {
		t.Errorf("the clock gives %v", time.Unix(0, rank.Time(got)))
	}
}
