package tables_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

const day = point.Nanos(24 * time.Hour)

// TestKnownMapsAreServedWhenNobodyAnswers, and the newest one when servers answer again.
func TestKnownMapsAreServedWhenNobodyAnswers(t *testing.T) {
	site := newSite(t, 3)
	writer, reader := site.open(tables.Settings{CreateOnWrite: true}), site.open(tables.Settings{})
	site.run(reader)
	if _, err := writer.Cover(t.Context(), "t", nil); !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	if _, err := writer.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	until(t, reader, "the table is known", func() bool { _, ok := reader.Get("t"); return ok })

	site.setAway(true, "s1", "s2", "s3")
	quick, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	if _, err := writer.Cover(quick, "t", []point.Nanos{0}); !fault.Is(err, fault.Canceled) {
		t.Fatalf("nobody is there, and a change ends with %v", err)
	}
	cancel()
	if m, ok := reader.Get("t"); !ok || m.Len() != 0 {
		t.Fatalf("%v %v", m, ok)
	}
	site.setAway(false, "s2", "s3")
	if _, err := writer.Cover(t.Context(), "t", []point.Nanos{0}); err != nil { // the partition of the abandoned change is not made
		t.Fatal(err)
	}
	until(t, reader, "the partition is known", func() bool { m, _ := reader.Get("t"); return m.Len() == 1 })
	if _, row, ok := reader.At("t"); !ok || row == 0 {
		t.Fatalf("row %d", row)
	}
}

// memory is a cache in memory.
type memory struct {
	mu sync.Mutex
	by map[string]tables.Cached
}

func (m *memory) Load() (out []tables.Cached, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.by {
		out = append(out, c)
	}
	return out, nil
}

func (m *memory) Save(c tables.Cached) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.by[c.Table] = c
	return nil
}

func (m *memory) Forget(table string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.by, table)
	return nil
}

// TestACacheIsEnoughToStart: neither the store nor a metadata server answers, and the tables are there, with their age.
func TestACacheIsEnoughToStart(t *testing.T) {
	site := newSite(t, 3)
	cache := &memory{by: map[string]tables.Cached{}}
	d := site.deps()
	d.Cache = cache
	writer := site.openWith(d, tables.Settings{CreateOnWrite: true})
	site.run(writer)
	for _, name := range []string{"kept", "dropped"} {
		if _, err := writer.Ensure(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Cover(t.Context(), name, []point.Nanos{0, day}); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.DropTable(t.Context(), "dropped"); err != nil {
		t.Fatal(err)
	}
	until(t, writer, "the cache has what is known", func() bool {
		got, _ := cache.Load()
		if len(got) != 1 || got[0].Table != "kept" {
			return false
		}
		m, err := topology.Decode(got[0].Map)
		return err == nil && m.Len() == 2
	})
	site.setAway(true, "s1", "s2", "s3")
	d.Store = away{site.store}
	if _, err := tables.Open(t.Context(), func() tables.Deps { d := d; d.Cache = nil; return d }(), tables.Settings{New: daily}); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("without store and cache: %v", err)
	}
	reader := site.openWith(d, tables.Settings{})
	if m, row, ok := reader.At("kept"); !ok || m.Len() != 2 || row != 0 {
		t.Fatalf("%v at %d, %v", m, row, ok)
	}
	if names := reader.Names(); len(names) != 1 {
		t.Fatalf("%v", names)
	}
	if age := reader.Age("kept"); age <= 0 || age > time.Minute {
		t.Fatalf("the map is %v old", age)
	}
	// With the store back the row proves the cached map to be the newest, without a metadata server.
	d.Store = site.store
	back := site.openWith(d, tables.Settings{})
	site.run(back)
	until(t, back, "the row is known", func() bool { _, row, _ := back.At("kept"); return row > 0 && back.Age("kept") < reader.Age("kept") })
}

// TestADroppedTableIsGoneAndGoesOnCounting for every process.
func TestADroppedTableIsGoneAndGoesOnCounting(t *testing.T) {
	site := newSite(t, 3)
	one, two := site.open(tables.Settings{CreateOnWrite: true}), site.open(tables.Settings{CreateOnWrite: true})
	site.run(two)
	if _, err := one.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	before, err := one.Cover(t.Context(), "t", []point.Nanos{0})
	if err != nil {
		t.Fatal(err)
	}
	until(t, two, "the table is known", func() bool { m, ok := two.Get("t"); return ok && m.Len() == 1 })
	if err := one.DropTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if err := one.DropTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	until(t, two, "the table is gone", func() bool { _, ok := two.Get("t"); return !ok })
	if seq, ok := two.Dropped("t"); !ok || seq <= before.Seq {
		t.Fatalf("dropped at %d: %v", seq, ok)
	}
	if _, err := two.Cover(t.Context(), "t", []point.Nanos{0}); !fault.Is(err, fault.NotFound) {
		t.Fatalf("a dropped table changes: %v", err)
	}
	m, err := two.Ensure(t.Context(), "t")
	if err != nil || m.Seq <= before.Seq || m.NextID < before.NextID || m.Len() != 0 {
		t.Fatalf("made again: %v %v", m, err)
	}
	m, err = one.Refresh(t.Context(), "t", m.Seq)
	if err != nil || m.Len() != 0 {
		t.Fatalf("%v %v", m, err)
	}
}

// TestAThousandWritersMakeFewTransactions: changes that come together go together, and one that is refused does not hurt
// the others.
func TestAThousandWritersMakeFewTransactions(t *testing.T) {
	site := newSite(t, 3)
	p := site.open(tables.Settings{CreateOnWrite: true})
	if _, err := p.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			if i%100 == 99 {
				_, err := p.SetConfig(t.Context(), "t", topology.Config{PartitionWidth: -1})
				if !fault.Is(err, fault.Invalid) {
					t.Errorf("a wrong configuration: %v", err)
				}
				return
			}
			m, err := p.Cover(t.Context(), "t", []point.Nanos{point.Nanos(i%200) * day})
			if err != nil {
				t.Error(err)
			} else if _, ok := m.Find(0, point.Nanos(i%200)*day); !ok {
				t.Errorf("day %d lies nowhere", i%200)
			}
		})
	}
	wg.Wait()
	m, _ := p.Get("t")
	if m.Len() != 198 || m.Seq > 150 {
		t.Fatalf("%d partitions in %d transactions", m.Len(), m.Seq)
	}
	t.Logf("%d partitions in %d transactions", m.Len(), m.Seq)
}

// TestServersOfALaterListAreAsked: they are asked when the first ones are gone.
func TestServersOfALaterListAreAsked(t *testing.T) {
	site := newSite(t, 4)
	p := site.open(tables.Settings{CreateOnWrite: true, MetadataServers: 1})
	if _, err := p.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	row, _, err := site.store.Get(t.Context(), mapstore.Key("t"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := mapstore.DecodeRow(row)
	if err != nil || len(r.Servers) != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	old := r.Servers[0]
	next := topology.ServerID("s1")
	if old == next {
		next = "s2"
	}
	s := site.servers[next]
	if err := s.Join(t.Context(), "t", next); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "t", old); err != nil {
		t.Fatal(err)
	}
	site.setAway(true, old)
	m, err := p.Cover(t.Context(), "t", []point.Nanos{0})
	if err != nil || m.Len() != 1 {
		t.Fatalf("%v %v: %s", m, err, fmt.Sprint("moved from ", old, " to ", next))
	}
}
