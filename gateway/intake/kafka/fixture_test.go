package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// fasthttp, in a benchmark, keeps one goroutine a process that refreshes the header Date.
func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		childMain(role)
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// memory is a Writer that keeps rows in maps, as storage would: the row written later wins.
type memory struct {
	mu     sync.Mutex
	tables map[string]*memoryTable
	fixed  bool // only tables that are there
}

type memoryTable struct {
	dict *point.Dict

	mu     sync.Mutex
	rows   map[string]map[point.Nanos]float64
	order  []float64 // values as they were written
	writes int
	most   int                      // rows of the largest write
	levels []point.Level            // of the writes
	smears map[float64]point.Smear  // by value: with its wish
	fail   func(*point.Batch) error // asked before a write
	refuse func(b *point.Batch, i int) bool
	delay  func(b *point.Batch, i int) point.Nanos // how long float row i waits in its topic; nil: none does
	stall  chan struct{}
}

func newMemory() *memory { return &memory{tables: map[string]*memoryTable{}} }

func (m *memory) table(name string) *memoryTable {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tables[name]
	if t == nil {
		t = &memoryTable{dict: point.NewDict(0), rows: map[string]map[point.Nanos]float64{}, smears: map[float64]point.Smear{}}
		m.tables[name] = t
	}
	return t
}

func (m *memory) Table(_ context.Context, name string) (intake.Table, error) {
	m.mu.Lock()
	_, ok := m.tables[name]
	fixed := m.fixed
	m.mu.Unlock()
	if !ok && fixed {
		return nil, fault.Errorf(fault.NotFound, "no table %q", name)
	}
	return m.table(name), nil
}

func (m *memory) Existing(_ context.Context, name string) (intake.Table, error) {
	return m.table(name), nil
}

func (m *memory) Create(context.Context, string, *time.Duration) error { return nil }

func (m *memory) List(context.Context) ([]string, error) { return nil, nil }

func (t *memoryTable) Dict() *point.Dict { return t.dict }

func (t *memoryTable) Bounds(point.Nanos) (lo, hi point.Nanos) { return 0, math.MaxInt64 }

func (t *memoryTable) Write(ctx context.Context, b *point.Batch, level point.Level) error {
	t.mu.Lock()
	fail, stall := t.fail, t.stall
	t.mu.Unlock()
	if stall != nil {
		select {
		case <-stall:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fail != nil {
		if err := fail(b); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writes++
	t.most = max(t.most, len(b.IDs))
	t.levels = append(t.levels, level)
	for i, id := range b.IDs {
		if t.refuse != nil && t.refuse(b, i) {
			b.Refuse(1, point.Refusal{Item: b.Item(i), Reason: "refused by the table", Kind: fault.Invalid})
			continue
		}
		l := b.Dict.Labels(id).String()
		if t.rows[l] == nil {
			t.rows[l] = map[point.Nanos]float64{}
		}
		t.rows[l][b.Times[i]] = b.Values[i]
		t.order = append(t.order, b.Values[i])
		t.smears[b.Values[i]] = b.Smear
	}
	return nil
}

func (t *memoryTable) Delays(_ time.Time, b *point.Batch, delays []point.Nanos) ([]point.Nanos, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.delay == nil {
		return delays, false
	}
	for i := range b.IDs {
		delays = append(delays, t.delay(b, i))
	}
	return delays, true
}

func (t *memoryTable) set(f func(*memoryTable)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(t)
}

func (t *memoryTable) count() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, rows := range t.rows {
		n += len(rows)
	}
	return n
}

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

// world is a fake cluster with a producer.
type world struct {
	t        testing.TB
	cluster  *kfake.Cluster
	producer *kgo.Client
}

func newWorld(t testing.TB, opts ...kfake.Opt) *world {
	t.Helper()
	return newWorldBy(t, nil, opts...)
}

// newWorldBy is newWorld with a producer that has options.
func newWorldBy(t testing.TB, by []kgo.Opt, opts ...kfake.Opt) *world {
	t.Helper()
	opts = append([]kfake.Opt{kfake.NumBrokers(2), kfake.SeedTopics(4, "metrics"), kfake.SeedTopics(1, "dead"),
		kfake.GroupMinSessionTimeout(100 * time.Millisecond)}, opts...)
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, cluster: c}
	w.producer = w.client(by...)
	t.Cleanup(func() { c.Close() })
	return w
}

func (w *world) client(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(w.cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(cl.Close)
	return cl
}

// produce writes values to a partition, one request for all.
func (w *world) produce(topic string, part int32, values ...string) {
	w.t.Helper()
	var all []*kgo.Record
	for _, v := range values {
		all = append(all, &kgo.Record{Topic: topic, Partition: part, Value: []byte(v)})
	}
	if err := w.producer.ProduceSync(context.Background(), all...).FirstErr(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) settings(change ...func(*Settings)) Settings {
	s := Settings{Clusters: []Cluster{{
		Name: "main", Brokers: w.cluster.ListenAddrs(), Group: "g",
		Topics:           []Topic{{Name: "metrics"}},
		DeadLetter:       DeadLetter{Topic: "dead"},
		CommitInterval:   model.Duration(20 * time.Millisecond),
		SessionTimeout:   model.Duration(6 * time.Second),
		RebalanceTimeout: model.Duration(6 * time.Second),
		RevokeWait:       model.Duration(2 * time.Second),
		RetryMax:         model.Duration(100 * time.Millisecond),
		LagInterval:      model.Duration(50 * time.Millisecond),
	}}}
	for _, f := range change {
		f(&s)
	}
	return s
}

// running is a Consumer under way.
type running struct {
	*Consumer
	registry *prometheus.Registry
	stop     func() // and wait
}

func (w *world) start(to intake.Writer, change ...func(*Settings)) *running {
	w.t.Helper()
	return w.startWith(Deps{Writer: to}, change...)
}

func (w *world) startWith(d Deps, change ...func(*Settings)) *running {
	w.t.Helper()
	r := &running{registry: prometheus.NewRegistry()}
	d.Registerer, d.Log = r.registry, slog.New(slog.NewTextHandler(testLog{w.t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	var err error
	r.Consumer, err = New(d, w.settings(change...))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	w.t.Cleanup(r.stop)
	return r
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s", strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

// eventually waits for a condition, and fails with its last report.
func eventually(t testing.TB, what string, cond func() (bool, any)) {
	t.Helper()
	var last any
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		ok, got := cond()
		if ok {
			return
		}
		last = got
	}
	t.Fatalf("never: %s; last: %v", what, last)
}

// committed asks the brokers for the group's offsets.
func (w *world) committed(group string) map[string]int64 {
	w.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(context.Background(), w.producer)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]int64{}
	add := func(topic string, id int32, offset int64) {
		if offset >= 0 {
			out[fmt.Sprintf("%s/%d", topic, id)] = offset
		}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			add(t.Topic, p.Partition, p.Offset)
		}
	}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				add(t.Topic, p.Partition, p.Offset)
			}
		}
	}
	return out
}

func (w *world) waitCommitted(group string, want map[string]int64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("commit of %v", want), func() (bool, any) {
		got := w.committed(group)
		return maps.Equal(got, want), got
	})
}

// letters reads the dead-letter topic: a line each.
func (w *world) letters(n int) []*kgo.Record {
	w.t.Helper()
	cl := w.client(kgo.ConsumeTopics("dead"))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		f := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			w.t.Fatalf("%d dead letters, want %d", len(out), n)
		}
		out = append(out, f.Records()...)
	}
	return out
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// line is a row of line protocol; its value distinguishes rows.
func line(series string, n int) string {
	return fmt.Sprintf("m,s=%s v=%d %d", series, n, 1_700_000_000_000_000_000+int64(n))
}
