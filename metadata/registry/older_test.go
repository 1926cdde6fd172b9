package registry

import (
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
)

// TestAServerThatIsKnownToStageStaysSo: a list that was asked for before the rows were read directly, and came later, removed servers again that had begun to stage rows, while the
// view counted as the newest. A reader did not ask them, and did not warn.
func TestAServerThatIsKnownToStageStaysSo(t *testing.T) {
	store := mem.New()
	v, err := Open(t.Context(), store, slog.New(slog.DiscardHandler), rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	if err := Register(t.Context(), store, Server{ID: "gone", Addr: "g:1", Host: "g", Store: "x"}, false, nil); err != nil {
		t.Fatal(err)
	}
	prove := func() {
		t.Helper()
		if err := v.prove(t.Context(), store); err != nil {
			t.Fatal(err)
		}
	}
	prove()
	late, at, err := store.List(t.Context(), Prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := Register(t.Context(), store, Server{ID: "s1", Addr: "s:1", Host: "s", Store: "y", Staging: StagingOf([]string{"cpu"})}, false, nil); err != nil {
		t.Fatal(err)
	}
	prove()
	if err := (follower{v}).Listed(late, at); err != nil {
		t.Fatal(err)
	}
	if got := v.Staging("cpu"); len(got) != 1 || got[0] != "s1" {
		t.Errorf("servers that stage rows of cpu: %v", got)
	}
	if err := (follower{v}).Changed([]coord.Event{{Row: coord.Row{Key: Key("s1"), Revision: at}, Deleted: true}}); err != nil {
		t.Fatal(err)
	}
	if _, there := v.Get("s1"); !there {
		t.Error("a server that registered again is gone by the removal before")
	}
	// One that is not in a newer list is gone.
	if _, ok, err := store.Commit(t.Context(), nil, []coord.Write{{Key: Key("gone"), Delete: true}}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	rows, rev, err := store.List(t.Context(), Prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := (follower{v}).Listed(rows, rev); err != nil {
		t.Fatal(err)
	}
	if all := v.All(); len(all) != 1 || all[0].ID != "s1" {
		t.Errorf("there are %v", all)
	}
}
