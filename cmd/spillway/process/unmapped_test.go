package process

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestRowsAndWritesSurviveAnOldCoordinationStore: the coordination store is replaced by an old version, or is gone. Every
// row is there and every write is accepted, since the newest maps lie with the rows.
func TestRowsAndWritesSurviveAnOldCoordinationStore(t *testing.T) {
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	data := filepath.Join(p.Dir, "data")
	acked := 0
	write := func(day int) int {
		status, text, err := p.Do(http.MethodPost, "/write?precision=s&db=default", nil, fmt.Appendf(nil, "cpu,i=a usage=%d %d\n", acked, 1_700_000_000+86400*day+acked))
		if err != nil {
			t.Fatal(err)
		}
		if status == http.StatusNoContent {
			acked++
		} else {
			t.Errorf("%d %s", status, text)
		}
		return status
	}
	check := func(when string) {
		t.Helper()
		if got := p.Rows("cpu_usage", "100d", time.Unix(1_700_000_000+86400*50, 0))["cpu_usage/a"]; len(got) != acked {
			t.Errorf("%s: %d rows of %d", when, len(got), acked)
		}
	}
	p.Start()
	write(0)
	p.Stop()
	old := filepath.Join(p.Dir, "old")
	copyCorrupt(t, filepath.Join(data, "coord"), old)
	for range 3 { // the epoch rises at every start
		p.Start()
		write(1)
		p.Stop()
	}
	if err := os.RemoveAll(filepath.Join(data, "coord")); err != nil {
		t.Fatal(err)
	}
	copyCorrupt(t, old, filepath.Join(data, "coord"))
	p.Start()
	check("with an old coordination store")
	for day := range 3 {
		if status := write(day); status != http.StatusNoContent {
			t.Errorf("a write to day %d: %d\n%s", day, status, &p.Log)
		}
	}
	p.Stop()
	if err := os.RemoveAll(filepath.Join(data, "coord")); err != nil {
		t.Fatal(err)
	}
	p.Start()
	check("with a new coordination store")
	for day := range 3 {
		if status := write(day); status != http.StatusNoContent {
			t.Errorf("a write to day %d: %d\n%s", day, status, &p.Log)
		}
	}
	check("after writes")
}
