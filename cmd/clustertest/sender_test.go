package clustertest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestKillsLoseNothingAcked writes by all three protocols while flushes and compactions never end, kills the process at
// random moments with SIGKILL, starts it again, and compares the rows read with the rows sent: every acked row is there
// with its value, no row is there that was not sent, and no time comes twice. KILL_COUNT sets how often (default 3),
// TEST_SEED when.
func TestKillsLoseNothingAcked(t *testing.T) {
	t.Parallel()
	kills, seed := processtest.EnvInt(t, "KILL_COUNT", 3), uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d KILL_COUNT=%d go test -run %s ./cmd/clustertest", seed, kills, t.Name())
	if testing.Short() {
		t.Skip("processes are killed in the long run of the tests")
	}
	p := processtest.New(t,
		"SPILLWAY_STORAGE_FLUSH_BYTES=150000", "SPILLWAY_STORAGE_FLUSH_AGE=700ms", "SPILLWAY_STORAGE_FLUSH_IDLE=300ms",
		"SPILLWAY_STORAGE_MINORS_MAX=2", "SPILLWAY_STORAGE_FREE_BYTES_MIN=1", "SPILLWAY_TABLES_PARTITION_WIDTH=1h")
	rng := rand.New(rand.NewPCG(seed, 0))
	rounds := kills
	p.Start()
	began := time.Now()
	acked, flushes, compactions := 0, 0, 0
	for era := 0; kills > 0; era++ { // a new era has new series, so that a check does not read all rows since the beginning
		senders := make([]*sender, 4)
		for i := range senders {
			senders[i] = newSender(p, i, era, began, rand.New(rand.NewPCG(seed, uint64(1+era*10+i))))
		}
		for range min(kills, 5) {
			kills--
			var wg sync.WaitGroup
			quit := make(chan struct{})
			for _, s := range senders {
				wg.Go(func() { s.run(quit) })
			}
			time.Sleep(time.Duration(200+rng.IntN(2500)) * time.Millisecond)
			if kills == 0 && flushes == 0 { // a slow machine may not have flushed by the last kill
				for end := time.Now().Add(processtest.Patience); time.Now().Before(end) && !strings.Contains(p.Log.String(), "head flushed"); {
					time.Sleep(20 * time.Millisecond)
				}
			}
			p.Kill()
			close(quit)
			wg.Wait()
			flushes += strings.Count(p.Log.String(), "head flushed")
			compactions += strings.Count(p.Log.String(), "segments compacted")
			p.Start()
			for _, s := range senders {
				s.check()
			}
			if t.Failed() {
				t.Fatalf("%d kills before the end\n%s", kills, &p.Log)
			}
		}
		for _, s := range senders {
			acked += s.acked
		}
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM\n%s", code, &p.Log)
	}
	t.Logf("%d rows acked, %d flushes, %d compactions", acked, flushes, compactions)
	if acked == 0 || flushes == 0 {
		t.Error("the load was too light to prove anything")
	}
	if compactions == 0 && rounds >= 10 { // a few kills on a busy machine may come before the first
		t.Error("nothing was compacted in all that time")
	}
}

// sender writes its own series, one request at a time, and remembers the outcome of each row.
type sender struct {
	p      *processtest.Process
	metric string
	began  time.Time
	rng    *rand.Rand
	next   float64
	acked  int                        // rows
	acks   atomic.Int64               // requests, for others to wait for
	sent   map[string]map[int64]*fate // by series and millisecond

	// Of a cluster only.
	doors []*processtest.Process // the gateways, one of which is asked each time
	codes map[int]int            // how often each status came; with doors, 5xx is an answer that may come
	last  time.Time              // of the last ack
	gap   time.Duration          // the longest, of writes
	took  []time.Duration        // from each acked write to its ack
	// slowErase is how long the slowest deletion lasted.
	slowErase time.Duration

	erases   bool // it deletes series, too
	erasures int  // acked ones
}

// fate lists the values sent for one time of one series, in their order, and how many were sent up to the last acked one.
// The last acked one must be there, or one that was sent later. A value that is erased stands for a deletion.
type fate struct {
	values []float64
	acked  int
	at     time.Time // of the last ack
}

// erased is the value of a row that a deletion removed.
var erased = math.Inf(-1)

func newSender(p *processtest.Process, i, era int, began time.Time, rng *rand.Rand) *sender {
	return &sender{p: p, metric: fmt.Sprintf("kill_%d_%d", era, i), began: began, rng: rng, sent: map[string]map[int64]*fate{}}
}

// run writes until the process is gone and quit is closed.
func (s *sender) run(quit chan struct{}) {
	for {
		select {
		case <-quit:
			return
		default:
		}
		if len(s.doors) > 0 {
			s.p = s.doors[s.rng.IntN(len(s.doors))]
		}
		if s.erases && s.rng.IntN(60) == 0 {
			s.erase(strconv.Itoa(s.rng.IntN(30)))
		}
		rows := s.batch()
		if s.write(rows) {
			s.ack(rows)
			s.acks.Add(1)
		}
		time.Sleep(time.Duration(s.rng.IntN(8)) * time.Millisecond)
	}
}

func (s *sender) ack(rows []sentRow) {
	s.acked += len(rows)
	for _, r := range rows {
		f := s.sent[r.series][r.ms]
		f.acked, f.at = max(f.acked, r.version), time.Now()
	}
}

// sentRow is one value of one request.
type sentRow struct {
	series  string // its label i
	ms      int64
	value   float64
	version int // its place among those sent for this time
}

// batch makes some rows: most of now, some late by hours, some for times that were written before.
func (s *sender) batch() []sentRow {
	rows := make([]sentRow, 1+s.rng.IntN(80))
	for i := range rows {
		r := sentRow{series: strconv.Itoa(s.rng.IntN(30)), ms: time.Now().UnixMilli() - s.rng.Int64N(100)}
		switch s.rng.IntN(20) {
		case 0:
			r.ms = s.began.Add(-time.Duration(s.rng.IntN(5)) * time.Hour).UnixMilli()
		case 1:
			r.ms = s.began.UnixMilli() - s.rng.Int64N(5*3600_000)
		}
		s.next += 0.25
		r.value = s.next
		if s.sent[r.series] == nil {
			s.sent[r.series] = map[int64]*fate{}
		}
		f := s.sent[r.series][r.ms]
		if f == nil {
			f = &fate{}
			s.sent[r.series][r.ms] = f
		}
		f.values = append(f.values, r.value)
		r.version = len(f.values)
		rows[i] = r
	}
	return rows
}

// write sends the rows by one of the protocols and reports whether they were acked.
func (s *sender) write(rows []sentRow) bool {
	var path, kind string
	var body []byte
	header := http.Header{}
	switch s.rng.IntN(3) {
	case 0:
		path, kind, body = "/api/v1/write", "application/x-protobuf", s.remote1(rows)
		header.Set("Content-Encoding", "snappy")
		header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	case 1:
		path, kind, body = "/api/v1/write", "application/x-protobuf;proto=io.prometheus.write.v2.Request", s.remote2(rows)
		header.Set("Content-Encoding", "snappy")
		header.Set("X-Prometheus-Remote-Write-Version", "2.0.0")
	case 2:
		path, kind, body = "/write?db=default&precision=ms", "text/plain", s.lines(rows)
	}
	header.Set("Content-Type", kind)
	began := time.Now()
	status, text, err := s.p.Do(http.MethodPost, path, header, body)
	if err != nil {
		return false // it was killed; the fate of the rows is unknown
	}
	if s.doors != nil {
		s.note(status)
		if status/100 == 2 {
			s.took = append(s.took, time.Since(began))
		}
	}
	if status/100 != 2 && (s.doors == nil || status/100 != 5) {
		s.p.T.Errorf("%s: %d %s", path, status, text)
	}
	return status/100 == 2
}

// note counts an answer, and the time without an ack.
func (s *sender) note(status int) {
	s.codes[status]++
	if status/100 == 2 {
		now := time.Now()
		s.gap = max(s.gap, now.Sub(s.last))
		s.last = now
	}
}

func (s *sender) remote1(rows []sentRow) []byte {
	var r prompb.WriteRequest
	for _, row := range rows {
		r.Timeseries = append(r.Timeseries, prompb.TimeSeries{
			Labels:  []prompb.Label{{Name: "__name__", Value: s.metric}, {Name: "i", Value: row.series}},
			Samples: []prompb.Sample{{Timestamp: row.ms, Value: row.value}},
		})
	}
	return processtest.Packed(s.p.T, r.Marshal)
}

func (s *sender) remote2(rows []sentRow) []byte {
	r := writev2.Request{Symbols: []string{"", "__name__", s.metric, "i"}}
	for _, row := range rows {
		r.Symbols = append(r.Symbols, row.series)
		r.Timeseries = append(r.Timeseries, writev2.TimeSeries{
			LabelsRefs: []uint32{1, 2, 3, uint32(len(r.Symbols) - 1)},
			Samples:    []writev2.Sample{{Timestamp: row.ms, Value: row.value}},
		})
	}
	return processtest.Packed(s.p.T, r.Marshal)
}

func (s *sender) lines(rows []sentRow) []byte {
	measurement, field, _ := strings.Cut(s.metric, "_")
	var b []byte
	for _, row := range rows {
		b = fmt.Appendf(b, "%s,i=%s %s=%v %d\n", measurement, row.series, field, row.value, row.ms)
	}
	return b
}

// check compares the rows read with the rows sent.
func (s *sender) check() {
	s.p.T.Helper()
	for _, wrong := range s.compare(s.rows()) {
		s.p.T.Error(wrong)
	}
}

// rows reads them. A gateway of a cluster whose server was away for a moment may have to reach it again first.
func (s *sender) rows() map[string][]processtest.Sample {
	s.p.T.Helper()
	for end := time.Now().Add(processtest.Patience); ; time.Sleep(50 * time.Millisecond) {
		got, err := s.p.TryRowsOf("default", s.metric, "7h", time.Now().Add(time.Minute))
		if err == nil {
			return got
		}
		if s.doors == nil || time.Now().After(end) {
			s.p.T.Fatal(err)
		}
	}
}

// compare returns the mistakes in the rows read.
func (s *sender) compare(got map[string][]processtest.Sample) (wrong []string) {
	report := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for series, samples := range got {
		sent := s.sent[strings.TrimPrefix(series, s.metric+"/")]
		for i, g := range samples {
			if i > 0 && g.Ms <= samples[i-1].Ms {
				report("%s has two rows at %d", series, g.Ms)
			}
			f := sent[g.Ms]
			if f == nil {
				report("%s at %d: %v was never sent", series, g.Ms, g.Value)
			} else if !f.allows(g.Value) {
				report("%s at %d: read %v; sent %v, acked the first %d", series, g.Ms, g.Value, f.values, f.acked)
			}
		}
	}
	for series, times := range s.sent {
		there := map[int64]bool{}
		for _, g := range got[s.metric+"/"+series] {
			there[g.Ms] = true
		}
		for ms, f := range times {
			if f.acked > 0 && !there[ms] && !f.allows(erased) {
				report("%s/%s at %d is missing; sent %v, acked the first %d, last at %s", s.metric, series, ms, f.values, f.acked, f.at.UTC().Format("15:04:05.000"))
			}
		}
	}
	return wrong
}

func (f *fate) allows(v float64) bool { return slices.Contains(f.values[max(f.acked-1, 0):], v) }
