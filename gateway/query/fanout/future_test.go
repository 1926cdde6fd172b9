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

// TestPartitionsOfTheFutureThatWereNeverLedAreNotAskedFor: a query up to the end of time is answered although no server leads them. A partition that was
// led, or should be led by now, is asked for.
func TestPartitionsOfTheFutureThatWereNeverLedAreNotAskedFor(t *testing.T) {
	inWorld(t, func(w *world) {
		at := time.Now().Add(24 * time.Hour)
		w.change(func() {
			w.m = w.m.Cover([]point.Nanos{at.UnixNano()}, func(point.PartitionID) []topology.Placement {
				return []topology.Placement{{ID: 9, Server: "n2"}}
			})
		})
		never := map[lease.Partition]bool{{Table: "t", ID: 4}: true}
		w.source.deps.NeverLed = func(p lease.Partition) bool { return never[p] }
		f := func(what string, ctx context.Context, warning string, refused bool) {
			t.Helper()
			ctx, warned := query.WithWarnings(ctx)
			got, err := w.rows(ctx)
			texts := strings.Join(warned.Texts(), "; ")
			switch {
			case refused && !fault.Is(err, fault.Unavailable):
				t.Errorf("%s: %q %v, want it refused", what, got, err)
			case !refused && (err != nil || got != whole || warning == "" != (texts == "") || !strings.Contains(texts, warning)):
				t.Errorf("%s: %q %v, warned of %q", what, got, err, texts)
			}
			w.closed()
		}
		ctx := w.t.Context()
		f("never led", query.WithWhole(ctx), "", false)
		w.cut(4 * time.Second)
		f("cut off a moment ago", query.WithWhole(ctx), "", false)
		w.cut(time.Minute)
		f("cut off", ctx, "may be missing", false)
		f("cut off, and nothing may be missing", query.WithWhole(ctx), "", true)
		w.cut(0)
		never[lease.Partition{Table: "t", ID: 4}] = false
		f("it was led once", ctx, "", true)
		never[lease.Partition{Table: "t", ID: 4}] = true
		time.Sleep(time.Until(at.Add(-20 * time.Second)))
		f("it should be led by now", ctx, "", true)
	})
}
