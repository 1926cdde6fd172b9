//go:build !race

package pathtest

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
)

// TestPromQLOnStorage runs Prometheus's own scripts against all parts between the forwarder and the disk. Partitions are
// so narrow that most scripts cross them, and of each load a third is in compacted segments, a third in one that is not,
// and a third in the head: interleaved, so that rows of one series have to be merged.
func TestPromQLOnStorage(t *testing.T) {
	promqlsuite.Run(t, func(tb testing.TB) promqlsuite.Backend {
		n := openNode(tb, 10*time.Minute)
		return promqlsuite.Backend{Source: n.server, Insert: n.insertInThirds, Close: n.close}
	})
}

// TestPromQLOnACluster runs Prometheus's own scripts on one server and on three, with series spread over them in turns, over the network.
func TestPromQLOnACluster(t *testing.T) {
	for _, c := range []struct {
		name    string
		servers int
		far     bool
	}{{"one server", 1, false}, {"three servers over the network", 3, true}} {
		t.Run(c.name, func(t *testing.T) {
			if c.far && testing.Short() {
				t.Skip("sixteen seconds of processor time")
			}
			promqlsuite.Run(t, func(tb testing.TB) promqlsuite.Backend {
				s := openSpread(tb, c.servers, c.far, 10*time.Minute, 2)
				return promqlsuite.Backend{Source: s.source, Insert: s.insert, Close: s.close}
			})
		})
	}
}
