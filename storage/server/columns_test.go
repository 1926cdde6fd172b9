package server_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/server"
)

// TestPagesOfAlternatingSeriesHaveAllRows: partitions in turn have one list of series, another one, and the first again, whose values lie side by side. Some pages are read
// with a partition behind later ones: rows of some series of a page follow, those of others do not, and all come once.
func TestPagesOfAlternatingSeriesHaveAllRows(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	w := newWriter(t, p.server)
	defer w.stream.Close()
	truth := model{}
	for part, first := range []int{3, 0, 3} {
		var all []row
		for i := first; i < first+6; i++ {
			for k := range int64(2) {
				at := int64(part)*100e9 + 10 + k
				all = append(all, row{series: i, at: at, value: float64(i) + float64(at)})
			}
		}
		w.insert(t, 1024, all, truth)
	}
	w.flush(t, true)
	q := &peer.Select{Table: "t", Lo: math.MinInt64, Hi: math.MaxInt64}
	want := read(t, p.server, q)
	if strings.Count(want, "\n") != 9 {
		t.Fatalf("a select found\n%s", want)
	}
	for _, most := range []int{2, 99} {
		for _, last := range []int{-1, 0, 1, 2} {
			for range 2 { // the second finds the columns of the first
				if got := pagesWithLast(t, p.server, q, most, last); got != want {
					t.Errorf("pages of %d series, partition %d behind the others:\n%swant\n%s", most, last, got, want)
				}
			}
		}
	}
}

// pagesWithLast reads by pages of so many series, with one of the partitions behind all others, or none.
func pagesWithLast(t *testing.T, s *server.Server, q *peer.Select, most, last int) string {
	set, err := s.Select(context.Background(), q)
	must(t, err)
	defer set.Close()
	server.ReadLast(set, last)
	in := set.(peer.PagedSet).Pager(most)
	defer in.Close()
	var b strings.Builder
	for {
		page, ok, err := in.Next()
		must(t, err)
		if !ok {
			return b.String()
		}
		for i := range page.Series {
			writeSeries(&b, &page.Series[i])
		}
	}
}
