package tables_test

import (
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Writers cover times without end while a table is dropped: it ends all the same. They get Unavailable meanwhile, and
// then make it anew, with ids that never were.
func TestATableIsDroppedUnderItsWriters(t *testing.T) {
	site := newSite(t, 3)
	writer, dropper := site.open(tables.Settings{CreateOnWrite: true}), site.open(tables.Settings{})
	site.run(writer)
	if _, err := writer.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	refused, next := 0, point.PartitionID(0) // and the id after the highest of the first life
	var reborn *topology.Map
	for w := range 3 {
		wg.Go(func() {
			for day := w; ; day += 3 {
				select {
				case <-stop:
					return
				default:
				}
				m, err := writer.Ensure(t.Context(), "t")
				if err == nil {
					m, err = writer.Cover(t.Context(), "t", []point.Nanos{int64(day%5000) * int64(24*time.Hour)})
				}
				mu.Lock()
				switch {
				case err == nil && next > 0 && m.NextID > next:
					reborn = m
				case fault.Is(err, fault.Unavailable):
					refused++
				case fault.Is(err, fault.NotFound): // dropped between the two
				case err != nil:
					t.Errorf("a writer hears %v", err)
				}
				mu.Unlock()
			}
		})
	}
	until(t, writer, "partitions", func() bool { m, ok := writer.Get("t"); return ok && m.Len() > 10 })
	if err := dropper.BeginDrop(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	m, ok := dropper.Get("t")
	if !ok || m.Len() != 0 {
		t.Fatalf("after its drop began: %v", m)
	}
	until(t, writer, "writers are refused", func() bool { mu.Lock(); defer mu.Unlock(); return refused > 10 })
	if now, err := dropper.Refresh(t.Context(), "t", 0); err != nil || now.Len() != 0 || now.NextID != m.NextID {
		t.Errorf("writers made partitions: %v %v", now, err)
	}
	if err := dropper.BeginDrop(t.Context(), "t"); err != nil {
		t.Errorf("begun twice: %v", err)
	}
	mu.Lock()
	next = m.NextID
	mu.Unlock()
	if err := dropper.DropTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	until(t, writer, "it is made anew", func() bool { mu.Lock(); defer mu.Unlock(); return reborn != nil })
	close(stop)
	wg.Wait()
	if reborn.Seq <= m.Seq || reborn.Len() == 0 {
		t.Errorf("made anew as %v after %v", reborn, m)
	}
	for p := range reborn.All() {
		if p.ID < m.NextID {
			t.Errorf("partition %d is of its first life", p.ID)
		}
	}
}

// A table that is being dropped refuses only the making of partitions: columns, settings and drops go on.
func TestWhatIsBeingDroppedMayShrink(t *testing.T) {
	p := newSite(t, 3).open(tables.Settings{CreateOnWrite: true})
	if err := p.BeginDrop(t.Context(), "nobody"); err != nil {
		t.Errorf("a table that is not there: %v", err)
	}
	if _, err := p.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Cover(t.Context(), "t", []point.Nanos{0}); err != nil {
		t.Fatal(err)
	}
	if err := p.BeginDrop(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	c := daily
	c.Retention = 48 * time.Hour
	if _, err := p.SetConfig(t.Context(), "t", c); err != nil {
		t.Error(err)
	}
	for what, f := range map[string]func() error{
		"ensure": func() error { _, err := p.Ensure(t.Context(), "t"); return err },
		"cover":  func() error { _, err := p.Cover(t.Context(), "t", []point.Nanos{0}); return err },
	} {
		began := time.Now()
		if err := f(); !fault.Is(err, fault.Unavailable) || time.Since(began) > 5*time.Second {
			t.Errorf("%s: %v after %v", what, err, time.Since(began))
		}
	}
	if err := p.DropTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if m, err := p.Ensure(t.Context(), "t"); err != nil || m.Len() != 0 {
		t.Errorf("made anew: %v %v", m, err)
	}
	if _, err := p.Cover(t.Context(), "t", []point.Nanos{0}); err != nil {
		t.Errorf("the new table: %v", err)
	}
}

// The master ends a drop while a command waits for it, and a writer makes the table anew: the command ends, and the new table keeps its rows.
func TestTheEndOfADropSparesTheTableThatWasMadeSince(t *testing.T) {
	site := newSite(t, 3)
	command, other := site.open(tables.Settings{CreateOnWrite: true}), site.open(tables.Settings{CreateOnWrite: true})
	rows := func(p *tables.Tables) {
		t.Helper()
		if _, err := p.Ensure(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Cover(t.Context(), "t", []point.Nanos{0}); err != nil {
			t.Fatal(err)
		}
	}
	rows(command)
	if err := command.BeginDrop(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if on, err := command.DropGoesOn(t.Context(), "t"); err != nil || !on {
		t.Errorf("after it began: %t %v", on, err)
	}
	if err := other.EndDrop(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	rows(other)
	if err := command.EndDrop(t.Context(), "t"); err != nil {
		t.Errorf("a drop that another process ended: %v", err)
	}
	if on, err := command.DropGoesOn(t.Context(), "t"); err != nil || on {
		t.Errorf("after it ended: %t %v", on, err)
	}
	if m, err := other.Refresh(t.Context(), "t", 0); err != nil || m.Len() != 1 {
		t.Errorf("the table that was made since: %v %v", m, err)
	}
}

// A table that is not being dropped stays.
func TestADropThatDidNotBeginEndsNoTable(t *testing.T) {
	p := newSite(t, 3).open(tables.Settings{CreateOnWrite: true})
	if err := p.EndDrop(t.Context(), "t"); err != nil {
		t.Errorf("a table that is not there: %v", err)
	}
	if _, err := p.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if err := p.EndDrop(t.Context(), "t"); err != nil {
		t.Errorf("a table that is not being dropped: %v", err)
	}
	if _, ok := p.Get("t"); !ok {
		t.Error("it was dropped")
	}
}
