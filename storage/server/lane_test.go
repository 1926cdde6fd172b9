package server_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// TestEvaluationsLeaveWritersTheirHalf: an insert counts as a write until it waits for the disk, and while one runs all evaluations together have half of the processors.
func TestEvaluationsLeaveWritersTheirHalf(t *testing.T) {
	writes := &lane.Writes{}
	turns := lane.New(writes.Busy, 2) // so that there is one turn while rows are written
	var during atomic.Bool
	p := start(t, vfs.NewMem(), newMap(t), 1, func(d *server.Deps) {
		d.Lane, d.Writes, d.Processors = turns, writes, 4
		d.Now = func() point.Nanos {
			during.Store(during.Load() || writes.Busy())
			return point.Nanos(time.Now().UnixNano())
		}
	})
	defer p.stop(t)
	w := newWriter(t, p.server)
	var rows []row
	for at := range int64(50) {
		rows = append(rows, row{series: int(at % 5), at: at * 1e9, value: 1})
	}
	w.insert(t, 1<<10, rows, model{})
	waited := false
	in := &peer.Insert{Partition: 1, Stamp: 2 << 10, IDs: []point.SeriesID{1}, Times: []point.Nanos{60e9}, Values: []float64{1}}
	if err := w.stream.Define(t.Context(), []peer.Def{{ID: 1, Labels: labelsOf(1)}}); err != nil {
		t.Fatal(err)
	}
	if err := w.stream.Insert(peer.WithWaiting(t.Context(), func() { waited = !writes.Busy() }), in); err != nil {
		t.Fatal(err)
	}
	if !during.Load() || !waited || writes.Busy() {
		t.Errorf("an insert is seen as a write: %v while it is translated and logged, %v while it waits, %v behind it", during.Load(), !waited, writes.Busy())
	}

	count := &columns.Request{Form: columns.States, SamplesMax: 1 << 20, Plan: columns.Plan{
		Grid:   columns.Grid{Start: 10_000, End: 40_000, Step: 1_000},
		Source: columns.Source{Window: 10 * time.Second, Function: columns.FunctionOf("count_over_time")},
		Stages: []columns.Stage{{Aggregation: &columns.Aggregation{Op: columns.Sum, Without: true}}},
	}}
	evaluate := func(ctx context.Context) error {
		r := columns.Receiver{Of: count}
		return p.server.Evaluate(ctx, &peer.Select{Table: "t", Partitions: []point.PartitionID{1}}, count.Append(nil), r.Add)
	}
	writes.Begin()
	defer writes.End()
	waits := func() (waits, ended bool) {
		t.Helper()
		other := turns.Turn(&lane.Share{})
		if err := other.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer other.End()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- evaluate(ctx) }()
		for {
			select {
			case err := <-done:
				cancel()
				return false, err == nil
			default:
			}
			if _, n := turns.InUse(); n > 0 {
				cancel() // its client left
				err := <-done
				return true, fault.Is(err, fault.Canceled)
			}
			runtime.Gosched()
		}
	}
	waited = false
	for range 10 { // a turn that lasts for half a second, on a machine that stands still, is left out of the count
		ok, ended := waits()
		if !ended {
			t.Fatalf("an evaluation whose client left ended otherwise; it waited: %v", ok)
		}
		waited = waited || ok
	}
	if !waited {
		t.Error("an evaluation ran beside a write and another query, on two processors")
	}
	if err := evaluate(t.Context()); err != nil {
		t.Error(err)
	}
	if taken, waiting := turns.InUse(); taken != 0 || waiting != 0 {
		t.Errorf("%d turns are left in use, %d workers wait", taken, waiting)
	}
}
