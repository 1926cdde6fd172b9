package staging

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// BenchmarkForget measures one frame's way through the machine of a second holder that has 16,384 due frames; the first holder forwards them in no order.
func BenchmarkForget(b *testing.B) {
	const held = 1 << 14
	now := time.Unix(1700000000, 0)
	m := New(Settings{Server: "A", BytesMax: 1 << 40})
	id := func(i int) ID { return ID{point.Stamp(i + 1), uint64(i + 1)} }
	stage := func(i int) {
		if _, err := m.Admit(Frame{ID: id(i), Table: "t", Bytes: 10, Rows: 1, Holders: []topology.ServerID{"B", "A"}, Since: now}); err != nil {
			b.Fatal(err)
		}
		m.Logged(id(i))
	}
	for i := range held {
		stage(i)
	}
	for i := 0; b.Loop(); i++ {
		stage(held + i)
		if !m.Forget(id(i ^ (held/2 - 1))) {
			b.Fatal("not held")
		}
	}
}
