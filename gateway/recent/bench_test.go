package recent_test

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/recent"
)

// BenchmarkNote is what a request costs whose series are known: the last of sixteen senders of its table.
func BenchmarkNote(b *testing.B) {
	s := recent.NewSenders()
	for i := range 16 {
		s.Note("table", recent.Sender{Protocol: "rw1", Identity: "plant", Agent: "Prometheus/3.1.0", Network: string(rune('a' + i))}, 1, &recent.Fresh{}, time.Now())
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Note("table", recent.Sender{Protocol: "rw1", Identity: "plant", Agent: "Prometheus/3.1.0", Network: "p"}, 1000, &recent.Fresh{}, noon)
	}
}
