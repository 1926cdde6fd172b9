package forward

import (
	"fmt"
	"sync"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestRingPointsAreThoseOfTheLabels, asked for by several writes at once, again, and while the dictionary grows.
func TestRingPointsAreThoseOfTheLabels(t *testing.T) {
	d := point.NewDict(0)
	var r ringPoints
	for range 5 {
		for range ringPageLen / 2 {
			l := point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(d.Len()))
			if _, err := d.InternLabels(l, d.Hash([]byte(l))); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for id := range point.SeriesID(d.Len()) {
					if got, want := r.of(d, id), d.Labels(id).RingPoint(); got != want {
						t.Errorf("series %d lies at %#x, not at %#x", id, want, got)
					}
				}
			})
		}
		all.Wait()
	}
}
