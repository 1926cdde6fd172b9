package server_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/brick"
)

// TestADeletionFromManyPartitionsWaitsForFewFsyncs: the log waits for its disk, and meanwhile the deletion is appended for all partitions. It was for 32, so that a slow disk was
// waited for once for each 32 partitions, three times over.
func TestADeletionFromManyPartitionsWaitsForFewFsyncs(t *testing.T) {
	const partitions = 200
	var held atomic.Pointer[chan struct{}]
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if gate := held.Load(); gate != nil && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && strings.Contains(op.Path, "data/log/") {
			<-*gate
		}
		return nil
	}))
	metrics := prometheus.NewRegistry()
	s := overPartitions(t, brick.Deps{FS: fs, Registerer: metrics}, "data", partitions)
	before := appended(t, metrics)
	gate := make(chan struct{})
	held.Store(&gate)
	deleted := make(chan error)
	go func() {
		deleted <- s.DeleteSeries(t.Context(), &peer.Select{Table: "t", Hi: 1 << 62, Matchers: []peer.Matcher{{Name: "i", Value: "0"}}})
	}()
	for end := time.Now().Add(20 * time.Second); appended(t, metrics) < before+partitions; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%v of %d deletions are appended while the disk is waited for", appended(t, metrics)-before, partitions)
			break
		}
	}
	held.Store(nil)
	close(gate)
	must(t, <-deleted)
}

// appended is how many records were appended to the log.
func appended(t *testing.T, metrics prometheus.Gatherer) float64 {
	t.Helper()
	all, err := metrics.Gather()
	must(t, err)
	for _, m := range all {
		if m.GetName() == "spillway_brick_appended_records_total" {
			return m.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("there is no such metric")
	return 0
}
