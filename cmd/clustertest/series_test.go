package clustertest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterStorageServersHoldTablesToTheirShareOfSeries: two gateways, each of which has room for all, send a table's new series to storage servers that
// have not. The refused are named and counted, the others are kept, those that are known go on, and another table is not touched.
func TestClusterStorageServersHoldTablesToTheirShareOfSeries(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	const most = 4000
	file := filepath.Join(t.TempDir(), "storage.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "intake: {series_max: %d}\n", most), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, StorageArgs: []string{"--config.file", file}})
	c.table("flood", 24*time.Hour, 3)
	c.table("calm", 24*time.Hour, 3)
	at := time.Now().UnixMilli()
	lines := func(from, n int) string {
		var all strings.Builder
		for i := from; i < from+n; i++ {
			fmt.Fprintf(&all, "m,i=%d v=1 %d\n", i, at)
		}
		return all.String()
	}
	c.acks("flood", lines(0, 100))
	taken, refused, named := 100, 0, ""
	for i := range 12 {
		var status int
		var text []byte
		var err error
		c.within(processtest.Patience, "new series are answered", func() bool { // 503 is no answer yet
			status, text, err = processtest.PutLine(c.doors[i%2], "flood", lines(1000*(i+1), 1000))
			return status != http.StatusServiceUnavailable
		})
		switch {
		case err != nil || status != http.StatusNoContent && status != http.StatusBadRequest:
			t.Fatalf("%d %.300s %v", status, text, err)
		case status == http.StatusNoContent:
			taken += 1000
		default:
			refused++
			named = string(text)
		}
	}
	if taken < most/2 || taken > most || refused < 8 {
		t.Errorf("at least %d series are taken of 12,100, and of %d requests some are refused, where a server has memory for %d", taken, refused, most)
	}
	for _, want := range []string{"partial write", `i=`, "storage server", "intake.series_max"} {
		if !strings.Contains(named, want) {
			t.Errorf("the answer lacks %q: %.400s", want, named)
		}
	}
	kept := 0.0
	c.within(processtest.Patience, "the rows that were kept are read", func() bool {
		status, text := processtest.AskAt(c.doors[0], "flood", "count(m_v)", time.Now())
		if _, err := fmt.Sscanf(text[max(0, strings.LastIndex(text, `,"`)):], `,"%g"`, &kept); err != nil {
			t.Log(status, text)
			return false
		}
		return true
	})
	if int(kept) < taken || kept > most {
		t.Errorf("%v series are kept, of which %d were acked in whole requests", kept, taken)
	}
	for _, d := range c.doors {
		c.acked(d, "flood", lines(0, 100)) // series that are known
		c.acked(d, "calm", lines(0, 200))  // a table within its share
	}
}
