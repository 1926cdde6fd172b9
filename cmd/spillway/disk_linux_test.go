package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// smallDisk is a separate file system for a process's data: a tmpfs in a mount namespace that a helper keeps alive, so
// that it outlives the process.
type smallDisk struct {
	dir  string // as seen by the test
	in   []string
	fill string
}

func newSmallDisk(t *testing.T, dir string, bytes int) *smallDisk {
	holder := exec.Command("unshare", "-Urm", "sh", "-c", fmt.Sprintf("mount -t tmpfs -o size=%d tmpfs %s && echo ready && exec sleep 600", bytes, dir))
	out, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Skipf("no mount namespaces: %v", err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Skip("no mount namespaces here")
	}
	pid := strconv.Itoa(holder.Process.Pid)
	seen := filepath.Join("/proc", pid, "root", dir)
	return &smallDisk{dir: seen, fill: filepath.Join(seen, "fill"), in: []string{"nsenter", "-t", pid, "-U", "-m", "--preserve-credentials"}}
}

// use allocates space until left bytes are free.
func (d *smallDisk) use(t *testing.T, left uint64) {
	t.Helper()
	free := freeBytes(t, d.dir)
	if free <= left || free > 1<<30 {
		t.Fatalf("%d bytes are free; is this the small disk?", free)
	}
	if err := os.WriteFile(d.fill, make([]byte, free-left), 0o600); err != nil {
		t.Fatal(err)
	}
}

// fillUp allocates the last byte.
func (d *smallDisk) fillUp(t *testing.T) {
	t.Helper()
	for size := uint64(4 << 20); size > 0; size /= 2 {
		f, err := os.OpenFile(d.fill, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		_ = f.Close()
	}
	if free := freeBytes(t, d.dir); free != 0 {
		t.Fatalf("%d bytes are free", free)
	}
}

func (d *smallDisk) clear(t *testing.T) {
	if err := os.Remove(d.fill); err != nil {
		t.Fatal(err)
	}
}

// line writes rows of one series by line protocol and returns the answer.
func (p *process) line(lines string) (int, string) {
	status, text, err := p.do(http.MethodPost, "/write?db=default&precision=ms", nil, []byte(lines))
	if err != nil {
		return 0, err.Error()
	}
	return status, string(text)
}

// until writes a row now and then until the answer has the wanted status.
func (p *process) until(want int) (text string) {
	p.t.Helper()
	for range 600 {
		var status int
		if status, text = p.line("disk,i=probe x=1 1\n"); status == want {
			return text
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.t.Fatalf("no %d within a minute; the last answer: %s\n%s", want, text, &p.log)
	return ""
}

// TestFullDiskRefusesWritesAndGoesOnReading fills the disk up to the reserve that free_bytes_min keeps, and makes room.
func TestFullDiskRefusesWritesAndGoesOnReading(t *testing.T) {
	t.Parallel()
	p := newProcess(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=16777216")
	disk := newSmallDisk(t, p.dir, 64<<20)
	p.in = disk.in
	p.start()
	now := time.Now()
	if status, text := p.line(fmt.Sprintf("disk,i=a x=7 %d\n", now.UnixMilli())); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	disk.use(t, 8<<20)
	if text := p.until(http.StatusServiceUnavailable); !strings.Contains(text, "read-only") || !strings.Contains(text, "make room") {
		t.Errorf("writers are told %q", text)
	}
	kept := func() {
		t.Helper()
		if got := p.rows("disk_x", "1h", now.Add(time.Second))["disk_x/a"]; len(got) != 1 || got[0].value != 7 {
			t.Errorf("read %v", got)
		}
	}
	kept()
	disk.clear(t)
	p.until(http.StatusNoContent)
	kept()
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, &p.log)
	}
}

// TestFailedWriteEndsTheProcess lets the log hit the end of the disk, without the reserve that should keep it from there.
// The process must not ack a row that it could not write; it ends, reports why, and restarts with all acked rows.
func TestFailedWriteEndsTheProcess(t *testing.T) {
	t.Parallel()
	p := newProcess(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	disk := newSmallDisk(t, p.dir, 64<<20)
	p.in = disk.in
	p.start()
	p.until(http.StatusNoContent)
	slow, err := net.Dial("tcp", p.addr) // a request that never ends
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := slow.Write([]byte("POST /write?db=default HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\ndisk,i=c x=1")); err != nil {
		t.Fatal(err)
	}
	disk.use(t, 1<<20)
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
		status, _ := p.line(lines.String())
		if status == http.StatusNoContent {
			for at, v := range rows {
				acked[at] = v
			}
			continue
		}
		break
	}
	fenced := time.Now()
	if code := p.exit(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	t.Logf("it ended %v after the first refusal", time.Since(fenced)) // TestAFencedProcessEndsInTime says how long it may be
	if said, _ := io.ReadAll(slow); strings.Contains(string(said), " 408 ") {
		t.Errorf("it waited for a request until that was too late: %q", said)
	}
	said := p.log.String()
	last := said[strings.LastIndex(strings.TrimSuffix(said, "\n"), "\n")+1:]
	if !strings.HasPrefix(last, "spillway: ") || !strings.Contains(last, "fenced") || !strings.Contains(last, "no space left on device") {
		t.Errorf("its last words are %q", last)
	}
	disk.clear(t)
	p.start()
	got := map[int64]float64{}
	for _, r := range p.rows("disk_x", "2h", now.Add(time.Second))["disk_x/b"] {
		got[r.ms] = r.value
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

func freeBytes(t *testing.T, dir string) uint64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bavail * uint64(st.Bsize)
}

// TestAFullDiskIsReadFromTheStartOn starts a process on a disk without a free byte: it gets ready, answers queries,
// refuses writes and reports why, does not keep a processor busy, and accepts writes again when there is room.
func TestAFullDiskIsReadFromTheStartOn(t *testing.T) {
	t.Parallel() // two changes of METADATA wait for room for twenty seconds each
	p := newProcess(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1", "SPILLWAY_STORAGE_FLUSH_IDLE=1s")
	disk := newSmallDisk(t, p.dir, 64<<20)
	p.in = disk.in
	p.start()
	now := time.Now()
	must := func(line string) {
		t.Helper()
		if status, text := p.line(line); status != http.StatusNoContent {
			t.Fatalf("%d %s", status, text)
		}
	}
	must(fmt.Sprintf("disk,i=a x=7 %d\n", now.UnixMilli()))
	p.eventually("the row is in a segment", func() bool { return segmentsIn(disk.dir) > 0 })
	must(fmt.Sprintf("disk,i=a x=8 %d\n", now.UnixMilli()+1)) // in the log only
	p.kill()
	before := treeOf(t, filepath.Join(disk.dir, "data"))
	disk.fillUp(t)
	p.start()
	kept := func(want int) {
		t.Helper()
		got := p.rows("disk_x", "1h", now.Add(time.Second))["disk_x/a"]
		if len(got) != want || got[0].value != 7 || got[1].value != 8 {
			t.Errorf("read %v", got)
		}
	}
	kept(2)
	if status, text := p.line("disk,i=a x=9 1\n"); status != http.StatusServiceUnavailable || !strings.Contains(text, "make room") {
		t.Errorf("a write was answered %d %q", status, text)
	}
	if status, text, err := p.do(http.MethodPost, "/query?q=CREATE+DATABASE+other", nil, nil); err == nil && status == http.StatusOK && !strings.Contains(string(text), "error") {
		t.Errorf("a table was made in memory: %d %s", status, text)
	}
	used := processorTime(t, p)
	time.Sleep(3 * time.Second) // what an idle process costs in this time is measured
	if used = processorTime(t, p) - used; used > time.Second {
		t.Errorf("an idle process on a full disk used %v of a processor in 3 s", used)
	}
	kept(2)
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, &p.log)
	}
	if after := treeOf(t, filepath.Join(disk.dir, "data")); after != before {
		t.Errorf("files were\n%s\nand are\n%s", before, after)
	}
	p.start()
	kept(2)
	disk.clear(t)
	p.until(http.StatusNoContent)
	kept(2)
	must(fmt.Sprintf("disk,i=a x=9 %d\n", now.UnixMilli()+2))
	kept(3)
	p.kill()
	p.start()
	kept(3)
}

func segmentsIn(dir string) int {
	names, _ := filepath.Glob(filepath.Join(dir, "data", "segments", "*", "*.seg"))
	return len(names)
}

// treeOf lists the files of a store with their sizes, except the locks and the file that fills the disk.
func treeOf(t *testing.T, dir string) string {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "LOCK" && d.Name() != "fill" {
			st, serr := d.Info()
			if serr != nil {
				return serr
			}
			fmt.Fprintln(&b, path, st.Size(), st.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// processorTime is the processor time that a process has used.
func processorTime(t *testing.T, p *process) time.Duration {
	status, text, err := p.get("/metrics")
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
