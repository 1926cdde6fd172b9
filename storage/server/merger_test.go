package server_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestPartitionsWithTheSameSeriesAreReadAsOne: of three partitions after a restart two have the same series under other numbers, and one lacks some and has some more.
// Each selector is asked twice, and again with rows that come late, and with others deleted, and with new series.
func TestPartitionsWithTheSameSeriesAreReadAsOne(t *testing.T) {
	const series = 300
	fs, maps := vfs.NewMem(), newMap(t)
	p := start(t, fs, maps, 1)
	w, truth, rng := newWriter(t, p.server), model{}, rand.New(rand.NewPCG(1, 2))
	stamp := point.Stamp(1 << 10)
	insert := func(at int64, series []int) {
		var rows []row
		for _, i := range series {
			for k := range int64(3) {
				rows = append(rows, row{series: i, at: at + k*1e9, value: rng.Float64()})
			}
		}
		stamp++
		w.insert(t, stamp, rows, truth)
	}
	insert(10e9, rng.Perm(series))
	insert(110e9, rng.Perm(series))
	var others []int
	for _, i := range rng.Perm(series) {
		others = append(others, i+i%2*series) // each other one is another
	}
	insert(210e9, others)
	w.flush(t, true)
	p.stop(t)
	p = start(t, fs, maps, 2)
	defer func() { p.stop(t) }()
	check := func(when string) {
		t.Helper()
		for range 2 {
			for digit := range 10 {
				keep := func(l point.Labels) bool { return strings.HasSuffix(l.Get("i"), fmt.Sprint(digit)) }
				for _, in := range [][2]int64{{0, 300e9}, {0, 150e9}, {111e9, 211e9}} {
					q := &peer.Select{Table: "t", Lo: in[0], Hi: in[1], Matchers: []peer.Matcher{{Type: peer.MatchRegexp, Name: "i", Value: fmt.Sprintf(".*%d", digit)}}}
					if got, want := read(t, p.server, q), truth.String(in[0], in[1], keep); got != want {
						t.Fatalf("%s, ending in %d from %d to %d:\n%s\nwant\n%s", when, digit, in[0], in[1], got, want)
					}
				}
			}
			if got, want := read(t, p.server, &peer.Select{Table: "t", Hi: 300e9}), truth.String(0, 300e9, func(point.Labels) bool { return true }); got != want {
				t.Fatalf("%s: all series differ", when)
			}
		}
	}
	check("after a restart")
	if err := p.server.DeleteSeries(t.Context(), &peer.Select{Table: "t", Lo: 100e9, Hi: 111e9, Matchers: []peer.Matcher{{Name: "i", Value: "8"}, {Name: "__name__", Value: "m"}}}); err != nil {
		t.Fatal(err)
	}
	for at := range truth[string(labelsOf(8))] {
		if at >= 100e9 && at <= 111e9 {
			delete(truth[string(labelsOf(8))], at)
		}
	}
	check("after a deletion")
	w = newWriter(t, p.server)
	insert(20e9, []int{3, 8, 17, 3 * series})
	check("with late rows")
}
