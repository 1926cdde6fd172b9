package server_test

import (
	"context"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
	"github.com/spillwaydb/spillway/storage/unload/runner"
)

// TestAPartitionThatIsClosedMeanwhileIsNotAnsweredWithoutItsRows: the copy of a server is removed, or its disk is, after a request was let in and before it reads.
func TestAPartitionThatIsClosedMeanwhileIsNotAnsweredWithoutItsRows(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	for id := range int64(3) {
		must(t, st.Insert(t.Context(), &peer.Insert{Partition: point.PartitionID(id + 1), Stamp: 1024, IDs: []point.SeriesID{0}, Times: []point.Nanos{id * 100e9}, Values: []float64{1}}))
	}
	key := lease.Partition{Table: "t", ID: 2}
	part, ok := p.server.Placement(key)
	if !ok {
		t.Fatal("it is not here")
	}
	part.Close()
	given := 0
	err := p.server.Rows(t.Context(), key, 1, 0, 300e9, func(*runner.Series) error { given++; return nil })
	if !fault.Is(err, fault.Stale) {
		t.Errorf("rows that move to others: %d series and %v", given, err)
	}
	q := &peer.Select{Table: "t", Partitions: []point.PartitionID{1, 2, 3}, Lo: math.MinInt64, Hi: math.MaxInt64}
	if set, err := p.server.Select(t.Context(), q); !fault.Is(err, fault.Stale) {
		t.Errorf("a read: %v", err)
		if err == nil {
			set.Close()
		}
	}
}

// departure is what happens before and after a request deletes from a partition that unloads.
type departure struct{ before, leave func() }

// Delete implements server.Unloads.
func (d *departure) Delete(_ context.Context, _ lease.Partition, f func() error) error {
	if d.before != nil {
		d.before()
	}
	defer d.leave()
	return f()
}

// Of knows none.
func (d *departure) Of(lease.Partition) (runner.Progress, bool) { return runner.Progress{}, false }

// TestADeletionThatEndsHalfwayIsNotDone: a server that stops ends its requests. A deletion was answered as if the partitions that it did not come to had no such rows.
func TestADeletionThatEndsHalfwayIsNotDone(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	end := &departure{}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) { d.Unloads = end })
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	for id := range int64(3) {
		in := &peer.Insert{Partition: point.PartitionID(id + 1), Stamp: 1024, IDs: []point.SeriesID{0}, Times: []point.Nanos{id * 100e9}, Values: []float64{1}}
		for i := int64(1); i < 200_000 && id == 0; i++ { // so large that it goes alone
			in.IDs, in.Times, in.Values = append(in.IDs, 0), append(in.Times, i), append(in.Values, math.Sqrt(float64(i)))
		}
		must(t, st.Insert(t.Context(), in))
	}
	var err error
	if maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6}); err != nil {
		t.Fatal(err)
	}
	q := &peer.Select{Table: "t", Lo: math.MinInt64, Hi: math.MaxInt64, Matchers: []peer.Matcher{{Name: "i", Value: "1"}}}
	ctx, cancel := context.WithCancel(t.Context())
	end.leave = cancel
	if err := p.server.DeleteSeries(ctx, q); !fault.Is(err, fault.Canceled) {
		t.Errorf("it ended with %v, and there are rows left:\n%s", err, read(t, p.server, q))
	}
	must(t, p.server.DeleteSeries(t.Context(), q))
	if left := read(t, p.server, q); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

// TestADeletionFromACopyThatIsRemovedIsNotDone: other servers have the rows that it was to delete.
func TestADeletionFromACopyThatIsRemovedIsNotDone(t *testing.T) {
	maps := &someMap{m: newMap(t).m}
	end := &departure{leave: func() {}}
	p := start(t, vfs.NewMem(), maps, 1, func(d *server.Deps) { d.Unloads = end })
	defer p.stop(t)
	st := openStream(t, p.server)
	defer st.Close()
	must(t, st.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: 1024, IDs: []point.SeriesID{0}, Times: []point.Nanos{1}, Values: []float64{1}}))
	var err error
	if maps.m, err = maps.m.Apply(topology.SplitBegin{Partition: 1, Split: halves(6)}, topology.SplitFinalize{Partition: 1, Low: 6}); err != nil {
		t.Fatal(err)
	}
	end.before = func() { must(t, p.server.RemovePlacement("t", 1, 101, false)) }
	q := &peer.Select{Table: "t", Partitions: []point.PartitionID{1}, Lo: math.MinInt64, Hi: math.MaxInt64, Matchers: []peer.Matcher{{Name: "i", Value: "1"}}}
	if err := p.server.DeleteSeries(t.Context(), q); !fault.Is(err, fault.Stale) {
		t.Errorf("it ended with %v", err)
	}
}
