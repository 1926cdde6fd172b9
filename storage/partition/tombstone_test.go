package partition

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// However many deletions cover a series, the rows that none covers are left, in no more pieces than needed: many deletions of one
// range must not double the work each.
func TestDeletionsLeaveWhatNoneOfThemCovers(t *testing.T) {
	l := labelsOf("1")
	rapid.Check(t, func(t *rapid.T) {
		var r rows.Run
		for at := range int64(30) {
			r.Times, r.Values = append(r.Times, at), append(r.Values, float64(at))
		}
		bound := rapid.OneOf(rapid.Int64Range(-1, 31), rapid.Just(int64(math.MinInt64)), rapid.Just(int64(math.MaxInt64)))
		var ts []Tombstone
		for range rapid.IntRange(0, 60).Draw(t, "deletions") {
			i := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "series")
			ts = append(ts, Tombstone{Matchers: []peer.Matcher{{Name: "i", Value: i}}, Lo: bound.Draw(t, "lo"), Hi: bound.Draw(t, "hi")})
		}
		cs, err := compileTombstones(ts)
		if err != nil {
			t.Fatal(err)
		}
		var want []int64
		for _, at := range r.Times {
			gone := false
			for _, d := range ts {
				gone = gone || d.Matchers[0].Value == "1" && at >= d.Lo && at <= d.Hi
			}
			if !gone {
				want = append(want, at)
			}
		}
		pieces := cs.apply(l, r)
		if len(pieces) > len(ts)+1 {
			t.Fatalf("%d pieces after %d deletions", len(pieces), len(ts))
		}
		var got []point.Nanos
		for _, p := range pieces {
			got = append(got, p.Times...)
			if p.Len() == 0 && len(ts) > 0 {
				t.Fatal("an empty piece")
			}
		}
		if len(got) != len(want) {
			t.Fatalf("left %v, want %v", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("left %v, want %v", got, want)
			}
		}
	})
}
