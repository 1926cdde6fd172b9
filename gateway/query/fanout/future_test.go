package fanout

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// cover makes a partition of a time, which no server is found to lead. Its ID is 4.
func (w *world) cover(at time.Time) {
	w.change(func() {
		w.m = w.m.Cover([]point.Nanos{at.UnixNano()}, func(point.PartitionID) []topology.Placement {
			return []topology.Placement{{ID: 9, Server: "n2"}}
		})
	})
}

// answers checks that all rows are read, with a warning if one is named and with none else, or that the query is refused.
func (w *world) answers(what string, ctx context.Context, warning string, refused bool) {
	w.t.Helper()
	ctx, warned := query.WithWarnings(ctx)
	got, err := w.rows(ctx)
	texts := strings.Join(warned.Texts(), "; ")
	switch {
	case refused && !fault.Is(err, fault.Unavailable):
		w.t.Errorf("%s: %q %v, want it refused", what, got, err)
	case !refused && (err != nil || got != whole || warning == "" != (texts == "") || !strings.Contains(texts, warning)):
		w.t.Errorf("%s: %q %v, warned of %q", what, got, err, texts)
	}
	w.closed()
}

// TestPartitionsOfTheFutureThatWereNeverLedAreNotAskedFor: a query up to the end of time is answered although no server leads them. A partition that was
// led, or should be led by now, is asked for.
func TestPartitionsOfTheFutureThatWereNeverLedAreNotAskedFor(t *testing.T) {
	inWorld(t, func(w *world) {
		at := time.Now().Add(24 * time.Hour)
		w.cover(at)
		never := map[lease.Partition]bool{{Table: "t", ID: 4}: true}
		w.source.deps.NeverLed = func(p lease.Partition) bool { return never[p] }
		ctx := w.t.Context()
		w.answers("never led", query.WithWhole(ctx), "", false)
		w.cut(4 * time.Second)
		w.answers("cut off a moment ago", query.WithWhole(ctx), "", false)
		w.cut(time.Minute)
		w.answers("cut off", ctx, "may be missing", false)
		w.answers("cut off, and nothing may be missing", query.WithWhole(ctx), "", true)
		w.cut(0)
		never[lease.Partition{Table: "t", ID: 4}] = false
		w.answers("it was led once", ctx, "", true)
		never[lease.Partition{Table: "t", ID: 4}] = true
		time.Sleep(time.Until(at.Add(-20 * time.Second)))
		w.answers("it should be led by now", ctx, "", true)
	})
}

// TestQueriesUpToNowAreAnsweredWhereAnHourEndsWithoutTheCoordinationStore: the partition of the next hour was led and had no row yet. No server leads such a one
// while the store is away, and queries of all hours were refused for it.
func TestQueriesUpToNowAreAnsweredWhereAnHourEndsWithoutTheCoordinationStore(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cover(time.Now())
		empty := true
		w.source.deps.HadNoRows = func(p lease.Partition) bool { return p.ID == 4 && empty }
		w.answers("the store answers", w.t.Context(), "", true)
		w.cut(time.Minute)
		w.answers("cut off", w.t.Context(), "may be missing", false)
		w.answers("cut off, and nothing may be missing", query.WithWhole(w.t.Context()), "", true)
		empty = false
		w.answers("cut off, and it had rows", w.t.Context(), "", true)
	})
}

// TestARowOfTheFutureAckedThroughAnotherGatewayIsNotMissed: the watch of this gateway has not brought the lease row of a partition of the future. Its
// first row was acked through another one. The view catches up before the partition is left out, once for each request; if it cannot, the answer says so.
func TestARowOfTheFutureAckedThroughAnotherGatewayIsNotMissed(t *testing.T) {
	inWorld(t, func(w *world) {
		at := time.Now().Add(24 * time.Hour)
		w.cover(at)
		never, calls := true, 0
		var late error
		w.source.deps.NeverLed = func(p lease.Partition) bool { return p.ID == 4 && never }
		w.source.deps.CaughtUp = func(context.Context) error { calls++; return late }
		ctx, warned := query.WithWarnings(w.t.Context())
		if got, err := w.rows(ctx); err != nil || got != whole || calls != 1 || len(warned.Texts()) > 0 {
			t.Errorf("nothing was written: %q %v, %d calls, warned of %q", got, err, calls, warned.Texts())
		}
		w.closed()
		late = fault.Errorf(fault.Unavailable, "the watch is late")
		ctx, warned = query.WithWarnings(w.t.Context())
		if got, err := w.rows(ctx); err != nil || got != whole || !strings.Contains(strings.Join(warned.Texts(), ""), "may be missing") {
			t.Errorf("the view cannot catch up: %q %v, warned of %q", got, err, warned.Texts())
		}
		w.closed()
		if got, err := w.rows(query.WithWhole(w.t.Context())); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the view cannot catch up, and nothing may be missing: %q %v", got, err)
		}
		w.closed()
		late = nil
		w.source.deps.CaughtUp = func(context.Context) error { never = false; return nil }
		if got, err := w.rows(w.t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("it was led, by a server that is not found: %q %v, want it asked for", got, err)
		}
		w.closed()
	})
}
