package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/spillwaydb/spillway/protocols/setting"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// process is spillway standalone as a person would start it.
type process struct {
	t    *testing.T
	bin  string
	dir  string
	addr string
	env  []string
	in   []string // a command that runs another: where to run it
	more []string // further flags
	cmd  *exec.Cmd
	log  processLog // the output since its last start
	done chan struct{}
	err  error // why it ended; good once done is closed
}

// newProcess chooses a directory and a port that it keeps through all its lives. env are further
// SPILLWAY_… settings.
func newProcess(t *testing.T, env ...string) *process {
	return newProcessOf(t, program(t), env...)
}

// newProcessOf is newProcess with a program that is built.
func newProcessOf(t *testing.T, bin string, env ...string) *process {
	addr, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return &process{t: t, bin: bin, dir: t.TempDir(), addr: addr, env: append(foreignEnviron(), env...)}
}

// foreignEnviron is the environment without variables for the product or its tests. Processes do not write their own metrics unless a
// test says so: most count the tables and rows they wrote.
func foreignEnviron() []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, setting.EnvironPrefix) })
	return append(env, "SPILLWAY_SELF_SCRAPE_INTERVAL=0")
}

// start starts it and returns when it is ready.
func (p *process) start() {
	p.t.Helper()
	p.spawn()
	for {
		select {
		case <-p.done:
			p.t.Fatalf("the process ended: %v\n%s", p.err, &p.log)
		case <-time.After(10 * time.Millisecond):
		}
		if status, _, err := p.get("/-/ready"); err == nil && status == http.StatusOK {
			return
		}
	}
}

// spawn starts it and returns at once.
func (p *process) spawn() {
	p.t.Helper()
	p.log.Reset()
	line := append(slices.Clone(p.in), p.bin, "standalone", "--data-dir="+filepath.Join(p.dir, "data"), "--http.listen="+p.addr, "--admin.listen=")
	line = append(line, p.more...)
	p.cmd = exec.Command(line[0], line[1:]...)
	p.cmd.Env, p.cmd.Stderr = p.env, &p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.done = make(chan struct{})
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	p.t.Cleanup(p.kill)
}

// kill ends it as the kernel would: nothing is flushed, closed or printed.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop ends it as an operator would, and returns its exit code.
func (p *process) stop() int {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return p.exit()
}

// exit waits for its end and returns its exit code.
func (p *process) exit() int {
	<-p.done
	var e *exec.ExitError
	if errors.As(p.err, &e) {
		return e.ExitCode()
	}
	if p.err != nil {
		p.t.Fatal(p.err)
	}
	return 0
}

// processLog is the output of a process so far. It may be read while the process runs.
type processLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *processLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *processLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *processLog) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

func (p *process) get(path string) (int, []byte, error) {
	return p.do(http.MethodGet, path, nil, nil)
}

func (p *process) do(method, path string, header http.Header, body []byte) (int, []byte, error) {
	r, err := http.NewRequest(method, "http://"+p.addr+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header = header
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, text, err
}

// sampleAt is a sample as returned by the query API.
type sampleAt struct {
	ms    int64
	value float64
}

// rows asks for every sample of the metric up to time at, over the range, by series.
func (p *process) rows(metric, over string, at time.Time) map[string][]sampleAt {
	p.t.Helper()
	return p.rowsOf("default", metric, over, at)
}

// rowsOf is rows of any table.
func (p *process) rowsOf(table, metric, over string, at time.Time) map[string][]sampleAt {
	p.t.Helper()
	got, err := p.tryRowsOf(table, metric, over, at)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, &p.log)
	}
	return got
}

// tryRowsOf is rowsOf where an answer may fail.
func (p *process) tryRowsOf(table, metric, over string, at time.Time) (map[string][]sampleAt, error) {
	p.t.Helper()
	q := url.Values{"query": {metric + "[" + over + "]"}, "time": {strconv.FormatInt(at.Unix(), 10)}, "timeout": {"100s"}}
	status, text, err := p.get("/t/" + table + "/api/v1/query?" + q.Encode())
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("query of %s: %d %.500s %v", metric, status, text, err)
	}
	return samplesOf(p.t, text), nil
}

// samplesOf reads the samples of an answer, by series.
func samplesOf(t testing.TB, text []byte) map[string][]sampleAt {
	t.Helper()
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Fatal(err)
	}
	out := map[string][]sampleAt{}
	for _, s := range answer.Data.Result {
		name := s.Metric["__name__"] + "/" + s.Metric["i"]
		if out[name] != nil {
			t.Fatalf("series %s comes twice", name)
		}
		for _, v := range s.Values {
			value, err := strconv.ParseFloat(v[1].(string), 64)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = append(out[name], sampleAt{int64(v[0].(float64)*1000 + 0.5), value})
		}
	}
	return out
}
