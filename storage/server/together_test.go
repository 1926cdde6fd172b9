package server_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/server"
	"github.com/spillwaydb/spillway/storage/staging"
	"github.com/spillwaydb/spillway/storage/staging/runner"
)

// ofMap is what a store of staged frames that forwards none asks of the cluster.
type ofMap struct {
	runner.Ways
	m *topology.Map
}

// Map implements runner.Ways.
func (w ofMap) Map(string) (*topology.Map, uint64) { return w.m, 0 }

// staged are inserts of one row each, of series 0, that go together: values 1, 2 …, at rising ranks.
func staged(do peer.StagingDo, at point.Nanos, n int) (all []*peer.Insert) {
	for i := range n {
		in := &peer.Insert{Stamp: rank.At(1_790_000_000e9) + point.Stamp(i+1)*rank.Step, Level: point.All, Staging: &peer.Staging{Do: do, Nonce: uint64(i + 1)}}
		if do != peer.Forget {
			in.IDs, in.Times, in.Values = []point.SeriesID{0}, []point.Nanos{at}, []float64{float64(i + 1)}
		}
		if do == peer.Stage {
			in.Staging.Holders, in.Staging.Due, in.Times[0] = []string{"s1"}, 1<<62, at+point.Nanos(i)
		}
		all = append(all, in)
	}
	return all
}

// values reads all rows that a server has staged, or those of its partitions.
func values(t *testing.T, s peer.Storage, from peer.Copies) string {
	t.Helper()
	set, err := s.Select(t.Context(), &peer.Select{Table: "t", Lo: 0, Hi: 300e9, Copies: from})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = set.Close() }()
	var all []float64
	for set.Next() {
		all = append(all, set.At().Values...)
	}
	if err := set.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

// TestInsertsOfStagingDoTogetherWhatEachDoes: they are staged, forgotten and forwarded, each by its own name and rank, and none is where one is refused.
func TestInsertsOfStagingDoTogetherWhatEachDoes(t *testing.T) {
	fs, maps := vfs.NewMem(), newMap(t)
	store, err := runner.Open(runner.Deps{FS: fs, Dir: "staging", Log: slog.New(slog.DiscardHandler), Room: func(int64) error { return nil },
		Announce: func(context.Context, []string) error { return nil }, Ways: ofMap{m: maps.m}}, staging.Settings{Server: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	p := startWith(t, fs, maps, server.Settings{Server: "s1", Epoch: 1}, func(d *server.Deps) { d.Staging = store })
	defer p.stop(t)
	stream, err := p.server.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	if err := stream.Define(t.Context(), []peer.Def{{ID: 0, Labels: labelsOf(0)}}); err != nil {
		t.Fatal(err)
	}
	to := stream.(peer.Together)
	refused := func(what string, kind fault.Kind, all []*peer.Insert) {
		t.Helper()
		if err := to.InsertTogether(t.Context(), all); err == nil || !fault.Is(err, kind) {
			t.Errorf("%s: %v", what, err)
		}
	}
	do := func(what string, all []*peer.Insert) {
		t.Helper()
		if err := to.InsertTogether(t.Context(), all); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	want := func(what string, from peer.Copies, want string) {
		t.Helper()
		if got := values(t, p.server, from); got != want {
			t.Errorf("%s: read %s, want %s", what, got, want)
		}
	}
	none := staged(peer.Stage, 5, 2)
	none[1].IDs[0] = 9
	refused("one names a series that is not defined", fault.Internal, none)
	refused("one is of another kind", fault.Invalid, slices.Concat(staged(peer.Stage, 5, 1), staged(peer.Forward, 5, 1)))
	want("after those", peer.StagedRows, "[]")
	do("stage", staged(peer.Stage, 5, 4))
	want("staged", peer.StagedRows, "[1 2 3 4]")
	do("forget", staged(peer.Forget, 0, 3))
	want("forgotten", peer.StagedRows, "[4]")
	m := maps.m
	first, _ := m.Find(0, 5)
	forward := staged(peer.Forward, 5, 3)
	for _, in := range forward {
		in.Partition, in.MapSeq = first.ID, m.Seq
	}
	slices.Reverse(forward)
	do("forward", forward)
	do("forward once more", forward)
	want("of the ranks the highest", 0, "[3]")
	elsewhere := staged(peer.Forward, 5, 2)
	for _, in := range elsewhere {
		in.Partition = 999
	}
	refused("a partition that is not here", fault.Stale, elsewhere)

	bare := startWith(t, vfs.NewMem(), maps, server.Settings{Server: "s1", Epoch: 1})
	defer bare.stop(t)
	other, err := bare.server.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	to = other.(peer.Together)
	refused("a server that stages nothing", fault.Unavailable, staged(peer.Stage, 5, 2))
	refused("and forgets nothing", fault.Unavailable, staged(peer.Forget, 5, 2))
}
