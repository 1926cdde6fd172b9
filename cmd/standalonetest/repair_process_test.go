package standalonetest

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestAStoreIsServedAgainAfterItsCatalogueAndMirrorAreGone: a process is killed, and loses the catalogue with its mirror.
// A repair restores the maps from their own mirror, and finds there the partitions of rows that are in the log alone. The process serves
// the rows of all tables, one of them without any; writes go on.
func TestAStoreIsServedAgainAfterItsCatalogueAndMirrorAreGone(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1", "SPILLWAY_STORAGE_FLUSH_IDLE=1s", "SPILLWAY_TABLES_PARTITION_WIDTH=1h")
	p.Start()
	now := time.Now()
	put := func(table, series string, at time.Time, want int) {
		t.Helper()
		status, text, err := processtest.PutLine(p, table, fmt.Sprintf("m,i=%s v=7 %d", series, at.UnixMilli()))
		if err != nil || status != want {
			t.Fatalf("%s: %d %s %v", table, status, text, err)
		}
	}
	create := func(table string) {
		t.Helper()
		if status, text, err := p.Do(http.MethodPost, "/query?q=CREATE+DATABASE+"+table, nil, nil); err != nil || status != http.StatusOK || strings.Contains(string(text), "error") {
			t.Fatalf("%d %s %v", status, text, err)
		}
	}
	for _, table := range []string{"one", "two", "none"} {
		create(table)
	}
	put("one", "a", now.Add(-5*time.Hour), http.StatusNoContent)
	put("two", "a", now, http.StatusNoContent)
	p.Eventually("rows are in segments", func() bool { return processtest.SegmentsIn(p.Dir) > 1 })
	put("one", "b", now, http.StatusNoContent) // in the log only, of a partition made just now
	p.Kill()
	data := filepath.Join(p.Dir, "data")
	if err := os.RemoveAll(filepath.Join(data, "catalogue")); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(data, "catalogue.mirror"), 20); err != nil {
		t.Fatal(err)
	}
	p.Spawn()
	if code := p.Exit(); code == 0 || !strings.Contains(p.Log.String(), "spillway repair") {
		t.Fatalf("it ended with %d: %s", code, &p.Log)
	}
	repair := exec.Command(p.Bin, "repair", "--data-dir="+data)
	repair.Env = p.Env
	out, err := repair.Output()
	if !strings.Contains(string(out), "maps       of their own mirror") || strings.Contains(string(out), "not rebuilt: the partition maps") {
		t.Fatalf("repair: %v\n%s", err, out)
	}
	t.Logf("%v\n%s", err, out)
	p.Start()
	if strings.Contains(string(out), "not rebuilt") {
		t.Errorf("the repair gave up on rows of the log: %s", out)
	}
	for table, all := range map[string][]string{"one": {"a", "b"}, "two": {"a"}} {
		got := p.RowsOf(table, "m_v", "7h", time.Now().Add(time.Second))
		for _, series := range all {
			if len(got["m_v/"+series]) != 1 {
				t.Errorf("table %s has %v, without %s", table, got, series)
			}
		}
	}
	if _, text, err := p.Get("/t/two/api/v1/query?query=m_v"); err != nil || !strings.Contains(string(text), `"warnings"`) {
		t.Errorf("an answer does not say that the store was rebuilt: %s %v", text, err)
	}
	if status, text, err := p.Get("/t/none/api/v1/query?query=m_v"); err != nil || status != http.StatusOK {
		t.Errorf("the table without rows: %d %s %v", status, text, err)
	}
	put("one", "c", now, http.StatusNoContent)
	put("none", "c", now, http.StatusNoContent)
	p.Stop()
	p.Start()
	for table, series := range map[string]string{"one": "c", "none": "c"} {
		if got := p.RowsOf(table, "m_v", "7h", time.Now().Add(time.Second)); len(got["m_v/"+series]) != 1 {
			t.Errorf("table %s has %v", table, got)
		}
	}
}
