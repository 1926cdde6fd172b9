package server_test

import (
	"context"
	"runtime"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// TestReadsForPeersTakeTurnsWithEvaluations: rows that travelled were found and read beside writers, by as many goroutines as there are processors.
func TestReadsForPeersTakeTurnsWithEvaluations(t *testing.T) {
	const n = 2000
	turns := lane.New(func() bool { return true }, 2) // rows are always being written, so there is one turn
	p := start(t, vfs.NewMem(), newMap(t), 1, func(d *server.Deps) { d.Lane, d.Processors = turns, 4 })
	defer p.stop(t)
	st, err := p.server.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var defs []peer.Def
	in := &peer.Insert{Partition: 1, Stamp: 1 << 10}
	for i := range n {
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: labelsOf(i)})
		in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(i)), append(in.Times, 1e9), append(in.Values, 1)
	}
	if err := st.Define(t.Context(), defs); err != nil {
		t.Fatal(err)
	}
	if err := st.Insert(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	q := &peer.Select{Table: "t", Lo: 0, Hi: 100e9}

	// All rows come, one reader after the other, and a peer that reads slowly holds no turn.
	set, err := p.server.SelectInTurns(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for set.Next() {
		if got++; got == n/2 {
			other := turns.Turn(&lane.Share{})
			if err := other.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			other.End()
		}
	}
	if set.Err() != nil || got != n {
		t.Errorf("%d of %d series are read: %v", got, n, set.Err())
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}

	// waits reports whether f waits for the turn that another query has; its client leaves then.
	waits := func(f func(context.Context) error) bool {
		t.Helper()
		other := turns.Turn(&lane.Share{})
		if err := other.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer other.End()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		done := make(chan error, 1)
		go func() { done <- f(ctx) }()
		for {
			select {
			case <-done:
				return false
			default:
			}
			if _, n := turns.InUse(); n > 0 {
				leave()
				if err := <-done; !fault.Is(err, fault.Canceled) {
					t.Errorf("a read whose client left: %v", err)
				}
				return true
			}
			runtime.Gosched()
		}
	}
	for what, f := range map[string]func(context.Context) error{
		"finding series": func(ctx context.Context) error {
			set, err := p.server.SelectInTurns(ctx, q)
			if err == nil {
				_ = set.Close()
			}
			return err
		},
		"a look-up": func(ctx context.Context) error {
			end, err := p.server.Turn(ctx)
			if err == nil {
				end()
			}
			return err
		},
	} {
		// A turn that lasts for half a second, on a machine that stands still, is left out of the count.
		if tries := slices.Repeat([]int{0}, 10); !slices.ContainsFunc(tries, func(int) bool { return waits(f) }) {
			t.Errorf("%s did not wait for the turn of another query", what)
		}
	}
	reads := func() bool {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		set, err := p.server.SelectInTurns(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		defer leave() // its readers wait no longer
		return waits(func(inner context.Context) error {
			defer context.AfterFunc(inner, leave)()
			set.Next()
			return set.Err()
		})
	}
	if tries := slices.Repeat([]int{0}, 10); !slices.ContainsFunc(tries, func(int) bool { return reads() }) {
		t.Error("reading a batch did not wait for the turn of another query")
	}
	if taken, waiting := turns.InUse(); taken != 0 || waiting != 0 {
		t.Errorf("%d turns are left in use, %d readers wait", taken, waiting)
	}
}
