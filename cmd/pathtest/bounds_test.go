package pathtest

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// TestWhatIsAckedAtABoundComesBack: all data that the decoders accept, at and around every bound, is read back unchanged:
// from the head, after a flush, a compaction, a restart from the log and one from segments.
func TestWhatIsAckedAtABoundComesBack(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel() // each has one goroutine and its own store
			e := edges{rng: rand.New(rand.NewPCG(seed, 22)), used: map[string]bool{}}
			p := openPath(t, mem.New(), true, forward.Settings{}, nil)
			fs := vfs.NewMem()
			p.reopen(fs, 1)
			var truth acked
			for epoch := point.Epoch(2); epoch < 6; epoch++ {
				p.write(&e, &truth)
				p.compare("the heads", &truth)
				if epoch == 2 {
					p.reopen(fs, epoch)
					p.compare("the log", &truth)
					continue
				}
				p.must(p.server.FlushAll(t.Context(), false))
				p.compare("segments", &truth)
				p.must(p.server.FlushAll(t.Context(), true))
				p.compare("compacted segments", &truth)
				p.reopen(fs, epoch)
				p.compare("segments after a restart", &truth)
			}
			if truth.rows < 50 {
				t.Errorf("%d rows were taken", truth.rows)
			}
		})
	}
}

// reopen ends the store and starts it again.
func (p *path) reopen(fs vfs.FS, epoch point.Epoch) {
	p.t.Helper()
	p.must(p.forward.Close())
	p.must(p.server.Close())
	p.must(p.brick.Close())
	log := slog.New(slog.DiscardHandler)
	var err error
	p.brick, err = brick.Open(brick.Deps{FS: fs, Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	p.must(err)
	p.server, err = server.Open(p.t.Context(), server.Deps{Brick: p.brick, Maps: p.tables, Log: log, Registerer: prometheus.NewRegistry()},
		server.Settings{Server: settings.LocalServer, Epoch: epoch})
	p.must(err)
	p.forward = forward.New(forward.Deps{Tables: p.tables, Servers: p, Clock: forward.NewClock(0, nil), Log: log}, forward.Settings{})
}

// write sends bodies of three protocols and notes the accepted data in truth.
func (p *path) write(e *edges, truth *acked) {
	p.t.Helper()
	table := p.table()
	var v1 remotewrite.DecoderV1
	line := lineproto.Decoder{Settings: lineproto.Settings{Partial: true}}
	for range 4 {
		b := point.GetBatch(table.Dict())
		if e.rng.IntN(3) > 0 {
			body, err := e.request().Marshal()
			p.must(err)
			p.must(v1.Decode(body, b))
		} else {
			p.must(line.Decode([]byte(e.lines()), 1, b))
		}
		refused := b.RefusedRows
		p.must(table.Write(p.t.Context(), b, point.All))
		refused = b.RefusedRows - refused
		note := func(id point.SeriesID, at point.Nanos, v string) {
			if at == math.MaxInt64 { // partitions end before it
				refused--
				return
			}
			truth.note(b.Dict.Labels(id), at, v)
		}
		for i, id := range b.IDs {
			note(id, b.Times[i], fmt.Sprintf("%016x", math.Float64bits(b.Values[i])))
		}
		for _, h := range b.Hists {
			note(h.ID, h.Time, string(h.H))
		}
		if refused != 0 {
			p.t.Errorf("%d rows too many or too few were refused after they were decoded: %v", refused, b.Refused[len(b.Refused)-1])
		}
		b.Put()
	}
}

// acked are the accepted rows: values by time, by labels. Labels of 64 KiB with hundreds of rows are copied once, not for each row.
type acked struct {
	series map[point.Labels]map[point.Nanos]string
	rows   int
}

func (a *acked) note(l point.Labels, at point.Nanos, v string) {
	if a.series == nil {
		a.series = map[point.Labels]map[point.Nanos]string{}
	}
	s, ok := a.series[l]
	if !ok {
		s = map[point.Nanos]string{}
		a.series[point.Labels(strings.Clone(string(l)))] = s
	}
	if _, ok := s[at]; !ok {
		a.rows++
	}
	s[at] = v
}

func (p *path) compare(where string, truth *acked) {
	p.t.Helper()
	set, err := p.server.Select(p.t.Context(), &peer.Select{Table: "t", Lo: math.MinInt64, Hi: math.MaxInt64})
	p.must(err)
	defer set.Close()
	n := 0
	for set.Next() {
		s := set.At()
		rows := truth.series[s.Labels]
		check := func(at point.Nanos, got string) {
			n++
			if want, ok := rows[at]; !ok || want != got {
				p.t.Errorf("%s: a row of %.80s at %d is %.40q, want %.40q", where, s.Labels.String(), at, got, want)
			}
		}
		for i, at := range s.Times {
			check(at, fmt.Sprintf("%016x", math.Float64bits(s.Values[i])))
		}
		for _, h := range s.Hists {
			check(h.Time, string(h.H))
		}
	}
	p.must(set.Err())
	if n != truth.rows {
		p.t.Fatalf("%s hold %d of %d rows", where, n, truth.rows)
	}
}

// edges draws rows at and around the bounds.
type edges struct {
	rng  *rand.Rand
	n    int
	used map[string]bool
}

// around returns a number near a bound.
func (e *edges) around(bound int) int { return bound + e.rng.IntN(3) - 1 }

// labels draws labels with something at a bound. Kinds of rows never share a series.
func (e *edges) labels(kind string) (out []prompb.Label) {
	e.n++
	add := func(name, value string) { out = append(out, prompb.Label{Name: name, Value: value}) }
	add("__name__", kind)
	add("i", fmt.Sprint(e.n))
	d := point.DefaultLabelLimits
	switch e.rng.IntN(7) {
	case 0:
		for k := range e.around(d.Count) - 2 {
			add(fmt.Sprintf("l%03d", k), "v")
		}
	case 1:
		add(strings.Repeat("n", e.around(d.NameBytes)), "v")
	case 2:
		add("long", strings.Repeat("v", e.around(d.ValueBytes)))
	case 3:
		for k := range 4 {
			add(fmt.Sprintf("v%d", k), strings.Repeat("v", e.around(d.ValueBytes-14)))
		}
	case 4:
		add("utf8", strings.Repeat("é💧", 100)+string([]byte{0xff}[:e.rng.IntN(2)]))
	case 5:
		add("a", "1")
		add("a", fmt.Sprint(1+e.rng.IntN(2)))
	}
	return out
}

// millis draws times: usual ones, and the ends of the range.
func (e *edges) millis(n int) (out []int64) {
	const most = math.MaxInt64 / 1_000_000
	at := []int64{1_700_000_000_000, 0, -5, most - 3000, -most + 3000, most, -most, math.MaxInt64, math.MinInt64}[e.rng.IntN(9)]
	for range n {
		out = append(out, at)
		at += 1 + e.rng.Int64N(3)
	}
	return out
}

func (e *edges) request() *prompb.WriteRequest {
	req := &prompb.WriteRequest{}
	for range 30 {
		if e.rng.IntN(4) == 0 {
			ts := prompb.TimeSeries{Labels: e.labels("hist")}
			for _, at := range e.millis(1 + e.rng.IntN(3)) {
				ts.Histograms = append(ts.Histograms, e.histogram(at))
			}
			req.Timeseries = append(req.Timeseries, ts)
			continue
		}
		ts := prompb.TimeSeries{Labels: e.labels("float")}
		for _, at := range e.millis(1 + e.rng.IntN(600)) {
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: at, Value: e.value()})
		}
		if e.rng.IntN(3) == 0 {
			trace := strings.Repeat("x", e.around([]int{100, point.ExemplarLabelsMax - 11}[e.rng.IntN(2)]))
			ts.Exemplars = append(ts.Exemplars, prompb.Exemplar{Labels: []prompb.Label{{Name: "trace_id", Value: trace}}, Timestamp: 1_700_000_000_000})
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	return req
}

func (e *edges) value() float64 {
	if e.rng.IntN(4) > 0 {
		return math.Round(e.rng.NormFloat64()*1000) / 100
	}
	return []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64,
		math.Float64frombits(0xfff0000000000002), math.Float64frombits(0x7ff8000000000001), math.Float64frombits(e.rng.Uint64() >> 2)}[e.rng.IntN(9)]
}

// histogram draws one with buckets around the bound; its counts have the most bytes.
func (e *edges) histogram(at int64) prompb.Histogram {
	n := e.around([]int{2, 160, point.HistogramBucketsMax}[e.rng.IntN(3)])
	h := prompb.Histogram{Schema: int32(e.rng.IntN(9)), ZeroThreshold: 1e-128, Timestamp: at, Sum: e.value()}
	if e.rng.IntN(2) == 0 {
		h.PositiveSpans = []prompb.BucketSpan{{Offset: math.MinInt32, Length: uint32(n)}}
	} else {
		for range n {
			h.PositiveSpans = append(h.PositiveSpans, prompb.BucketSpan{Offset: int32(1 + e.rng.IntN(100)), Length: 1})
		}
	}
	count := 0.0
	for range n {
		c := e.rng.Float64() * 1e6
		h.PositiveCounts = append(h.PositiveCounts, c)
		count += c
	}
	h.Count, h.ZeroCount = &prompb.Histogram_CountFloat{CountFloat: count}, &prompb.Histogram_ZeroCountFloat{}
	return h
}

// lines draws line protocol with as many tags, fields and bytes as allowed, and more.
func (e *edges) lines() string {
	var b strings.Builder
	for range 20 {
		e.n++
		fmt.Fprintf(&b, "line,i=%d", e.n)
		switch e.rng.IntN(5) {
		case 0:
			for k := range e.around(point.DefaultLabelLimits.Count) - 2 {
				fmt.Fprintf(&b, ",t%d=v", k)
			}
		case 1:
			fmt.Fprintf(&b, ",%s=v", strings.Repeat("n", e.around(point.DefaultLabelLimits.NameBytes)))
		case 2:
			fmt.Fprintf(&b, ",v=%s", strings.Repeat("v", e.around(point.DefaultLabelLimits.ValueBytes)))
		}
		field := strings.Repeat("f", e.around([]int{10, 64, point.DefaultLabelLimits.ValueBytes - 5}[e.rng.IntN(3)]))
		fmt.Fprintf(&b, " %s=%v", field, 1+e.rng.IntN(9))
		for k := range []int{0, 3, 70, 1030}[e.rng.IntN(4)] {
			fmt.Fprintf(&b, ",g%d=%di", k, k)
		}
		at := []int64{math.MaxInt64, math.MinInt64, 0, -1, 1_700_000_000_000_000_000, math.MaxInt64 - 1, math.MinInt64 + 1}[e.rng.IntN(7)]
		fmt.Fprintf(&b, " %d\n", at)
	}
	return b.String()
}
