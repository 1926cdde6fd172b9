package intake_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/handshake"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// fasthttp keeps one goroutine a process that refreshes the header Date.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// memory is a Writer that keeps rows in maps. It copies them, so that a test notices a reused batch.
type memory struct {
	createOnWrite bool

	mu     sync.Mutex
	tables map[string]*memoryTable
}

type memoryTable struct {
	dict *point.Dict
	lo   point.Nanos

	mu       sync.Mutex
	rows     map[string]map[point.Nanos]float64
	hists    int
	exempl   int
	metadata []point.MetadataRow
	levels   []point.Level
	smears   []point.Smear // the wishes that came with the writes
	keep     time.Duration
	err      error         // the answer of Write
	stall    chan struct{} // Write waits until it is closed
	entered  chan struct{} // Write signals that it waits
	waits    []func()      // of the writes that wait
}

func newMemory() *memory {
	return &memory{createOnWrite: true, tables: map[string]*memoryTable{}}
}

func (m *memory) Table(ctx context.Context, name string) (intake.Table, error) {
	m.mu.Lock()
	t, ok := m.tables[name]
	m.mu.Unlock()
	if ok {
		return t, nil
	}
	if !m.createOnWrite {
		return nil, fault.Errorf(fault.NotFound, "no table %q", name)
	}
	return m.table(name), nil
}

func (m *memory) Existing(_ context.Context, name string) (intake.Table, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tables[name]; t != nil {
		return t, nil
	}
	return nil, fault.Errorf(fault.NotFound, "no table %q", name)
}

func (m *memory) table(name string) *memoryTable {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.tables[name]
	if !ok {
		t = &memoryTable{dict: point.NewDict(0), rows: map[string]map[point.Nanos]float64{}}
		m.tables[name] = t
	}
	return t
}

func (m *memory) Create(_ context.Context, name string, keep *time.Duration) error {
	m.mu.Lock()
	_, old := m.tables[name]
	m.mu.Unlock()
	t := m.table(name)
	switch {
	case keep == nil || *keep == t.keep:
	case old:
		return fault.Errorf(fault.Invalid, "retention policy conflicts with an existing policy")
	default:
		t.keep = *keep
	}
	return nil
}

func (m *memory) List(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for n := range m.tables {
		names = append(names, n)
	}
	slices.Sort(names)
	return names, nil
}

func (t *memoryTable) Dict() *point.Dict { return t.dict }

func (t *memoryTable) Bounds(now point.Nanos) (lo, hi point.Nanos) {
	if t.keep != 0 {
		return now - point.Nanos(t.keep), math.MaxInt64
	}
	return t.lo, math.MaxInt64
}

func (t *memoryTable) Write(ctx context.Context, b *point.Batch, level point.Level) error {
	t.mu.Lock()
	stall, entered, err := t.stall, t.entered, t.err
	t.mu.Unlock()
	if stall != nil {
		t.mu.Lock()
		t.waits = append(t.waits, peer.Waiting(ctx))
		t.mu.Unlock()
		entered <- struct{}{}
		select {
		case <-stall:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, id := range b.IDs {
		l := t.dict.Labels(id).String()
		if t.rows[l] == nil {
			t.rows[l] = map[point.Nanos]float64{}
		}
		t.rows[l][b.Times[i]] = b.Values[i]
	}
	t.hists += len(b.Hists)
	t.exempl += len(b.Exemplars)
	t.metadata = append(t.metadata, b.Metadata...)
	t.smears = append(t.smears, b.Smear)
	t.levels = append(t.levels, level)
	return nil
}

// dump prints all rows, a line each, sorted.
func (t *memoryTable) dump() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lines []string
	for l, rows := range t.rows {
		for at, v := range rows {
			lines = append(lines, fmt.Sprintf("%s %v @%d\n", l, v, at))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (t *memoryTable) count() int { return strings.Count(t.dump(), "\n") }

func (t *memoryTable) lastLevel() point.Level {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.levels[len(t.levels)-1]
}

func (t *memoryTable) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
}

func (t *memoryTable) stop() (entered chan struct{}, release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stall, t.entered = make(chan struct{}), make(chan struct{}, 100)
	return t.entered, sync.OnceFunc(func() { close(t.stall) })
}

// waiting says for one write that it waits for something.
func (t *memoryTable) waiting() {
	t.mu.Lock()
	waits := t.waits[0]
	t.waits = t.waits[1:]
	t.mu.Unlock()
	waits()
}

// MetricNames and Series make the table a Catalogue.
func (t *memoryTable) MetricNames(_ context.Context, limit int) ([]string, error) {
	var names []string
	for i := range t.dict.Len() {
		if n := t.dict.Labels(point.SeriesID(i)).Get(point.MetricName); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names[:min(limit, len(names))], nil
}

func (t *memoryTable) Series(_ context.Context, metric string, limit int) ([]point.Labels, error) {
	var all []point.Labels
	for i := range t.dict.Len() {
		if l := t.dict.Labels(point.SeriesID(i)); metric == "" || l.Get(point.MetricName) == metric {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, point.Labels.Compare)
	return all[:min(limit, len(all))], nil
}

// Delete makes the table a Deleter. Of regular expressions it knows the one that every name matches.
func (t *memoryTable) Delete(_ context.Context, lo, hi point.Nanos, ms []peer.Matcher) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.dict.Len() {
		l := t.dict.Labels(point.SeriesID(i))
		if slices.ContainsFunc(ms, func(m peer.Matcher) bool { return m.Type == peer.MatchEqual && l.Get(m.Name) != m.Value }) {
			continue
		}
		for at := range t.rows[l.String()] {
			if lo <= at && at <= hi {
				delete(t.rows[l.String()], at)
			}
		}
	}
	return nil
}

// front is a Front on a real socket.
type front struct {
	*intake.Front
	memory  *memory
	metrics *prometheus.Registry
	senders *recent.Senders
	addr    string
	client  *http.Client
	endless atomic.Int64 // answers at /endless that ended
	tls     *tls.Config  // of clients; nil: plain
}

// starter is start, or startTLS.
type starter func(t testing.TB, change ...func(*intake.Settings)) *front

// plainAndTLS runs a test over plain connections and over TLS, where the same must hold.
func plainAndTLS(t *testing.T, test func(t *testing.T, start starter)) {
	t.Run("plain", func(t *testing.T) { test(t, start) })
	t.Run("TLS", func(t *testing.T) { test(t, startTLS) })
}

// startTLS is start with a Front that speaks TLS.
func startTLS(t testing.TB, change ...func(*intake.Settings)) *front {
	t.Helper()
	m := newMemory()
	f := startOn(t, m, true, change...)
	f.memory = m
	return f
}

// start runs a Front with a fallback that echoes requests.
func start(t testing.TB, change ...func(*intake.Settings)) *front {
	t.Helper()
	m := newMemory()
	f := startWith(t, m, change...)
	f.memory = m
	return f
}

func startWith(t testing.TB, w intake.Writer, change ...func(*intake.Settings)) *front {
	t.Helper()
	return startOn(t, w, false, change...)
}

func startOn(t testing.TB, w intake.Writer, secure bool, change ...func(*intake.Settings)) *front {
	t.Helper()
	var s intake.Settings
	for _, f := range change {
		f(&s)
	}
	f := &front{metrics: prometheus.NewRegistry(), senders: recent.NewSenders(), client: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
	var err error
	f.Front, err = intake.New(intake.Deps{Writer: w, Fallback: http.HandlerFunc(f.serve), Tables: tablesOf(w), Senders: f.senders, Registerer: f.metrics}, s)
	if err != nil {
		t.Fatal(err)
	}
	f.listen(t, secure)
	return f
}

// tablesOf changes tables of a memory; those of others cannot be changed.
func tablesOf(w intake.Writer) intake.Tables {
	if m, ok := w.(*memory); ok {
		return memoryTables{m}
	}
	return nil
}

type memoryTables struct{ m *memory }

// Drop implements intake.Tables.
func (t memoryTables) Drop(_ context.Context, table, _ string) error {
	return t.of(table, func() { delete(t.m.tables, table) })
}

// Keep implements intake.Tables.
func (t memoryTables) Keep(_ context.Context, table string, keep time.Duration, _ string) error {
	return t.of(table, func() { t.m.tables[table].keep = keep })
}

func (t memoryTables) of(table string, do func()) error {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if t.m.tables[table] == nil {
		return fault.Errorf(fault.NotFound, "there is no table %q", table)
	}
	do()
	return nil
}

// listen serves until the test ends.
func (f *front) listen(t testing.TB, secure bool) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = ln.Addr().String()
	if secure {
		certs := httptest.NewUnstartedServer(nil)
		certs.StartTLS()
		certs.Close()
		// One turn: a connection that kept it would keep all others out.
		ln = handshake.New(handshake.Deps{Processors: 1}).Listener(ln, "http", &tls.Config{Certificates: certs.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}})
		f.tls = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}
	}
	served := make(chan error, 1)
	go func() { served <- f.Serve(ln) }()
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := f.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

// serve echoes, thinks at /slow, and never stops talking at /endless.
func (f *front) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/slow":
		_, _ = io.ReadAll(r.Body)
		select {
		case <-time.After(2500 * time.Millisecond):
			fmt.Fprint(w, "thought")
		case <-r.Context().Done():
		}
	case "/endless":
		for err := error(nil); err == nil; {
			_, err = w.Write(make([]byte, 1<<16))
		}
		f.endless.Add(1)
	default:
		echo(w, r)
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Served-By", "fallback")
	fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.RequestURI(), body)
}

// answer is a response that was read.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request: "POST /write?db=x", pairs of header names and values, a body.
func (f *front) do(t testing.TB, what string, body []byte, header ...string) answer {
	t.Helper()
	method, target, _ := strings.Cut(what, " ")
	rq, err := http.NewRequest(method, "http://"+f.addr+target, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		rq.Header.Add(header[i], header[i+1])
	}
	return f.send(t, rq)
}

func (f *front) send(t testing.TB, rq *http.Request) answer {
	t.Helper()
	resp, err := f.client.Do(rq)
	if err != nil {
		t.Fatalf("%s %s: %v", rq.Method, rq.URL, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// want checks a status, pieces of the body, and headers written "Name: value".
func (a answer) want(t testing.TB, status int, pieces ...string) {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d; body %q", a.status, status, a.body)
	}
	for _, p := range pieces {
		if name, value, ok := strings.Cut(p, ": "); ok && len(a.header.Values(name)) > 0 {
			if a.header.Get(name) != value {
				t.Errorf("header %s is %q, want %q", name, a.header.Get(name), value)
			}
		} else if !strings.Contains(a.body, p) {
			t.Errorf("no %q in body %q, header %v", p, a.body, a.header)
		}
	}
}

func gzipped(pieces ...string) []byte {
	var b bytes.Buffer
	for _, p := range pieces { // a member each
		w := gzip.NewWriter(&b)
		w.Write([]byte(p))
		w.Close()
	}
	return b.Bytes()
}

var now = time.Now().Truncate(time.Second)

func rw1(t testing.TB, series ...prompb.TimeSeries) []byte {
	t.Helper()
	b, err := (&prompb.WriteRequest{Timeseries: series}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return snappy.Encode(nil, b)
}

func series(name string, at time.Time, value float64, labels ...string) prompb.TimeSeries {
	ts := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: name}}}
	for i := 0; i < len(labels); i += 2 {
		ts.Labels = append(ts.Labels, prompb.Label{Name: labels[i], Value: labels[i+1]})
	}
	ts.Samples = []prompb.Sample{{Timestamp: at.UnixMilli(), Value: value}}
	return ts
}

func rw2(t testing.TB, symbols []string, series ...writev2.TimeSeries) []byte {
	t.Helper()
	b, err := (&writev2.Request{Symbols: symbols, Timeseries: series}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return snappy.Encode(nil, b)
}

var (
	rw1Header = []string{"Content-Type", "application/x-protobuf", "Content-Encoding", "snappy", "X-Prometheus-Remote-Write-Version", "0.1.0"}
	rw2Header = []string{"Content-Type", "application/x-protobuf;proto=io.prometheus.write.v2.Request", "Content-Encoding", "snappy", "X-Prometheus-Remote-Write-Version", "2.0.0"}
)
