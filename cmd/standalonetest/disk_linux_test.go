package standalonetest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestFullDiskRefusesWritesAndGoesOnReading fills the disk up to the reserve that free_bytes_min keeps, and makes room.
func TestFullDiskRefusesWritesAndGoesOnReading(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=16777216")
	disk := processtest.NewSmallDisk(t, p.Dir, 64<<20)
	p.In = disk.In
	p.Start()
	now := time.Now()
	if status, text := p.Line(fmt.Sprintf("disk,i=a x=7 %d\n", now.UnixMilli())); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	disk.Use(t, 8<<20)
	if text := p.Until(http.StatusServiceUnavailable); !strings.Contains(text, "read-only") || !strings.Contains(text, "make room") {
		t.Errorf("writers are answered %q", text)
	}
	kept := func() {
		t.Helper()
		if got := p.Rows("disk_x", "1h", now.Add(time.Second))["disk_x/a"]; len(got) != 1 || got[0].Value != 7 {
			t.Errorf("read %v", got)
		}
	}
	kept()
	disk.Clear(t)
	p.Until(http.StatusNoContent)
	kept()
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, &p.Log)
	}
}

// TestFailedWriteEndsTheProcess lets the log hit the end of the disk, without the reserve that should keep it from there.
// The process must not ack a row that it could not write; it ends, reports why, and restarts with all acked rows.
func TestFailedWriteEndsTheProcess(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	disk := processtest.NewSmallDisk(t, p.Dir, 64<<20)
	p.In = disk.In
	p.Start()
	p.Until(http.StatusNoContent)
	slow, err := net.Dial("tcp", p.Addr) // a request that never ends
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := slow.Write([]byte("POST /write?db=default HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\ndisk,i=c x=1")); err != nil {
		t.Fatal(err)
	}
	disk.Use(t, 1<<20)
	now := time.Now()
	acked := map[int64]float64{}
	for batch := range int64(1000) {
		rows := map[int64]float64{}
		var lines strings.Builder
		for i := range int64(2000) {
			at := now.UnixMilli() - batch*2000 - i
			rows[at] = rand.Float64()
			fmt.Fprintf(&lines, "disk,i=b x=%v %d\n", rows[at], at)
		}
		status, _ := p.Line(lines.String())
		if status == http.StatusNoContent {
			for at, v := range rows {
				acked[at] = v
			}
			continue
		}
		break
	}
	fenced := time.Now()
	if code := p.Exit(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	t.Logf("it ended %v after the first refusal", time.Since(fenced)) // TestAFencedProcessEndsInTime says how long it may be
	if said, _ := io.ReadAll(slow); strings.Contains(string(said), " 408 ") {
		t.Errorf("it waited for a request until that was too late: %q", said)
	}
	said := p.Log.String()
	last := said[strings.LastIndex(strings.TrimSuffix(said, "\n"), "\n")+1:]
	if !strings.HasPrefix(last, "spillway: ") || !strings.Contains(last, "fenced") || !strings.Contains(last, "no space left on device") {
		t.Errorf("its last words are %q", last)
	}
	disk.Clear(t)
	p.Start()
	got := map[int64]float64{}
	for _, r := range p.Rows("disk_x", "2h", now.Add(time.Second))["disk_x/b"] {
		got[r.Ms] = r.Value
	}
	for at, v := range acked {
		if got[at] != v {
			t.Fatalf("at %d: read %v, want %v; %d rows of %d acked", at, got[at], v, len(got), len(acked))
		}
	}
	if len(acked) == 0 {
		t.Error("nothing was acked before the disk was full")
	}
}

// TestAFullDiskIsReadFromTheStartOn starts a process on a disk without a free byte: it gets ready, answers queries,
// refuses writes and reports why, does not keep a processor busy, and accepts writes again when there is room.
func TestAFullDiskIsReadFromTheStartOn(t *testing.T) {
	t.Parallel() // two changes of METADATA wait for room for twenty seconds each
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1", "SPILLWAY_STORAGE_FLUSH_IDLE=1s")
	disk := processtest.NewSmallDisk(t, p.Dir, 64<<20)
	p.In = disk.In
	p.Start()
	now := time.Now()
	must := func(line string) {
		t.Helper()
		if status, text := p.Line(line); status != http.StatusNoContent {
			t.Fatalf("%d %s", status, text)
		}
	}
	must(fmt.Sprintf("disk,i=a x=7 %d\n", now.UnixMilli()))
	p.Eventually("the row is in a segment", func() bool { return processtest.SegmentsIn(disk.Dir) > 0 })
	must(fmt.Sprintf("disk,i=a x=8 %d\n", now.UnixMilli()+1)) // in the log only
	p.Kill()
	before := processtest.TreeOf(t, filepath.Join(disk.Dir, "data"))
	disk.FillUp(t)
	p.Start()
	kept := func(want int) {
		t.Helper()
		got := p.Rows("disk_x", "1h", now.Add(time.Second))["disk_x/a"]
		if len(got) != want || got[0].Value != 7 || got[1].Value != 8 {
			t.Errorf("read %v", got)
		}
	}
	kept(2)
	if status, text := p.Line("disk,i=a x=9 1\n"); status != http.StatusServiceUnavailable || !strings.Contains(text, "make room") {
		t.Errorf("a write was answered %d %q", status, text)
	}
	if status, text, err := p.Do(http.MethodPost, "/query?q=CREATE+DATABASE+other", nil, nil); err == nil && status == http.StatusOK && !strings.Contains(string(text), "error") {
		t.Errorf("a table was made in memory: %d %s", status, text)
	}
	used := processorTime(t, p)
	time.Sleep(3 * time.Second) // what an idle process costs in this time is measured
	if used = processorTime(t, p) - used; used > time.Second {
		t.Errorf("an idle process on a full disk used %v of a processor in 3 s", used)
	}
	kept(2)
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, &p.Log)
	}
	if after := processtest.TreeOf(t, filepath.Join(disk.Dir, "data")); after != before {
		t.Errorf("files were\n%s\nand are\n%s", before, after)
	}
	p.Start()
	kept(2)
	disk.Clear(t)
	p.Until(http.StatusNoContent)
	kept(2)
	must(fmt.Sprintf("disk,i=a x=9 %d\n", now.UnixMilli()+2))
	kept(3)
	p.Kill()
	p.Start()
	kept(3)
}

// TestAStoreOutlivesTheLastFileOfItsDisk: on a disk with bytes and no room for a file more (inodes) the start was refused, and
// the rows could not be read.
func TestAStoreOutlivesTheLastFileOfItsDisk(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	disk := processtest.NewSmallDisk(t, p.Dir, 64<<20)
	p.In = disk.In
	p.Start()
	now := time.Now()
	if status, text := p.Line(fmt.Sprintf("disk,i=a x=7 %d\n", now.UnixMilli())); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	kept := func() {
		t.Helper()
		if got := p.Rows("disk_x", "1h", now.Add(time.Second))["disk_x/a"]; len(got) != 1 || got[0].Value != 7 {
			t.Errorf("read %v", got)
		}
	}
	refused := func() {
		t.Helper()
		if text := p.Until(http.StatusServiceUnavailable); !strings.Contains(text, "remove files there") {
			t.Errorf("writers are answered %q", text)
		}
		kept()
	}
	disk.UseFiles(t, 500)
	refused()
	disk.Clear(t)
	p.Until(http.StatusNoContent)
	p.Kill()
	disk.UseFiles(t, 0)
	p.Start()
	refused()
	disk.Clear(t)
	p.Until(http.StatusNoContent)
	kept()
}

// processorTime is the processor time that a process has used.
func processorTime(t *testing.T, p *processtest.Process) time.Duration {
	status, text, err := p.Get("/metrics")
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "process_cpu_seconds_total "); ok {
			s, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return time.Duration(s * float64(time.Second))
		}
	}
	t.Fatal("no process_cpu_seconds_total")
	return 0
}
