package fanout

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestNewerPartitionsLieOverOlder(t *testing.T) {
	p := func(id point.PartitionID, ringLo, ringHi uint64, lo, hi int64) *topology.Partition {
		return &topology.Partition{ID: id, PointLo: ringLo, PointHi: ringHi, TimeLo: lo, TimeHi: hi}
	}
	f := func(want string, ps ...*topology.Partition) {
		t.Helper()
		layers, overlapping := layersOf(ps)
		var got []int
		for _, p := range ps {
			got = append(got, layers[p.ID])
			if overlaps := slices.ContainsFunc(ps, func(q *topology.Partition) bool {
				return q != p && q.TimeLo < p.TimeHi && p.TimeLo < q.TimeHi && p.SharesRing(q)
			}); overlapping[p.ID] != overlaps {
				t.Errorf("%v overlaps others: %v, want %v", p.ID, overlapping[p.ID], overlaps)
			}
		}
		if s := fmt.Sprint(got); s != want {
			t.Errorf("layers %s, want %s", s, want)
		}
	}
	f("[0 0 0]", p(1, 0, 0, 0, 10), p(2, 0, 0, 10, 20), p(3, 0, 0, 20, 30))
	f("[0 0 0]", p(1, 0, 50, 0, 10), p(2, 50, 0, 0, 10), p(3, 0, 0, 10, 20))
	f("[0 1 1]", p(1, 0, 0, 0, 10), p(2, 0, 0, 0, 5), p(3, 0, 0, 5, 10))                        // split by time
	f("[0 1 1 0]", p(1, 0, 0, 0, 10), p(2, 0, 7, 0, 10), p(3, 7, 0, 0, 10), p(4, 0, 0, 10, 20)) // split by ring
	f("[0 1 2 2 1]", p(1, 0, 0, 0, 10), p(2, 0, 0, 0, 5), p(4, 0, 0, 0, 2), p(5, 0, 0, 2, 5), p(3, 0, 0, 5, 10))
	f("[1 0]", p(9, 0, 0, 0, 10), p(4, 0, 0, 5, 10)) // merged into one that begins before it
}

func TestUnite(t *testing.T) {
	f := func(limit int, want string, lists ...[]string) {
		t.Helper()
		all, truncated := unite(lists, limit)
		if got := fmt.Sprint(all, truncated); got != want {
			t.Errorf("%v of %v: %s, want %s", limit, lists, got, want)
		}
	}
	f(0, "[] false")
	f(0, "[a b c] false", []string{"a", "c"}, []string{"b", "c"})
	f(2, "[a b] true", []string{"a", "c"}, []string{"b", "c"})
	f(3, "[a b c] false", []string{"a", "c"}, []string{"b", "c"})
}

func TestExemplarsOfOneSeriesComeTogether(t *testing.T) {
	ex := func(times ...int64) (rows []point.ExemplarRow) {
		for _, at := range times {
			rows = append(rows, point.ExemplarRow{Time: at, Value: float64(at)})
		}
		return rows
	}
	a := []peer.SeriesExemplars{{Labels: "\x01a\x011", Exemplars: ex(1, 5)}, {Labels: "\x01a\x012", Exemplars: ex(2)}}
	b := []peer.SeriesExemplars{{Labels: "\x01a\x011", Exemplars: ex(3, 5)}}
	got := uniteExemplars([][]peer.SeriesExemplars{a, b})
	want := []peer.SeriesExemplars{{Labels: "\x01a\x011", Exemplars: ex(1, 3, 5)}, {Labels: "\x01a\x012", Exemplars: ex(2)}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// counted is a server that has statistics and nothing else.
type counted struct {
	peer.Storage
	st    peer.Stats
	asked int
}

func (c *counted) Stats(_ context.Context, _ string, n int) (*peer.Stats, error) {
	c.asked = n
	return &c.st, nil
}

type countedServers []*counted

func (s countedServers) Server(id topology.ServerID) (peer.Storage, bool) { return s[id[0]-'0'], true }
func (s countedServers) All() []topology.ServerID                         { return []topology.ServerID{"0", "1", "2"}[:len(s)] }

// TestLargestOfAllServers: host is the label with the most values, though on neither server; job has the same three values on both.
func TestLargestOfAllServers(t *testing.T) {
	w := newWorld(t)
	n := func(name string, count uint64) peer.NameCount { return peer.NameCount{Name: name, Count: count} }
	both := countedServers{
		{st: peer.Stats{Series: 10, LabelPairs: 9, HeadRows: 5, SeriesByName: []peer.NameCount{n("up", 7), n("cpu", 6)}, ValuesByLabel: []peer.NameCount{n("host", 6), n("job", 3)}}},
		{st: peer.Stats{Series: 11, LabelPairs: 8, HeadRows: 6, SeriesByName: []peer.NameCount{n("disk", 7), n("cpu", 4)}, ValuesByLabel: []peer.NameCount{n("host", 5), n("job", 3)}}},
	}
	f := func(servers countedServers, warned bool, series, pairs uint64, byName, byLabel peer.NameCount) {
		t.Helper()
		source := New(Deps{Tables: w, Leaders: w, Servers: servers, Log: slog.New(slog.DiscardHandler)}, Settings{})
		ctx, warnings := query.WithWarnings(t.Context())
		st, err := source.Stats(ctx, "t", 1)
		if err != nil {
			t.Fatal(err)
		}
		if st.Series != series || st.LabelPairs != pairs || len(st.SeriesByName) != 1 || st.SeriesByName[0] != byName || st.ValuesByLabel[0] != byLabel {
			t.Errorf("%+v", st)
		}
		if warned != (len(warnings.Texts()) == 1) {
			t.Errorf("warned of %q", warnings.Texts())
		}
		if servers[0].asked < 100 {
			t.Errorf("each server was asked for its %d largest", servers[0].asked)
		}
	}
	f(both, true, 21, 9, n("cpu", 10), n("host", 6))
	f(both[:1], false, 10, 9, n("up", 7), n("host", 6))
}

// TestCopiesAreCountedOnce: three servers had a copy each of a partition's five series, and the page said fifteen, and of its size and times whatever the last of
// them said: 0 bytes since 1970 of one that had not applied its rows.
func TestCopiesAreCountedOnce(t *testing.T) {
	w := newWorld(t)
	server := func(series uint64, ps ...peer.PartitionStats) *counted {
		return &counted{st: peer.Stats{Series: series, SegmentRows: 10, Segments: 1, SeriesByName: []peer.NameCount{{Name: "cpu", Count: series}}, ByPartition: ps}}
	}
	leader := peer.PartitionStats{ID: 7, Rows: 10, Bytes: 100, MinTime: 3, MaxTime: 9, Transfers: []peer.Transfer{{To: "s2"}}}
	behind := peer.PartitionStats{ID: 7, Rows: 10}
	filled := peer.PartitionStats{ID: 7, Rows: 4, Bytes: 40, MinTime: 3, MaxTime: 5, Damaged: "a file"}
	other := peer.PartitionStats{ID: 8, Rows: 1, Bytes: 10, MinTime: 20, MaxTime: 20}
	ask := func(servers ...*counted) *peer.Stats {
		t.Helper()
		st, err := New(Deps{Tables: w, Leaders: w, Servers: countedServers(servers), Log: slog.New(slog.DiscardHandler)}, Settings{}).Stats(t.Context(), "t", 1)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	for _, servers := range [][]*counted{
		{server(5, leader), server(5, behind), server(5, filled)},
		{server(2, filled), server(1, behind), server(5, leader)}, // of some, the rows are not applied yet
	} {
		st := ask(servers...)
		want := peer.PartitionStats{ID: 7, Rows: 10, Bytes: 100, MinTime: 3, MaxTime: 9, Damaged: "a file", Transfers: leader.Transfers}
		if !reflect.DeepEqual(st.ByPartition, []peer.PartitionStats{want}) {
			t.Errorf("partitions %+v, want %+v", st.ByPartition, want)
		}
		if st.Series != 5 || st.SeriesByName[0].Count != 5 || st.SegmentRows != 10 || st.Segments != 1 || st.Partitions != 1 {
			t.Errorf("%+v", st)
		}
	}
	// Two copies each of two partitions on three servers, two series in each: four.
	st := ask(server(2, leader), server(4, leader, other), server(2, other))
	if st.Series != 4 || st.Partitions != 2 || len(st.ByPartition) != 2 {
		t.Errorf("%+v", st)
	}
	// One copy each: nothing is divided.
	if st := ask(server(3, leader), server(4, other)); st.Series != 7 || st.SegmentRows != 20 {
		t.Errorf("%+v", st)
	}
	// No rows at all.
	if st := ask(server(0), server(0)); st.Series != 0 || len(st.ByPartition) != 0 {
		t.Errorf("%+v", st)
	}
}
