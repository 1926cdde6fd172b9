package server_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// labelSets makes distinct sets of labels, of which some are the beginnings of others and some lack names that others have.
func labelSets(r *rand.Rand, n int) (sets []point.Labels) {
	seen := map[point.Labels]bool{}
	for len(sets) < n {
		pairs := []string{"__name__", fmt.Sprintf("m%d", r.IntN(3))}
		for _, name := range []string{"Z", "host", "job", "pod"} {
			values := 3
			if name == "pod" {
				values = n
			}
			if r.IntN(4) > 0 {
				pairs = append(pairs, name, fmt.Sprint(r.IntN(values)))
			}
		}
		if l := point.MakeLabels(pairs...); !seen[l] {
			seen[l] = true
			sets = append(sets, l)
		}
	}
	return sets
}

// putAt writes a row of each series into a partition of newMap, at a second of it.
func putAt(t *testing.T, s *server.Server, of []point.Labels, partition, second int, stamp point.Stamp) {
	t.Helper()
	st, err := s.OpenStream(context.Background(), "t")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var defs []peer.Def
	in := peer.Insert{Partition: point.PartitionID(partition), Stamp: stamp << 10}
	for i, l := range of {
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: l})
		in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(i)), append(in.Times, int64(partition-1)*100e9+int64(second)*1e9), append(in.Values, 1)
	}
	if err := st.Define(context.Background(), defs); err != nil {
		t.Fatal(err)
	}
	if err := st.Insert(context.Background(), &in); err != nil {
		t.Fatal(err)
	}
}

func listed(t *testing.T, s *server.Server, q peer.Select) (all []point.Labels) {
	t.Helper()
	q.LabelsOnly = true
	set, err := s.Select(context.Background(), &q)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for set.Next() {
		all = append(all, set.At().Labels)
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return all
}

var limitedSelectors = [][]peer.Matcher{
	nil,
	{{Name: "__name__", Value: "m1"}},
	{{Type: peer.MatchRegexp, Name: "__name__", Value: "m.*"}, {Name: "host", Value: "2"}},
	{{Type: peer.MatchNotEqual, Name: "job", Value: "1"}},
	{{Name: "host", Value: ""}},
	{{Name: "__name__", Value: "none"}},
}

// sameLimited compares look-ups with limits with those without, each twice, as the second is answered from the cache.
func sameLimited(t *testing.T, what string, s *server.Server) {
	t.Helper()
	for _, ms := range limitedSelectors {
		for _, hi := range []point.Nanos{300e9, 150e9, 20e9} {
			q := peer.Select{Table: "t", Lo: 0, Hi: hi, Matchers: ms}
			all := listed(t, s, q)
			for _, limit := range []int{1, 2, 10, 300, len(all) - 1, len(all), len(all) + 1, 1 << 62} {
				if q.Limit = limit; limit < 1 {
					continue
				}
				want := all[:min(limit, len(all))]
				for range 2 {
					if got := listed(t, s, q); !slices.Equal(got, want) {
						t.Fatalf("%s, %v to %d, first %d: %d series, not the first %d of all", what, ms, hi, limit, len(got), len(want))
					}
				}
			}
			for _, name := range []string{"pod", "host", "none"} {
				sameValues(t, what, s, q, name)
			}
		}
	}
}

func sameValues(t *testing.T, what string, s *server.Server, q peer.Select, name string) {
	t.Helper()
	all, more, err := s.LabelValues(context.Background(), &q, name, 0)
	if err != nil || more {
		t.Fatal(more, err)
	}
	for _, limit := range []int{1, 2, 10, 600, len(all) - 1, len(all), len(all) + 1, 1<<63 - 1} {
		if limit < 1 {
			continue
		}
		want := all[:min(limit, len(all))]
		for range 2 {
			if got, more, err := s.LabelValues(context.Background(), &q, name, limit); err != nil || more != (limit < len(all)) || !slices.Equal(got, want) {
				t.Fatalf("%s, %v, first %d values of %s: %d, more %v, %v; want %d of %d", what, q.Matchers, limit, name, len(got), more, err, len(want), len(all))
			}
		}
	}
}

// TestLimitedLookupsAreTheFirstOfAll asks for the first series and values, from memory, segments, partitions of which most series are in segments alone, and with
// series whose rows were deleted.
func TestLimitedLookupsAreTheFirstOfAll(t *testing.T) {
	fs, maps, r := vfs.NewMem(), newMap(t), rand.New(rand.NewPCG(3, 4))
	sets := labelSets(r, 4000)
	p := start(t, fs, maps, 1)
	putAt(t, p.server, sets[:2500], 1, 10, 1)
	putAt(t, p.server, sets[1500:], 2, 10, 2)
	sameLimited(t, "in memory", p.server)
	if err := p.server.FlushAll(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	sameLimited(t, "flushed", p.server)
	p.stop(t)
	p = start(t, fs, maps, 2)
	sameLimited(t, "in segments", p.server)
	putAt(t, p.server, sets[2400:2700], 1, 60, 3)
	putAt(t, p.server, sets[:900], 3, 60, 4)
	sameLimited(t, "in segments and memory", p.server)
	if err := p.server.DeleteSeries(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: 300e9, Matchers: []peer.Matcher{{Name: "__name__", Value: "m0"}, {Name: "job", Value: "0"}}}); err != nil {
		t.Fatal(err)
	}
	if err := p.server.CleanTombstones(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: 300e9}); err != nil {
		t.Fatal(err)
	}
	if err := p.server.FlushAll(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	sameLimited(t, "with deleted series", p.server)
	p.stop(t)
	p = start(t, fs, maps, 3)
	sameLimited(t, "with deleted series in segments", p.server)
	p.stop(t)
}

// TestLimitedLookupsLeaveOutSeriesOfOtherTimes has so many series that a look-up asks which have rows in its time.
func TestLimitedLookupsLeaveOutSeriesOfOtherTimes(t *testing.T) {
	fs, maps := vfs.NewMem(), newMap(t)
	var sets []point.Labels
	for i := range 17_000 {
		sets = append(sets, point.MakeLabels("__name__", "m1", "pod", fmt.Sprintf("%05d", i)))
	}
	p := start(t, fs, maps, 1)
	putAt(t, p.server, sets[:9000], 1, 90, 1)
	if err := p.server.FlushAll(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	putAt(t, p.server, sets[9000:], 1, 1, 2)
	for _, what := range []string{"in memory", "in segments"} {
		q := peer.Select{Table: "t", Lo: 0, Hi: 20e9}
		all := listed(t, p.server, q)
		if len(all) == 0 || all[0] != sets[9000] {
			t.Fatalf("%s: %d series, from %v", what, len(all), all[:1])
		}
		for _, limit := range []int{1, 5000, len(all) + 1} {
			if q.Limit = limit; !slices.Equal(listed(t, p.server, q), all[:min(limit, len(all))]) {
				t.Errorf("%s: others are the first %d", what, limit)
			}
		}
		if err := p.server.FlushAll(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		p.stop(t)
		p = start(t, fs, maps, 2)
	}
	p.stop(t)
}

// TestFewOfManySeriesAreListed asks for three of more series than a query may have, in less memory than these need.
func TestFewOfManySeriesAreListed(t *testing.T) {
	fs, maps := vfs.NewMem(), newMap(t)
	var sets []point.Labels
	for i := range 4000 {
		sets = append(sets, point.MakeLabels("__name__", "m1", "host", fmt.Sprint(i%100), "pod", fmt.Sprint(i)))
	}
	p := start(t, fs, maps, 1)
	defer func() { p.stop(t) }()
	putAt(t, p.server, sets, 1, 10, 1)
	for _, what := range []string{"in memory", "in segments"} {
		loan, err := budget.New("test", 64<<20).Borrow(t.Context(), 256<<10)
		if err != nil {
			t.Fatal(err)
		}
		q := &peer.Select{Table: "t", Lo: 0, Hi: 300e9, LabelsOnly: true, Limit: 3, SeriesMax: 1000}
		set, err := p.server.Select(budget.WithLoan(t.Context(), loan), q)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		n := 0
		for set.Next() {
			n++
		}
		if err := set.Close(); err != nil || n != 3 {
			t.Errorf("%s: %d series, %v", what, n, err)
		}
		loan.Close()
		if err := p.server.FlushAll(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		p.stop(t)
		p = start(t, fs, maps, 2)
	}
}

// TestALimitBeyondTheBoundOfSeriesReadsNoMoreThanOneMore has too little memory for all series that match. The look-up must be refused because of
// the bound of series, not for memory.
func TestALimitBeyondTheBoundOfSeriesReadsNoMoreThanOneMore(t *testing.T) {
	var sets []point.Labels
	for i := range 4000 {
		sets = append(sets, point.MakeLabels("__name__", "m1", "host", fmt.Sprint(i%100), "pod", fmt.Sprint(i)))
	}
	p := start(t, vfs.NewMem(), newMap(t), 1)
	defer func() { p.stop(t) }()
	putAt(t, p.server, sets, 1, 10, 1)
	for _, limit := range []int{4000, math.MaxInt} {
		loan, err := budget.New("test", 64<<20).Borrow(t.Context(), 256<<10)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.server.Select(budget.WithLoan(t.Context(), loan), &peer.Select{Table: "t", Lo: 0, Hi: 300e9, LabelsOnly: true, Limit: limit, SeriesMax: 10})
		if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "more than 10 series") {
			t.Errorf("limit %d: %v", limit, err)
		}
		loan.Close()
	}
}

// TestANegativeLimitIsNone asks segments for values with a negative limit, as a peer might. The answer was empty, and stayed in the cache for questions without a limit.
func TestANegativeLimitIsNone(t *testing.T) {
	fs, maps := vfs.NewMem(), newMap(t)
	p := start(t, fs, maps, 1)
	putAt(t, p.server, []point.Labels{point.MakeLabels("__name__", "a"), point.MakeLabels("__name__", "b")}, 1, 10, 1)
	if err := p.server.FlushAll(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	p.stop(t)
	p = start(t, fs, maps, 2)
	defer p.stop(t)
	for _, limit := range []int{-7, 0, -1, math.MinInt} {
		values, more, err := p.server.LabelValues(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: 300e9}, "__name__", limit)
		if err != nil || more || !slices.Equal(values, []string{"a", "b"}) {
			t.Errorf("limit %d: %v, more %v, %v", limit, values, more, err)
		}
	}
}
