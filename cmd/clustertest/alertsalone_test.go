package clustertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterAlertsOfAProcessFire harms real processes, each alone, and evaluates the rules over their real metrics: a rule about a metric that is never as it expects, or is gone before it is scraped,
// passes tests with invented samples.
func TestClusterAlertsOfAProcessFire(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	for name, harm := range map[string]func(*testing.T){
		"Damaged": aDamagedSegmentAlerts, "LostAndFound": aStrayFileAlerts, "Full": aFullDiskAlerts, "Refused": refusedWritesAlert, "Reload": aBrokenFileAlerts, "Killed": aDeadProcessAlerts,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); harm(t) })
	}
}

func aDamagedSegmentAlerts(t *testing.T) {
	d, p := alone(t, "")
	var lines strings.Builder
	for i := range 100 {
		fmt.Fprintf(&lines, "m,i=%d v=1 %d\n", i, time.Now().UnixMilli())
	}
	acked(d, lines.String())
	flushed(d)
	query := func() { _, _, _ = d.Get("/api/v1/query?query=count(m_v)") }
	query()
	p.quiet("SpillwayPartitionDamaged", "SpillwayQueriesFail")
	d.Kill()
	eachFile(t, d.Dir, ".seg", func(path string, size int64) {
		if err := os.Truncate(path, size*2/3); err != nil {
			t.Fatal(err)
		}
	})
	d.Start()
	p.fires("SpillwayPartitionDamaged", query, `instance="a"`)
	p.fires("SpillwayQueriesFail", query, `instance="a"`)
}

// eachFile calls f for each file below a directory with this suffix, and fails the test if there is none.
func eachFile(t *testing.T, dir, suffix string, f func(path string, size int64)) {
	t.Helper()
	n := 0
	if err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && strings.HasSuffix(path, suffix) && info.Mode().IsRegular() {
			n++
			f(path, info.Size())
		}
		return err
	}); err != nil || n == 0 {
		t.Fatalf("%d files %s in %s: %v", n, suffix, dir, err)
	}
}

func aStrayFileAlerts(t *testing.T) {
	d, p := alone(t, "")
	acked(d, fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()))
	flushed(d)
	p.quiet("SpillwayLostAndFound")
	d.Kill()
	stray := filepath.Join(d.Dir, "data", "segments", "00000000000000ca") // of no placement that the catalogue knows
	if err := os.MkdirAll(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stray, "1-1.seg"), []byte("of a store before"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Start()
	p.fires("SpillwayLostAndFound", nil, `instance="a"`)
}

// aFullDiskAlerts has a process want more room than there is: it is full for it.
func aFullDiskAlerts(t *testing.T) {
	d, p := alone(t, "")
	line := func() string { return fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()) }
	acked(d, line())
	p.quiet("SpillwayStoreReadOnly", "SpillwayRefusesWrites", "SpillwayDown")
	d.Kill()
	d.Env = append(d.Env, "SPILLWAY_STORAGE_FREE_BYTES_MIN=4000000GiB")
	d.Start()
	p.fires("SpillwayStoreReadOnly", nil, `instance="a"`)
	p.fires("SpillwayRefusesWrites", func() { put(d, line()) }, `instance="a"`)
}

func refusedWritesAlert(t *testing.T) {
	d, p := alone(t, "limits: {tables: {small: {samples_per_second: 1, samples_burst: 5}}, defaults: {past_max: 1d}}")
	old := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "m v=1 %d\n", time.Now().Add(-50*time.Hour).UnixMilli()+int64(i))
		}
		return b.String()
	}
	small := func() {
		_, _, _ = processtest.PutLine(d, "small", fmt.Sprintf("m a=1,b=1,c=1,d=1 %d", time.Now().UnixMilli()))
	}
	small()
	put(d, old(1))
	p.quiet("SpillwayRefusesRows", "SpillwayTableLimited", "SpillwayRefusesWrites", "SpillwayMisbehaves")
	p.fires("SpillwayRefusesRows", func() { put(d, old(5000)) }, `instance="a"`, `reason="`)
	p.fires("SpillwayTableLimited", small, `table="small"`, `limit="samples_per_second"`)
	p.fires("SpillwayRefusesWrites", small, `instance="a"`)
}

func aBrokenFileAlerts(t *testing.T) {
	web := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(web, []byte("http_server_config: {headers: {X-Frame-Options: deny}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, p := alone(t, "limits: {defaults: {request_bytes: 1MiB}}", "SPILLWAY_HTTP_WEB_CONFIG_FILE="+web)
	p.quiet("SpillwayReloadFailed", "SpillwaySettingsReloadFailed")
	for _, env := range d.Env {
		if name, ok := strings.CutPrefix(env, "SPILLWAY_CONFIG_FILE="); ok {
			if err := os.WriteFile(name, []byte("storage: {no_such_key: 1}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(web, []byte("nonsense: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hangup := func() {
		if err := d.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	hangup()
	p.fires("SpillwaySettingsReloadFailed", nil, `instance="a"`)
	p.fires("SpillwayReloadFailed", nil, `instance="a"`)
}

func aDeadProcessAlerts(t *testing.T) {
	d, p := alone(t, "")
	p.quiet("SpillwayDown")
	d.Kill()
	p.fires("SpillwayDown", nil, `instance="a"`)
}
