package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRowsAndWritesSurviveAnOldCoordinationStore: the coordination store is replaced by an old version, or is gone. Every
// row is there and every write is accepted, since the newest maps lie with the rows.
func TestRowsAndWritesSurviveAnOldCoordinationStore(t *testing.T) {
	p := newProcess(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	data := filepath.Join(p.dir, "data")
	acked := 0
	write := func(day int) int {
		status, text, err := p.do(http.MethodPost, "/write?precision=s&db=default", nil, fmt.Appendf(nil, "cpu,i=a usage=%d %d\n", acked, 1_700_000_000+86400*day+acked))
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
		if got := p.rows("cpu_usage", "100d", time.Unix(1_700_000_000+86400*50, 0))["cpu_usage/a"]; len(got) != acked {
			t.Errorf("%s: %d rows of %d", when, len(got), acked)
		}
	}
	p.start()
	write(0)
	p.stop()
	old := filepath.Join(p.dir, "old")
	copyCorrupt(t, filepath.Join(data, "coord"), old)
	for range 3 { // the epoch rises at every start
		p.start()
		write(1)
		p.stop()
	}
	if err := os.RemoveAll(filepath.Join(data, "coord")); err != nil {
		t.Fatal(err)
	}
	copyCorrupt(t, old, filepath.Join(data, "coord"))
	p.start()
	check("with an old coordination store")
	for day := range 3 {
		if status := write(day); status != http.StatusNoContent {
			t.Errorf("a write to day %d: %d\n%s", day, status, &p.log)
		}
	}
	p.stop()
	if err := os.RemoveAll(filepath.Join(data, "coord")); err != nil {
		t.Fatal(err)
	}
	p.start()
	check("with a new coordination store")
	for day := range 3 {
		if status := write(day); status != http.StatusNoContent {
			t.Errorf("a write to day %d: %d\n%s", day, status, &p.log)
		}
	}
	check("after writes")
}
