package fanout

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// cut makes the gateway's last answer from the coordination store that old; the clock of the bubble stands in the year 2000, long after the rows.
func (w *world) cut(age time.Duration) {
	w.source.deps.Age = func(string) time.Duration { return age }
}

// grows adds a fourth partition on n3, with a row, that is missing in the gateway's map.
func (w *world) grows() {
	w.t.Helper()
	newest := w.m.Cover([]point.Nanos{3e9}, func(point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 1, Server: "n3"}}
	})
	w.change(func() {
		w.newest, w.truth[4], w.leads[4] = newest, "n3", "n3"
	})
}

// TestReadsOfAGatewayThatIsCutOffAreNeverShortInSilence: its map ends before the asked range does.
func TestReadsOfAGatewayThatIsCutOffAreNeverShortInSilence(t *testing.T) {
	inWorld(t, func(w *world) {
		f := func(what string, ctx context.Context, warns, refused bool) {
			t.Helper()
			ctx, warned := query.WithWarnings(ctx)
			got, err := w.rows(ctx)
			switch texts := warned.Texts(); {
			case refused && (!fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "may be missing")):
				t.Errorf("%s: %q %v, want it refused", what, got, err)
			case !refused && (err != nil || got != whole):
				t.Errorf("%s: %q %v", what, got, err)
			case !refused && (len(texts) == 1) != warns:
				t.Errorf("%s: warned of %q", what, texts)
			case warns && !strings.Contains(texts[0], "from 1970-01-01T00:00:03Z"):
				t.Errorf("%s: warned of %q", what, texts)
			}
			w.closed()
		}
		ctx := w.t.Context()
		f("the store is followed", query.WithWhole(ctx), false, false)
		w.cut(4 * time.Second)
		f("cut off a moment ago", query.WithWhole(ctx), false, false)
		w.cut(time.Minute)
		f("cut off", ctx, true, false)
		f("and nothing may be missing", query.WithWhole(ctx), false, true)
		f("and something may be missing", query.WithPartial(ctx), true, false)
		w.source.settings.RefusePartial = true
		f("refusing", ctx, false, true)
		f("refusing, and something may be missing", query.WithPartial(ctx), true, false)
		if err := w.source.DeleteSeries(query.WithPartial(ctx), &peer.Select{Table: "t", Hi: 1e18}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("deleted, perhaps not everywhere: %v", err)
		}
		if _, err := w.source.Select(ctx, &peer.Select{Table: "new", Hi: 1e18}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a table that may have been made since: %v", err)
		}
		set, err := w.source.Select(query.WithWhole(ctx), &peer.Select{Table: "t", Hi: 2e9})
		if err != nil {
			t.Fatalf("what the map covers: %v", err)
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestANewerMapIsTakenFromStorage: the map has no partition of the asked range, so no server would be asked for rows.
func TestANewerMapIsTakenFromStorage(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cut(time.Minute)
		w.grows()
		q := &peer.Select{Table: "t", Lo: 3e9, Hi: 4e9 - 1}
		w.servers["n1"].mute = true // one metadata server of three does not answer
		ctx, warned := query.WithWarnings(query.WithWhole(w.t.Context()))
		set, err := w.source.Select(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		if m, _ := w.Get("t"); m != w.newest {
			t.Error("the newer map was not taken")
		}
		if texts := warned.Texts(); len(texts) > 0 {
			t.Errorf("warned of %q, though the range is covered", texts)
		}
		if asked := w.servers["n3"].asked; asked != 1 {
			t.Errorf("n3, which has the rows, was asked %d times", asked)
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait() // n1 is asked by a goroutine that may only begin now
		w.servers["n1"].mute = false
	})
}

// LabelNames is the call by which a gateway asks for a newer map.
func (s *storage) LabelNames(ctx context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	s.w.mu.Lock()
	stale, mute, newest := s.staleLocked(q), s.mute, s.w.newest
	s.w.mu.Unlock()
	if mute {
		<-ctx.Done()
		return nil, false, ctx.Err()
	}
	if stale {
		err := fault.Errorf(fault.Stale, "%s does not lead %v", s.id, q.Partitions)
		if newest != nil {
			err = peer.WithMap(err, peer.MapAt{Txn: peer.TxnID{2}, Seq: newest.Seq, Servers: []string{string(s.id)}})
		}
		return nil, false, err
	}
	return s.Store.LabelNames(ctx, q, limit)
}
