package standalonetest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestDeletedRowsGoFromTheDiskWhenAsked: deleted rows use space until a clean-up is requested. All other rows stay.
func TestDeletedRowsGoFromTheDiskWhenAsked(t *testing.T) {
	t.Parallel()
	const deletes, cleans = "/api/v1/admin/tsdb/delete_series", "/api/v1/admin/tsdb/clean_tombstones"
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1", "SPILLWAY_STORAGE_FLUSH_IDLE=1s", "SPILLWAY_API_ADMIN=true")
	p.Start()
	post := func(path string, want int) {
		t.Helper()
		if status, text, err := p.Do(http.MethodPost, path, nil, nil); err != nil || status != want {
			t.Fatalf("%s: %d %s %v, want %d", path, status, text, err, want)
		}
	}
	now := time.Now()
	var lines strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&lines, "m,i=gone v=%d %d\n", i*7919%10007, now.UnixMilli()-int64(i))
	}
	fmt.Fprintf(&lines, "m,i=kept v=7 %d\n", now.UnixMilli())
	if status, text := p.Line(lines.String()); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	size := func() (n int64) {
		names, _ := filepath.Glob(filepath.Join(p.Dir, "data", "segments", "*", "*.seg"))
		for _, name := range names {
			if st, err := os.Stat(name); err == nil {
				n += st.Size()
			}
		}
		return n
	}
	p.Eventually("the rows are in segments", func() bool { return size() > 0 })
	post(cleans, http.StatusNoContent) // nothing to do
	post(deletes+"?match[]=m_v%7Bi=%22gone%22%7D", http.StatusNoContent)
	before := size()
	post(cleans, http.StatusNoContent)
	p.Eventually("they are off the disk", func() bool { return size() < before/2 })
	if n := processtest.Metric(t, p.Addr, `spillway_partition_compactions_total`); n != 1 {
		t.Errorf("%v compactions", n)
	}
	got := p.Rows("m_v", "1h", now.Add(time.Second))
	if len(got["m_v/gone"]) != 0 || len(got["m_v/kept"]) != 1 {
		t.Errorf("read %v", got)
	}
	post("/t/nowhere"+cleans, http.StatusNoContent) // as a deletion from a table without rows
	t.Logf("%d bytes before, %d after", before, size())
	p.Stop()
	p.Env = append(p.Env, "SPILLWAY_API_ADMIN=false")
	p.Start()
	post(cleans, http.StatusInternalServerError)
}
