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
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
)

// TestFourHundredPartitionsWithThreeHundredFiles writes to 400 partitions, so that each has a segment, in a process that may
// have 300 files open: it goes on, answers queries over all of them, and starts again.
func TestFourHundredPartitionsWithThreeHundredFiles(t *testing.T) {
	t.Parallel()
	const partitions = 400
	p := processtest.New(t, "SPILLWAY_TABLES_PARTITION_WIDTH=1h", "SPILLWAY_STORAGE_FLUSH_IDLE=1s", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.In = []string{"sh", "-c", `ulimit -n 300; exec "$@"`, "sh"}
	p.Start()
	now := time.Now().Truncate(time.Hour).Add(10 * time.Minute)
	for from := 0; from < partitions; from += 50 {
		var lines strings.Builder
		for i := from; i < from+50; i++ {
			fmt.Fprintf(&lines, "far,i=a x=%d %d\n", i, now.Add(time.Duration(-i)*time.Hour).UnixMilli())
		}
		status, text := p.Line(lines.String())
		for tries := 0; status == http.StatusServiceUnavailable && tries < 100; tries++ {
			time.Sleep(100 * time.Millisecond)
			status, text = p.Line(lines.String())
		}
		if status != http.StatusNoContent {
			t.Fatalf("%d %s", status, text)
		}
	}
	read := func(when string) {
		t.Helper()
		got := p.Rows("far_x", "500h", now.Add(time.Second))["far_x/a"]
		if len(got) != partitions {
			t.Fatalf("%s: %d rows of %d\n%s", when, len(got), partitions, &p.Log)
		}
		for i, s := range got {
			if want := float64(partitions - 1 - i); s.Value != want {
				t.Errorf("%s: row %d is %v, want %v", when, i, s.Value, want)
			}
		}
	}
	read("while rows are flushed")
	p.Eventually("all partitions are flushed", func() bool { return segments(t, p) >= partitions })
	read("when all are flushed")
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &p.Log)
	}
	p.Start()
	read("after a restart")
	for range 3 {
		read("again")
	}
	p.Until(http.StatusNoContent)
	p.Kill()
	p.Start()
	read("after a kill")
	if strings.Contains(p.Log.String(), "too many open files") {
		t.Errorf("it ran out of files:\n%s", &p.Log)
	}
}

// segments counts the segment files of a process.
func segments(t *testing.T, p *processtest.Process) (n int) {
	err := filepath.WalkDir(filepath.Join(p.Dir, "data"), func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, ".seg") {
			n++
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return n
}

func TestTooFewFilesAreSaidAtOnce(t *testing.T) {
	p := processtest.New(t)
	p.In = []string{"sh", "-c", `ulimit -n 100; exec "$@"`, "sh"}
	p.Spawn()
	if code := p.Exit(); code != terminal.ExitUsage {
		t.Errorf("exit code %d, want %d: systemd must not start it again", code, terminal.ExitUsage)
	}
	if said := p.Log.String(); !strings.Contains(said, "100 files") || !strings.Contains(said, "ulimit -n") || strings.Count(said, "\n") > 2 {
		t.Errorf("it said %q", said)
	}
}
