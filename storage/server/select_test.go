package server_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// TestTableThatNobodyWroteToIsEmpty asks a fresh server for a table that is only in the map.
func TestTableThatNobodyWroteToIsEmpty(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	if got := read(t, p.server, &peer.Select{Table: "t", Lo: 0, Hi: 300e9}); got != "" {
		t.Errorf("read %s", got)
	}
}

// TestManySeriesComeInOrder selects more series than one batch holds, from several partitions, and closes sets at every
// point of the way.
func TestManySeriesComeInOrder(t *testing.T) {
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer p.stop(t)
	const n = 1500
	stream, err := p.server.OpenStream(context.Background(), "t")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var defs []peer.Def
	for i := range n {
		l := point.MakeLabels("__name__", "m", "i", fmt.Sprint(i))
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: l})
	}
	if err := stream.Define(context.Background(), defs); err != nil {
		t.Fatal(err)
	}
	m, _ := newMap(t).Get("t")
	for k, part := range slices.Collect(m.All()) {
		in := &peer.Insert{Partition: part.ID, Stamp: point.Stamp(k+1) << 10}
		for i := range n {
			if i%3 != k {
				in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(i)), append(in.Times, part.TimeLo+1e9), append(in.Values, float64(i))
			}
		}
		if err := stream.Insert(context.Background(), in); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(defs, func(a, b peer.Def) int { return a.Labels.Compare(b.Labels) })
	for _, stop := range []int{0, 1, 40, 300, n} {
		set, err := p.server.Select(context.Background(), &peer.Select{Table: "t", Lo: 0, Hi: 300e9})
		if err != nil {
			t.Fatal(err)
		}
		for i := range stop {
			if !set.Next() || set.At().Labels != defs[i].Labels || len(set.At().Times) != 2 {
				t.Fatalf("series %d of %d: %v", i, stop, set.Err())
			}
		}
		if stop == n && set.Next() {
			t.Error("more series than there are")
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, most := range []int{1, 7, 100, n} {
		readPages(t, p.server, defs, most)
	}
	set, err := p.server.Select(context.Background(), &peer.Select{Table: "t", Lo: 0, Hi: 300e9, SamplesMax: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for set.Next() {
	}
	if !fault.Is(set.Err(), fault.TooLarge) {
		t.Errorf("more samples than allowed: %v", set.Err())
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}

// readPages reads all series by pages from three goroutines and compares labels and rows with those written.
func readPages(t *testing.T, s *server.Server, defs []peer.Def, most int) {
	t.Helper()
	set, err := s.Select(context.Background(), &peer.Select{Table: "t", Lo: 0, Hi: 300e9})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	var pages sync.Map // by number
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			in := set.(peer.PagedSet).Pager(most)
			defer in.Close()
			for {
				page, ok, err := in.Next()
				if err != nil {
					t.Error(err)
				}
				if !ok {
					return
				}
				if len(page.Series) > most {
					t.Errorf("%d series on a page of at most %d", len(page.Series), most)
				}
				var text []string
				for _, s := range page.Series {
					text = append(text, fmt.Sprint(s.Labels, len(s.Times), s.Values))
				}
				if _, twice := pages.LoadOrStore(page.Number, text); twice {
					t.Errorf("page %d came twice", page.Number)
				}
			}
		})
	}
	readers.Wait()
	var got []string
	for i := 0; ; i++ {
		text, ok := pages.Load(i)
		if !ok {
			break
		}
		got = append(got, text.([]string)...)
	}
	if len(got) != len(defs) {
		t.Fatalf("%d series on pages, want %d", len(got), len(defs))
	}
	for i, d := range defs {
		v := float64(d.ID)
		if want := fmt.Sprint(d.Labels, 2, []float64{v, v}); got[i] != want {
			t.Fatalf("series %d on pages of %d: %s, want %s", i, most, got[i], want)
		}
	}
}
