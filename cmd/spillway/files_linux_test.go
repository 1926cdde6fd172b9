package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
)

// TestFourHundredPartitionsWithThreeHundredFiles writes to 400 partitions, so that each has a segment, in a process that may
// have 300 files open: it goes on, answers queries over all of them, and starts again.
func TestFourHundredPartitionsWithThreeHundredFiles(t *testing.T) {
	t.Parallel()
	const partitions = 400
	p := newProcess(t, "SPILLWAY_TABLES_PARTITION_WIDTH=1h", "SPILLWAY_STORAGE_FLUSH_IDLE=1s", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.in = []string{"sh", "-c", `ulimit -n 300; exec "$@"`, "sh"}
	p.start()
	now := time.Now().Truncate(time.Hour).Add(10 * time.Minute)
	for from := 0; from < partitions; from += 50 {
		var lines strings.Builder
		for i := from; i < from+50; i++ {
			fmt.Fprintf(&lines, "far,i=a x=%d %d\n", i, now.Add(time.Duration(-i)*time.Hour).UnixMilli())
		}
		status, text := p.line(lines.String())
		for tries := 0; status == http.StatusServiceUnavailable && tries < 100; tries++ {
			time.Sleep(100 * time.Millisecond)
			status, text = p.line(lines.String())
		}
		if status != http.StatusNoContent {
			t.Fatalf("%d %s", status, text)
		}
	}
	read := func(when string) {
		t.Helper()
		got := p.rows("far_x", "500h", now.Add(time.Second))["far_x/a"]
		if len(got) != partitions {
			t.Fatalf("%s: %d rows of %d\n%s", when, len(got), partitions, &p.log)
		}
		for i, s := range got {
			if want := float64(partitions - 1 - i); s.value != want {
				t.Errorf("%s: row %d is %v, want %v", when, i, s.value, want)
			}
		}
	}
	read("while rows are flushed")
	p.eventually("all partitions are flushed", func() bool { return segments(t, p) >= partitions })
	read("when all are flushed")
	if code := p.stop(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &p.log)
	}
	p.start()
	read("after a restart")
	for range 3 {
		read("again")
	}
	p.until(http.StatusNoContent)
	p.kill()
	p.start()
	read("after a kill")
	if strings.Contains(p.log.String(), "too many open files") {
		t.Errorf("it ran out of files:\n%s", &p.log)
	}
}

// eventually waits until a condition holds.
func (p *process) eventually(what string, holds func() bool) {
	p.t.Helper()
	for range 600 {
		if holds() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.t.Fatalf("within a minute it was not so that %s\n%s", what, &p.log)
}

// segments counts the segment files of a process.
func segments(t *testing.T, p *process) (n int) {
	err := filepath.WalkDir(filepath.Join(p.dir, "data"), func(path string, _ os.DirEntry, err error) error {
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
	p := newProcess(t)
	p.in = []string{"sh", "-c", `ulimit -n 100; exec "$@"`, "sh"}
	p.spawn()
	if code := p.exit(); code != terminal.ExitUsage {
		t.Errorf("exit code %d, want %d: systemd must not start it again", code, terminal.ExitUsage)
	}
	if said := p.log.String(); !strings.Contains(said, "100 files") || !strings.Contains(said, "ulimit -n") || strings.Count(said, "\n") > 2 {
		t.Errorf("it said %q", said)
	}
}
