package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func someSeries(n, rows int) []peer.Series {
	shared := make([]point.Nanos, rows)
	for i := range shared {
		shared[i] = int64(i) * 15e9
	}
	out := make([]peer.Series, n)
	for i := range out {
		s := &out[i]
		s.Labels = point.MakeLabels("__name__", "m", "i", fmt.Sprintf("%06d", i), "k", "v")
		s.Times = shared
		if i%5 == 4 {
			s.Times = slices.Clone(shared)
			for k := range s.Times {
				s.Times[k] += int64(k*k%97) + int64(i)
			}
		}
		s.Values = make([]float64, rows)
		for k := range s.Values {
			s.Values[k] = float64(i) + float64(k)/8
		}
		if i%3 == 2 {
			s.Hists = []peer.Hist{{Time: int64(i), H: []byte(fmt.Sprint("h", i))}, {Time: int64(i) + 1, H: []byte("x")}}
		}
	}
	return out
}

func readAll(set peer.SeriesSet, err error) ([]peer.Series, error) {
	if err != nil {
		return nil, err
	}
	var out []peer.Series
	for set.Next() {
		out = append(out, *set.At())
	}
	err = set.Err()
	return out, errors.Join(err, set.Close())
}

// someRanks are ranks in runs, as frames leave them.
func someRanks(n int) []point.Stamp {
	out := make([]point.Stamp, n)
	for i := range out {
		out[i] = point.Stamp(1_790_000_000e9+int64(i/7)*1024) ^ point.Stamp(i/900)<<40
	}
	return out
}

func TestSelectGivesWhatThePeerHas(t *testing.T) {
	m, p := pair(t)
	check := func(what string, series []peer.Series) {
		t.Helper()
		for i := range series {
			s := &series[i]
			s.Ranks, s.HistRanks = someRanks(len(s.Times)), someRanks(len(s.Hists))
		}
		m.mu.Lock()
		m.series = series
		m.mu.Unlock()
		ranked, err := readAll(p.Select(t.Context(), &peer.Select{Ranks: true}))
		if err != nil || !m.last.(*peer.Select).Ranks {
			t.Fatalf("%s with ranks: %v", what, err)
		}
		for i := range ranked {
			a, b := &series[i], &ranked[i]
			if !slices.Equal(a.Ranks, b.Ranks) || !slices.Equal(a.HistRanks, b.HistRanks) || !slices.Equal(a.Times, b.Times) {
				t.Fatalf("%s with ranks: series %d has %.200v, want %.200v", what, i, b.Ranks, a.Ranks)
			}
		}
		got, err := readAll(p.Select(t.Context(), &peer.Select{}))
		if err != nil || m.last.(*peer.Select).Ranks {
			t.Fatalf("%s: %v", what, err)
		}
		if len(got) != len(series) {
			t.Fatalf("%s: %d series, want %d", what, len(got), len(series))
		}
		for i := range got {
			a, b := &series[i], &got[i]
			ok := a.Labels == b.Labels && b.Ranks == nil && b.HistRanks == nil && slices.Equal(a.Times, b.Times) && slices.Equal(a.Values, b.Values) && len(a.Hists) == len(b.Hists)
			for k := range a.Hists {
				ok = ok && a.Hists[k].Time == b.Hists[k].Time && string(a.Hists[k].H) == string(b.Hists[k].H)
			}
			if !ok {
				t.Fatalf("%s: series %d is %.200v, want %.200v", what, i, b, a)
			}
		}
	}
	check("nothing", nil)
	check("one row each", someSeries(10_000, 1))
	check("several batches", someSeries(200, 700))
	check("series in pieces", someSeries(4, 3*pieceRowsMax+17))
	only := []peer.Series{{Labels: point.MakeLabels("__name__", "h")}}
	for i := range 3000 {
		only[0].Hists = append(only[0].Hists, peer.Hist{Time: int64(i), H: make([]byte, 500)})
	}
	check("histograms in pieces", only)
	labels := someSeries(9000, 0)
	for i := range labels {
		labels[i].Times, labels[i].Values, labels[i].Hists = nil, nil, nil
	}
	check("labels only", labels)
	m.until(t, "all sets are closed", func() bool { return m.sets == 0 })
}

// TestSharedTimesAreShared: series of one host have one column of times in memory, here as there.
func TestSharedTimesAreShared(t *testing.T) {
	m, p := pair(t)
	m.series = someSeries(4, 100)
	got, err := readAll(p.Select(t.Context(), &peer.Select{}))
	if err != nil {
		t.Fatal(err)
	}
	if &got[0].Times[0] != &got[3].Times[0] {
		t.Error("the same times came twice")
	}
	got[0].Values = append(got[0].Values, 1) // belongs to the caller: no other reader sees it
	if got[1].Values[0] != m.series[1].Values[0] {
		t.Error("appending to one series changes the next")
	}
}

func TestClosingASelectEndsItAtThePeer(t *testing.T) {
	m, p := pair(t)
	m.series = someSeries(2000, 5000) // 160 MB: far more than windows hold
	set, err := p.Select(t.Context(), &peer.Select{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if !set.Next() {
			t.Fatal(set.Err())
		}
	}
	if m.sets != 1 {
		t.Error("the peer read to the end although nobody took it")
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	if set.Next() {
		t.Error("a closed set goes on")
	}
	m.until(t, "the peer's set is closed", func() bool { return m.sets == 0 })

	ctx, cancel := context.WithCancel(t.Context())
	set, err = p.Select(ctx, &peer.Select{})
	if err != nil {
		t.Fatal(err)
	}
	set.Next()
	cancel()
	for set.Next() {
	}
	wantKind(t, "a select whose asker went away", set.Err(), fault.Canceled)
	_ = set.Close()
	m.until(t, "the peer's set is closed", func() bool { return m.sets == 0 })
}
