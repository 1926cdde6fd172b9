package standalonetest

import (
	"bufio"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// tailed is `spillway tail` of a process as it runs.
type tailed struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
	said  processtest.Log
}

func startTail(t *testing.T, p *processtest.Process, args ...string) *tailed {
	t.Helper()
	c := &tailed{t: t, cmd: exec.Command(p.Bin, append([]string{"tail", "--url=http://" + p.Addr, "--every=100ms"}, args...)...), lines: make(chan string, 100)}
	c.cmd.Env, c.cmd.Stderr = p.Env, &c.said
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

// wants waits for the next lines.
func (c *tailed) wants(lines ...string) {
	c.t.Helper()
	for _, want := range lines {
		select {
		case got, ok := <-c.lines:
			if !ok || got != want {
				c.t.Fatalf("it printed %q (goes on: %t), want %q\n%s", got, ok, want, &c.said)
			}
		case <-time.After(time.Minute):
			c.t.Fatalf("%q is not printed\n%s", want, &c.said)
		}
	}
}

// TestTailPrintsEachRowOnceAsItComes: rows of several series in the order of their times, rows of a series that are older than its
// newest not at all, and no row of a series that was not asked for. Ctrl-C ends it without an error.
func TestTailPrintsEachRowOnceAsItComes(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.Start()
	began := time.Now().Add(-time.Minute).Truncate(time.Second)
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	write := func(series string, s int, v float64) {
		t.Helper()
		line := fmt.Sprintf("%s v=%g %d\n", series, v, at(s).UnixNano())
		if status, text, err := p.Do(http.MethodPost, "/write?db=default&precision=ns", nil, []byte(line)); err != nil || status != http.StatusNoContent {
			t.Fatalf("%d %s %v", status, text, err)
		}
	}
	row := func(host string, s int, v string) string {
		return at(s).UTC().Format(time.RFC3339Nano) + ` cpu_v{host="` + host + `"} ` + v
	}
	write("cpu,host=a", -3, 1) // before --since
	write("cpu,host=b", 2, 3)
	write("cpu,host=a", 1, 2)
	write("mem,host=a", 1, 9)
	c := startTail(t, p, "--since="+began.UTC().Format(time.RFC3339), "cpu_v")
	c.wants(row("a", 1, "2"), row("b", 2, "3"))
	write("cpu,host=a", 0, 7) // older than the newest of its series
	write("cpu,host=c", 0, 8) // of a series that is new
	c.wants(row("c", 0, "8"))
	write("cpu,host=a", 5, 4.5)
	c.wants(row("a", 5, "4.5"))
	write("cpu,host=b", 6, 6) // all looks between found the same rows again
	c.wants(row("b", 6, "6"))
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for line := range c.lines {
		t.Errorf("more was printed: %s", line)
	}
	if err := c.cmd.Wait(); err != nil || c.said.String() != "" {
		t.Errorf("ctrl-C: %v %s", err, &c.said)
	}
}

// TestTailSaysWhatIsWrong and ends.
func TestTailSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	p := processtest.New(t, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")
	p.Start()
	url := "--url=http://" + p.Addr
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--every must be 100ms", []string{"up", "--every=1ms", url}},
		{"--since", []string{"up", "--since=yesterday", url}},
		{"parse error", []string{"{", url}},
		{"no answer", []string{"up", "--url=http://127.0.0.1:1"}},
	} {
		if out, said := p.Must(1, append([]string{"tail"}, c.args...)...); !strings.Contains(said, c.want) || out != "" {
			t.Errorf("%v: %s%s, want %q", c.args, out, said, c.want)
		}
	}
}
