package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// startMax bounds how long a start may last, stopMax an end.
const (
	startMax = 2 * time.Minute
	stopMax  = 60 * time.Second
)

// target is the process under attack.
type target struct {
	p      *processes.Process
	addr   string
	secure bool        // it speaks TLS
	admin  string      // the address of its admin port, where it speaks TLS
	peer   string      // of a storage server: the address of its port for peers
	shown  *tls.Config // what a peer shows there; nil: peers are not secured
	dir    string
	memory int64
	client *http.Client

	// Of a cluster; p is its first gateway then.
	all            []*processes.Process
	addrs          []string // of the gateways
	pages, staging []string // with the health of all but etcd, in the order of all; of them those of storage servers
}

// door is the address that a connection goes to: of a cluster one gateway after the other.
func (t *target) door(connection int) string {
	if len(t.addrs) == 0 {
		return t.addr
	}
	return t.addrs[connection%len(t.addrs)]
}

func startTarget(ctx context.Context, o options, first attack) (*target, error) {
	dir, err := os.MkdirTemp("", "spillway-attack-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	t := &target{addr: addr, dir: dir, client: &http.Client{
		Timeout: time.Minute,
		// A redirect is an answer: a client that follows it sends a new request, which any proxy before the server sees.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true, TLSClientConfig: anyCertificate()},
	}}
	if t.memory, err = bytesOf(o.memory); err != nil {
		return nil, err
	}
	t.p = &processes.Process{
		Name: "spillway",
		Line: []string{
			o.bin, "standalone", "--data-dir=" + filepath.Join(dir, "data"), "--http.listen=" + addr, "--admin.listen=" + o.admin,
			"--memory=" + o.memory, "--enable-delete",
		},
		Ready: "http://" + addr + "/-/ready",
		// A flush after a second of rest: whatever cannot be flushed is found while the attack is still under way.
		Env: []string{"SPILLWAY_STORAGE_FLUSH_IDLE=1s"},
	}
	if first.env != nil {
		t.p.Env = append(t.p.Env, first.env(o)...)
	}
	if first.tls {
		if err := t.secured(); err != nil {
			return nil, err
		}
	}
	if o.cpus != "" {
		// GOMAXPROCS is this program's, which keeps to its own processors: inherited, it would look like a setting of the user.
		t.p.In = []string{"env", "-u", "GOMAXPROCS", "taskset", "-c", o.cpus}
	}
	if o.verbose {
		t.p.Out = os.Stderr
	}
	return t, t.start(ctx)
}

// url is the address with its scheme.
func (t *target) url() string {
	if t.secure {
		return "https://" + t.addr
	}
	return "http://" + t.addr
}

// bytesOf reads 512MiB, 4GiB.
func bytesOf(s string) (int64, error) {
	for unit, n := range map[string]int64{"MiB": 1 << 20, "GiB": 1 << 30} {
		if text, ok := strings.CutSuffix(s, unit); ok {
			v, err := strconv.ParseInt(text, 10, 64)
			return v * n, err
		}
	}
	return 0, fmt.Errorf("memory %q: give it in MiB or GiB", s)
}

func (t *target) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	return t.p.Start(ctx)
}

func (t *target) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopMax)
	defer cancel()
	t.client.CloseIdleConnections()
	return t.p.Stop(ctx)
}

// restart starts a process that ended by itself.
func (t *target) restart(ctx context.Context) error {
	t.client.CloseIdleConnections()
	return t.start(ctx)
}

// end kills the process and removes its files.
func (t *target) end() {
	t.p.Kill()
	for _, p := range t.all {
		p.Kill()
	}
	_ = os.RemoveAll(t.dir)
}

func (t *target) alive() bool {
	select {
	case <-t.p.Done():
		return false
	default:
		return true
	}
}

// resetPeak has the system measure the peak of resident memory from now on.
func (t *target) resetPeak() {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", t.p.PID()), []byte("5"), 0)
}

// peak is the peak of resident memory in bytes since resetPeak; 0 if the process is gone.
func (t *target) peak() int64 { return t.status("VmHWM:") }

// rss is resident memory now, in bytes.
func (t *target) rss() int64 { return t.status("VmRSS:") }

// cpu is the processor time that the process has used, or all of a cluster.
func (t *target) cpu() (sum time.Duration) {
	if len(t.all) == 0 {
		return cpuOf(t.p)
	}
	for _, p := range t.all {
		sum += cpuOf(p)
	}
	return sum
}

func cpuOf(p *processes.Process) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ") // a name may hold blanks
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticksPerSecond
}

// ticksPerSecond is the unit of /proc/<pid>/stat on every Linux that Go runs on.
const ticksPerSecond = 100

// killOver is how much of its budget a process may use before it is killed: this machine may have other tenants.
const killOver = 4

// guarded runs f and kills the process if it outgrows its budget by far meanwhile.
func (t *target) guarded(f func()) {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		every(ctx, 20*time.Millisecond, func() {
			if t.alive() && t.rss() > killOver*t.memory {
				t.p.Kill()
			}
		})
	})
	f()
	stop()
	wg.Wait()
}

func (t *target) status(key string) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.p.PID()))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

// answerMax bounds the part of an answer that is kept, in bytes.
const answerMax = 64 << 20

// timedOut is in the answer to a query that its own time-out ended: there is no better time to ask again.
const timedOut = `"errorType":"timeout"`

// ask sends one request and reads the answer.
func (t *target) ask(ctx context.Context, method, path string, header http.Header, body []byte) (status int, answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, t.url()+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if header != nil {
		r.Header = header
	}
	got, err := t.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer got.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(got.Body, answerMax))
	if n := got.Header.Get("Retry-After"); err == nil && (got.StatusCode == http.StatusServiceUnavailable || got.StatusCode == http.StatusTooManyRequests) && path != "/-/ready" {
		if _, bad := strconv.Atoi(n); bad != nil && !bytes.Contains(answer, []byte(timedOut)) {
			err = fmt.Errorf("%w: %d with Retry-After %q: %.200s", errAnswer, got.StatusCode, n, answer)
		}
	}
	return got.StatusCode, answer, err
}

// metric gives the value of one of the process's own metrics.
func (t *target) metric(ctx context.Context, name string) (float64, error) {
	status, answer, err := t.ask(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil || status != http.StatusOK {
		return 0, fmt.Errorf("/metrics: %d %w", status, err)
	}
	for line := range strings.Lines(string(answer)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("/metrics has no %s", name)
}

// errAnswer marks answers that break the protocol.
var errAnswer = errors.New("bad answer")
