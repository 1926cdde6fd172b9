package processtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// Process is spillway standalone as a person would start it.
type Process struct {
	T    *testing.T
	Bin  string
	Dir  string
	Addr string
	Env  []string
	In   []string // a command that runs another: where to run it
	More []string // further flags
	Cmd  *exec.Cmd
	Log  Log // the output since its last start
	Done chan struct{}
	Err  error // why it ended; good once done is closed
}

// New chooses a directory and a port that it keeps through all its lives. env are further
// SPILLWAY_… settings.
func New(t *testing.T, env ...string) *Process {
	return NewOf(t, Program(t), env...)
}

// NewOf is New with a program that is built.
func NewOf(t *testing.T, bin string, env ...string) *Process {
	addr, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return &Process{T: t, Bin: bin, Dir: t.TempDir(), Addr: addr, Env: append(Environ(), env...)}
}

// Environ is the environment without variables for the product or its tests. Processes do not write their own metrics unless a
// test says so: most count the tables and rows they wrote.
func Environ() []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, setting.EnvironPrefix) })
	return append(env, "SPILLWAY_SELF_SCRAPE_INTERVAL=0")
}

// Start starts it and returns when it is ready.
func (p *Process) Start() {
	p.T.Helper()
	p.Spawn()
	for {
		select {
		case <-p.Done:
			p.T.Fatalf("the process ended: %v\n%s", p.Err, &p.Log)
		case <-time.After(10 * time.Millisecond):
		}
		if status, _, err := p.Get("/-/ready"); err == nil && status == http.StatusOK {
			return
		}
	}
}

// Spawn starts it and returns at once.
func (p *Process) Spawn() {
	p.T.Helper()
	p.Log.Reset()
	line := append(slices.Clone(p.In), p.Bin, "standalone", "--data-dir="+filepath.Join(p.Dir, "data"), "--http.listen="+p.Addr, "--admin.listen=")
	line = append(line, p.More...)
	p.Cmd = exec.Command(line[0], line[1:]...)
	p.Cmd.Env, p.Cmd.Stderr = p.Env, &p.Log
	if err := p.Cmd.Start(); err != nil {
		p.T.Fatal(err)
	}
	p.Done = make(chan struct{})
	go func() {
		p.Err = p.Cmd.Wait()
		close(p.Done)
	}()
	p.T.Cleanup(p.Kill)
}

// Kill ends it as the kernel would: nothing is flushed, closed or printed.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.Done
}

// Stop ends it as an operator would, and returns its exit code.
func (p *Process) Stop() int {
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.T.Fatal(err)
	}
	return p.Exit()
}

// Exit waits for its end and returns its exit code.
func (p *Process) Exit() int {
	<-p.Done
	var e *exec.ExitError
	if errors.As(p.Err, &e) {
		return e.ExitCode()
	}
	if p.Err != nil {
		p.T.Fatal(p.Err)
	}
	return 0
}

// Log is the output of a process so far. It may be read while the process runs.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String is the output so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Reset forgets it.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// client has a time-out: a process that hangs fails the test that asks it, and not the whole run by its time limit.
func client() *http.Client { return &http.Client{Timeout: 5 * time.Minute} }

// Get asks for a path: status and body.
func (p *Process) Get(path string) (int, []byte, error) {
	return p.Do(http.MethodGet, path, nil, nil)
}

// Do sends a request: status and body.
func (p *Process) Do(method, path string, header http.Header, body []byte) (int, []byte, error) {
	r, err := http.NewRequest(method, "http://"+p.Addr+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header = header
	answer, err := client().Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, text, err
}

// Sample is a sample as returned by the query API.
type Sample struct {
	Ms    int64
	Value float64
}

// Rows asks for every sample of the metric up to time at, over the range, by series.
func (p *Process) Rows(metric, over string, at time.Time) map[string][]Sample {
	p.T.Helper()
	return p.RowsOf("default", metric, over, at)
}

// RowsOf is Rows of any table. Answers that fail are tried again, as those of Ask.
func (p *Process) RowsOf(table, metric, over string, at time.Time) map[string][]Sample {
	p.T.Helper()
	for end := time.Now().Add(askPatience); ; time.Sleep(100 * time.Millisecond) {
		got, err := p.TryRowsOf(table, metric, over, at)
		if err == nil {
			return got
		}
		if time.Now().After(end) {
			p.T.Fatalf("%v\n%s", err, &p.Log)
		}
	}
}

// TryRowsOf is RowsOf where an answer may fail.
func (p *Process) TryRowsOf(table, metric, over string, at time.Time) (map[string][]Sample, error) {
	p.T.Helper()
	q := url.Values{"query": {metric + "[" + over + "]"}, "time": {strconv.FormatInt(at.Unix(), 10)}, "timeout": {"100s"}}
	status, text, err := p.Get("/t/" + table + "/api/v1/query?" + q.Encode())
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("query of %s: %d %.500s %v", metric, status, text, err)
	}
	return SamplesOf(p.T, text), nil
}

// SamplesOf reads the samples of an answer, by series.
func SamplesOf(t testing.TB, text []byte) map[string][]Sample {
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
	out := map[string][]Sample{}
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
			out[name] = append(out[name], Sample{int64(v[0].(float64)*1000 + 0.5), value})
		}
	}
	return out
}

// Run runs a command of the program; it returns standard output, the other output, and the exit code.
func (p *Process) Run(args ...string) (out, said string, code int) {
	p.T.Helper()
	c := exec.Command(p.Bin, args...)
	c.Env, c.Dir = p.Env, p.Dir
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.T.Fatal(err)
	}
	return o.String(), e.String(), c.ProcessState.ExitCode()
}

// Must is Run for a command that has to end with a code.
func (p *Process) Must(code int, args ...string) (out, said string) {
	p.T.Helper()
	out, said, got := p.Run(args...)
	if got != code {
		p.T.Fatalf("spillway %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out, said)
	}
	return out, said
}

// Send posts a remote write request to a table.
func (p *Process) Send(table string, w *prompb.WriteRequest) {
	p.T.Helper()
	b, err := w.Marshal()
	if err != nil {
		p.T.Fatal(err)
	}
	resp, err := client().Post("http://"+p.Addr+"/t/"+table+"/api/v1/write", "application/x-protobuf", bytes.NewReader(snappy.Encode(nil, b)))
	if err != nil {
		p.T.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		p.T.Fatal(resp.Status)
	}
}

// Exported are a table's rows as the export route shows them, every bit.
func (p *Process) Exported(table string) string {
	p.T.Helper()
	out, _ := p.Must(0, "export", "--to=-", "--format=json", "--url=http://"+p.Addr, "--table="+table)
	return out
}

// Line writes rows of one series by line protocol and returns the answer.
func (p *Process) Line(lines string) (int, string) {
	status, text, err := p.Do(http.MethodPost, "/write?db=default&precision=ms", nil, []byte(lines))
	if err != nil {
		return 0, err.Error()
	}
	return status, string(text)
}

// Until writes a row now and then until the answer has the wanted status.
func (p *Process) Until(want int) (text string) {
	p.T.Helper()
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var status int
		if status, text = p.Line("disk,i=probe x=1 1\n"); status == want {
			return text
		}
	}
	p.T.Fatalf("no %d within %v; the last answer: %s\n%s", want, Patience, text, &p.Log)
	return ""
}

// Eventually waits until a condition holds.
func (p *Process) Eventually(what string, holds func() bool) {
	p.T.Helper()
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if holds() {
			return
		}
	}
	p.T.Fatalf("within %v it was not so that %s\n%s", Patience, what, &p.Log)
}
