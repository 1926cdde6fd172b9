package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
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

// smallDisk is a file system of its own for a process's data: a tmpfs in a mount namespace that a helper keeps alive, so
// that it outlives the process.
type smallDisk struct {
	dir  string // as the test sees it
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

// use takes space until so many bytes are left.
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

func (d *smallDisk) clear(t *testing.T) {
	if err := os.Remove(d.fill); err != nil {
		t.Fatal(err)
	}
}

// line writes rows of one series by line protocol and gives the answer.
func (p *process) line(lines string) (int, string) {
	status, text, err := p.do(http.MethodPost, "/write?db=default&precision=ms", nil, []byte(lines))
	if err != nil {
		return 0, err.Error()
	}
	return status, string(text)
}

// until writes a row now and then until it is answered so.
func (p *process) until(want int) (text string) {
	p.t.Helper()
	for range 100 {
		var status int
		if status, text = p.line("disk,i=probe x=1 1\n"); status == want {
			return text
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.t.Fatalf("no %d within ten seconds; the last answer: %s\n%s", want, text, &p.log)
	return ""
}

// TestFullDiskRefusesWritesAndGoesOnReading fills the disk up to the reserve that free_bytes_min keeps, and makes room.
func TestFullDiskRefusesWritesAndGoesOnReading(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
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
// The process must not ack what it could not write; it ends, says why, and comes back with all it acked.
func TestFailedWriteEndsTheProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	p := newProcess(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	disk := newSmallDisk(t, p.dir, 64<<20)
	p.in = disk.in
	p.start()
	p.until(http.StatusNoContent)
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
	if code := p.exit(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
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
