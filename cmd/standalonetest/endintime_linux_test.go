package standalonetest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestAProcessEndsAfterSIGTERMThoughItsDiskDoesNotAnswer: the scrub reads a segment whose bytes never come, here those of a pipe. The
// operator's SIGTERM ends the process all the same, and the next start has every acknowledged row.
func TestAProcessEndsAfterSIGTERMThoughItsDiskDoesNotAnswer(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_HTTP_SHUTDOWN_TIMEOUT=1s", "SPILLWAY_STORAGE_FLUSH_AGE=100ms", "SPILLWAY_STORAGE_FLUSH_IDLE=100ms",
		"SPILLWAY_STORAGE_FREE_BYTES_MIN=1", "SPILLWAY_STORAGE_SCRUB_PERIOD=200ms", "SPILLWAY_STORAGE_SCRUB_BYTES_PER_SECOND=100MiB")
	p.Start()
	const day = 1_700_000_000 / 86400 * 86400
	write := func(at int) {
		t.Helper()
		status, text, err := p.Do(http.MethodPost, "/write?precision=s&db=default", nil, fmt.Appendf(nil, "cpu,i=a usage=1 %d\n", at))
		if err != nil || status != http.StatusNoContent {
			t.Fatalf("%d %s %v\n%s", status, text, err, &p.Log)
		}
	}
	soon := func(what string, f func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not within a minute: %s\n%s", what, &p.Log)
			}
		}
	}
	write(day + 10)
	soon("a flush", func() bool { return strings.Contains(p.Log.String(), "head flushed") }) // before it is over the file is not whole
	files, err := filepath.Glob(filepath.Join(p.Dir, "data", "segments", "*", "*.seg"))
	if err != nil || len(files) != 1 {
		t.Fatalf("segment files %q, %v", files, err)
	}
	aside, fifo := filepath.Join(p.Dir, "aside"), filepath.Join(p.Dir, "fifo")
	for _, err := range []error{os.Link(files[0], aside), syscall.Mkfifo(fifo, 0o600), os.Rename(fifo, files[0])} { // no moment without a file
		if err != nil {
			t.Fatal(err)
		}
	}
	pipe := -1
	soon("the scrub reads it", func() (reads bool) { // without a reader the pipe cannot be opened
		fd, err := syscall.Open(files[0], syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		pipe = fd
		return err == nil
	})
	defer func() { _ = syscall.Close(pipe) }()
	write(day + 20)

	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done:
	case <-time.After(time.Minute): // six seconds, on a machine with time to spare
		t.Fatalf("it runs a minute after SIGTERM\n%s", &p.Log)
	}
	if code := p.Exit(); code != 1 || !strings.Contains(p.Log.String(), "acknowledged rows are in the log") {
		t.Errorf("it ended with %d\n%s", code, &p.Log)
	}
	if err := os.Rename(aside, files[0]); err != nil {
		t.Fatal(err)
	}
	p.Start()
	_, text, err := p.Get(fmt.Sprintf("/api/v1/query?query=count_over_time(cpu_usage[86390s])&time=%d", day+86399))
	if err != nil || !strings.Contains(string(text), `"2"]`) {
		t.Errorf("acknowledged rows after the start: %s, %v", text, err)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("a process without trouble ended with %d\n%s", code, &p.Log)
	}
}
