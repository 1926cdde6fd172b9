package tables_test

import (
	"testing"

	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestANamedMapIsHadWithoutTheStore: the reader's store is away. A map that is named wrongly is not taken.
func TestANamedMapIsHadWithoutTheStore(t *testing.T) {
	site := newSite(t, 3)
	writer := site.open(tables.Settings{CreateOnWrite: true})
	cover := func(at point.Nanos) peer.MapAt {
		t.Helper()
		if _, err := writer.Cover(t.Context(), "t", []point.Nanos{at}); err != nil {
			t.Fatal(err)
		}
		newest, ok := writer.Newest("t")
		if !ok || !newest.Valid() || len(newest.Servers) != 3 {
			t.Fatalf("the newest map is %+v, %t", newest, ok)
		}
		return newest
	}
	if _, err := writer.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	cover(0)
	reader := site.open(tables.Settings{}) // it does not run: nothing new reaches it
	newest := cover(day)

	wrong := newest
	wrong.Txn[0]++
	for what, at := range map[string]peer.MapAt{
		"another transaction": wrong,
		"another number":      {Txn: newest.Txn, Seq: newest.Seq + 1, Servers: newest.Servers},
		"nobody who is known": {Txn: newest.Txn, Seq: newest.Seq, Servers: []string{"s9"}},
		"nothing":             {},
	} {
		if m, err := reader.Learn(t.Context(), "t", at); err == nil {
			t.Errorf("%s: map %d", what, m.Seq)
		}
	}
	if m, _ := reader.Get("t"); m.Len() != 1 {
		t.Fatalf("%d partitions are known", m.Len())
	}

	site.has("s3", newest) // a majority is enough for a change
	site.setAway(true, "s1", "s2")
	m, err := reader.Learn(t.Context(), "t", newest)
	if err != nil || m.Seq != newest.Seq || m.Len() != 2 {
		t.Fatalf("%v %v", m, err)
	}
	if at, _ := reader.Newest("t"); at.Txn != newest.Txn || at.Seq != newest.Seq {
		t.Errorf("the reader knows %+v", at)
	}
	site.setAway(true, "s3")
	if m, err = reader.Learn(t.Context(), "t", newest); err != nil || m.Seq != newest.Seq {
		t.Errorf("what is known needs nobody: %v %v", m, err)
	}
	if _, err := reader.Learn(t.Context(), "u", newest); !fault.Is(err, fault.NotFound) {
		t.Errorf("a table that is not known: %v", err)
	}
}
