package tables_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// mute is a metadata server that accepts requests and never answers.
type mute struct{ peer.Metadata }

func (mute) Fetch(ctx context.Context, _ *peer.FileQuery) (*peer.File, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestTablesWhoseServersAreSilentDelayNoOther: forty tables lie on a metadata server that is silent, and a change of another
// table arrives while they are being asked for.
func TestTablesWhoseServersAreSilentDelayNoOther(t *testing.T) {
	site := newSite(t, 2)
	on := func(id topology.ServerID) *tables.Tables {
		d := site.deps()
		d.Servers = func() []topology.ServerID { return []topology.ServerID{id} }
		return site.openWith(d, tables.Settings{CreateOnWrite: true})
	}
	stuck, well := on("s1"), on("s2")
	for i := range 40 {
		if _, err := stuck.Ensure(t.Context(), fmt.Sprint("stuck", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := well.Ensure(t.Context(), "well"); err != nil {
		t.Fatal(err)
	}
	d := site.deps()
	d.Metadata = func(id topology.ServerID) (peer.Metadata, bool) {
		p, ok := site.metadata(id)
		if id == "s1" {
			return mute{p}, ok
		}
		return hidden{p}, ok
	}
	began := time.Now()
	reader := site.openWith(d, tables.Settings{})
	if took := time.Since(began); took > 30*time.Second {
		t.Fatalf("a start takes %v", took)
	}
	site.run(reader)
	if _, ok := reader.Get("well"); !ok {
		t.Fatal("a table whose server answers is not known after the start")
	}
	began = time.Now()
	for hour := range 20 {
		m, err := well.Cover(t.Context(), "well", []point.Nanos{point.Nanos(hour) * day})
		if err != nil {
			t.Fatal(err)
		}
		until(t, reader, "the change is known", func() bool { now, _ := reader.Get("well"); return now.Seq == m.Seq })
	}
	t.Logf("20 changes were known after %v", time.Since(began))
	if _, ok := reader.Get("stuck1"); ok {
		t.Error("a silent server answered")
	}
	if age := reader.Age("stuck1"); age == 0 {
		t.Error("nothing says that a newer map is lacking")
	}
}

// hidden is a metadata server that is reached by its interface only, as one in another process.
type hidden struct{ peer.Metadata }
