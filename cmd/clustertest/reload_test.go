package clustertest

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterStorageServerReloads a file at SIGHUP and at POST /-/reload, and serves on.
func TestClusterStorageServerReloads(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	write := func(yaml string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("log_level: info\n")
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 1, Gateways: 1, StorageArgs: []string{"--config.file=" + file, "--log.format=json"}})
	c.acks("m", "m v=1")
	s := c.Storage[0]
	count := func(event string) float64 {
		return processtest.MetricWhere(t, c.Admin[0], "spillway_log_messages_total", "event", event)
	}
	hangUp := func() {
		t.Helper()
		if err := syscall.Kill(s.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	const anew, failed = "settings are read anew", "settings could not be read anew; those in force stay"
	hangUp()
	c.within(processtest.Patience, "the file is read at SIGHUP", func() bool { return count(anew) == 1 })
	write("log_level: error\nstorage: {minors_max: -1}\n")
	hangUp()
	c.within(processtest.Patience, "a mistake is reported", func() bool { return count(failed) == 1 })
	write("log_level: error\nstorage: {minors_max: 7}\n")
	for range 2 {
		resp, err := http.Post("http://"+c.Admin[0]+"/-/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
	if n := count(anew); n != 3 {
		t.Errorf("read %v times", n)
	}
	said := ""
	c.within(processtest.Patience, "its output is read", func() bool { // which may be after its answer
		said = s.Said()
		return strings.Count(said, anew) >= 2 && strings.HasSuffix(said, "\n")
	})
	if strings.Count(said, anew) != 2 || !strings.Contains(said, `"key":"storage.minors_max"`) {
		t.Errorf("log_level is error since the second time:\n%s", said)
	}
	for line := range strings.Lines(said) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line of a log in JSON is %q", line)
		}
	}
	if !strings.Contains(said, `"msg":"ready"`) {
		t.Errorf("it did not say that it is ready:\n%s", said)
	}
	c.acks("m", "m v=2")
}
