package forward_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// TestKnownSeriesAreNotDrawnByLotsAtALimit: a table at its limit of series gets a new dictionary every ten minutes, so that
// series that are gone make room. Its sender goes on with more series than it may have, the ones too many first.
func TestKnownSeriesAreNotDrawnByLotsAtALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hundred := setting.Count(100)
		r, err := limits.New(limits.Deps{}, limits.Settings{Defaults: limits.Set{ActiveSeries: &hundred}})
		if err != nil {
			t.Fatal(err)
		}
		c := newClusterWith(t, func(d *forward.Deps) {
			d.Limits = func(table string) forward.Limits { return r.Table(table) }
		}, forward.Settings{GenerationAgeMin: 10 * time.Minute, GenerationAge: 2 * time.Hour}, "n1")
		if n := c.intern("a", 0, 100); n != 100 {
			t.Fatalf("%d of 100", n)
		}
		for range 65 {
			time.Sleep(time.Minute)
			if n := c.intern("a", 1000, 200); n != 0 {
				t.Fatalf("%d series too many are taken", n)
			}
			if n := c.intern("a", 0, 100); n != 100 {
				t.Fatalf("%d of 100 known series go on", n)
			}
		}
		// Sixty of them end; after a dictionary's time there is room for as many others.
		others := 0
		for range 20 {
			time.Sleep(time.Minute)
			if n := c.intern("a", 0, 40); n != 40 {
				t.Fatalf("%d of the 40 that are left go on", n)
			}
			others = c.intern("a", 1000, 200)
		}
		if others != 60 {
			t.Errorf("%d others are taken for 60 that ended", others)
		}
	})
}
