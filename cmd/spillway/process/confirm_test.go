package process

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/metadata/retention"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// daily is a process with a table of rows of twelve days, in a partition each.
type daily struct {
	*testing.T
	*standalone
	f administration.TableFlags
}

func openDaily(t *testing.T, dir string) *daily {
	t.Helper()
	cfg := config{Config: settings.Default()}
	cfg.API.Admin = true
	p := openWith(t, dir, cfg)
	return &daily{t, p, tableServer(t, p)}
}

func (d *daily) fill() {
	d.Helper()
	day := setting.Span(days(1))
	if err := (&administration.TableCreate{TableFlags: d.f, TableSettings: administration.TableSettings{PartitionWidth: &day}, Table: "old"}).Run(); err != nil {
		d.Fatal(err)
	}
	for time.Until(time.Now().Truncate(days(1)).Add(days(1))) < 2*time.Minute { // after midnight another partition is too old
		time.Sleep(time.Second)
	}
	for n := range 12 {
		if code, text := d.do(d.T, http.MethodPost, "/write?db=old", fmt.Sprintf("m v=1 %d", time.Now().Add(-days(n)).UnixNano())); code != http.StatusNoContent {
			d.Fatalf("%d %s", code, text)
		}
	}
}

// keep sets for how many days rows are kept, and confirms it.
func (d *daily) keep(n int) {
	d.Helper()
	keep := setting.Span(days(n))
	if err := (&administration.TableSet{TableFlags: d.f, TableSettings: administration.TableSettings{Retention: &keep}, Table: "old", Confirm: "old"}).Run(); err != nil {
		d.Fatal(err)
	}
}

// left checks how many partitions are there, and are held.
func (d *daily) left(what string, there, held int) {
	d.Helper()
	m, ok := d.tables.Get("old")
	if !ok || m.Len() != there || d.retention.count() != float64(held) {
		d.Errorf("%s: the table is there: %t, with %d partitions, of which %v are held; want %d and %d", what, ok, m.Len(), d.retention.count(), there, held)
	}
}

// judged is a round by a clock that is ahead, and that nothing contradicts.
func (d *daily) judged(ahead time.Duration) {
	d.Helper()
	if err := d.retainTable(d.Context(), "old", retention.Clock{Wall: time.Now().Add(ahead).UnixNano()}); err != nil {
		d.Fatal(err)
	}
}

func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// TestWhatTableSetWasToDeleteIsDeleted: it said "deletes 9 of its 12 partitions now", the audit said that it was done, and all of them stayed.
func TestWhatTableSetWasToDeleteIsDeleted(t *testing.T) {
	d := openDaily(t, t.TempDir())
	d.fill()
	d.keep(2)
	d.retainAll(t.Context())
	d.left("after the next round", 3, 0)
	if _, ok, err := d.coord.Get(t.Context(), confirmedRows+"old"); ok || err != nil {
		t.Errorf("the loss has come, and is noted still: %t %v", ok, err)
	}
}

// TestWhatTableSetWasToDeleteIsDeletedAfterARestart before the next round.
func TestWhatTableSetWasToDeleteIsDeletedAfterARestart(t *testing.T) {
	dir := t.TempDir()
	t.Run("set", func(t *testing.T) {
		d := openDaily(t, dir)
		d.fill()
		d.keep(2)
	})
	t.Run("started again", func(t *testing.T) {
		d := openDaily(t, dir)
		d.retainAll(t.Context())
		d.left("after the first round", 3, 0)
	})
}

// TestAConfirmedRetentionIsNoWordForTheClock: rows that no person spoke of go only as they do without a confirmation.
func TestAConfirmedRetentionIsNoWordForTheClock(t *testing.T) {
	t.Run("a clock that jumps", func(t *testing.T) {
		d := openDaily(t, t.TempDir())
		d.fill()
		d.keep(2)
		wall, steady := d.retention.clock.Both()
		d.retention.memory = clock.Remembered(wall-int64(days(100)), steady)
		d.retainAll(t.Context())
		d.left("a hundred days after it was seen last", 12, 9)
	})
	t.Run("a clock that had jumped", func(t *testing.T) {
		d := openDaily(t, t.TempDir())
		d.fill()
		wall, steady := d.retention.clock.Both()
		d.retention.memory = clock.Remembered(wall-int64(days(100)), steady)
		d.retention.clock.Judge(d.retention.memory.State())
		d.keep(2)
		d.judged(0)
		d.left("confirmed by a clock that is in doubt", 12, 9)
	})
	t.Run("rows that are younger", func(t *testing.T) {
		d := openDaily(t, t.TempDir())
		d.fill()
		d.keep(2)
		d.judged(days(50))
		d.left("a clock that nothing contradicts makes all old", 3, 3)
	})
	t.Run("taken back", func(t *testing.T) {
		d := openDaily(t, t.TempDir())
		d.fill()
		d.keep(2)
		d.keep(30)
		d.judged(days(50))
		d.left("by a retention that is longer", 12, 12)
	})
	t.Run("taken back by a client", func(t *testing.T) {
		d := openDaily(t, t.TempDir())
		d.fill()
		d.keep(2)
		for _, keep := range []string{"30d", "2d"} {
			q := "/query?q=" + url.QueryEscape("ALTER RETENTION POLICY autogen ON old DURATION "+keep)
			if code, text := d.do(t, http.MethodPost, q, ""); code != http.StatusOK || strings.Contains(text, "error") {
				t.Fatalf("%s: %d %s", keep, code, text)
			}
		}
		d.retainAll(t.Context())
		d.left("no person saw what a client's retention deletes", 12, 9)
	})
	t.Run("another table of that name", func(t *testing.T) {
		d := openDaily(t, t.TempDir())
		d.fill()
		d.keep(2)
		if err := (&administration.TableDrop{TableFlags: d.f, Table: "old", Confirm: "old"}).Run(); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := d.coord.Get(t.Context(), confirmedRows+"old"); ok || err != nil {
			t.Errorf("the table is gone, and its loss is noted still: %t %v", ok, err)
		}
	})
}
