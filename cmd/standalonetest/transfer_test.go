package standalonetest

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

// kinds has every kind of value that Prometheus sends: two series of floats, one of each kind of histogram.
func kinds() *prompb.WriteRequest {
	const t0 = 1_790_000_000_000
	ts := func(name string) prompb.TimeSeries {
		return prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: name}, {Name: "path", Value: "a\"b\\c\nd,e=f g"}, {Name: "ünicode", Value: "ß"}}}
	}
	floats, whole, custom, float := ts("floats"), ts("whole"), ts("custom.buckets"), ts("float")
	for i, bits := range []uint64{
		math.Float64bits(0.1), 1 << 63, 1, math.Float64bits(math.MaxFloat64), math.Float64bits(math.Inf(1)), math.Float64bits(math.Inf(-1)),
		0x7ff8000000000001, point.StaleNaN, 0xfff8000000000123,
	} {
		floats.Samples = append(floats.Samples, prompb.Sample{Timestamp: t0 + int64(i)*15_000, Value: math.Float64frombits(bits)})
	}
	for i := range int64(300) { // more than a chunk
		whole.Histograms = append(whole.Histograms, prompb.FromIntHistogram(t0+i*15_000, tsdbutil.GenerateTestHistogram(i)))
	}
	whole.Histograms = append(whole.Histograms, prompb.FromIntHistogram(t0+300*15_000, &histogram.Histogram{Sum: math.Float64frombits(point.StaleNaN)}))
	custom.Histograms = append(custom.Histograms, prompb.FromIntHistogram(t0, &histogram.Histogram{
		Schema: histogram.CustomBucketsSchema, Count: 5, Sum: 7.5, PositiveSpans: []histogram.Span{{Offset: 0, Length: 2}},
		PositiveBuckets: []int64{2, 1}, CustomValues: []float64{0.5, 1},
	}))
	float.Histograms = append(float.Histograms, prompb.FromFloatHistogram(t0, tsdbutil.GenerateTestFloatHistogram(3)))
	return &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{floats, whole, custom, float}}
}

// withoutHints are exported rows without the histograms' hints about resets of their counters: blocks keep these by chunks.
func withoutHints(t *testing.T, text string) string {
	t.Helper()
	var p jsonrows.Parser
	var out []byte
	for line := range strings.Lines(text) {
		l, err := p.Parse([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range l.Hists {
			if h.Int != nil {
				h.Int.CounterResetHint = histogram.UnknownCounterReset
			}
		}
		if out, err = jsonrows.Append(out, l); err != nil {
			t.Fatal(err)
		}
	}
	return string(out)
}

func TestRowsMoveInAndOut(t *testing.T) {
	t.Parallel()
	p := processtest.New(t)
	p.Start()
	t.Run("every format", func(t *testing.T) { everyFormat(t, p) })
	t.Run("Prometheus", func(t *testing.T) { movingPrometheus(t, p) })
}

// everyFormat: values that a format can hold come back bit by bit, and losses are reported.
func everyFormat(t *testing.T, p *processtest.Process) {
	url := "--url=http://" + p.Addr
	p.Send("all", kinds())
	between := filepath.Join(p.Dir, "between.lp")
	if err := os.WriteFile(between, []byte("fine,host=a value=1 1790000000000000001\nfine,host=a value=2 1790000000000000002\nfine,host=a value=3 1790000000001000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Must(0, "import", between, url, "--table=fine")
	// The library that makes kinds leaves -0 out.
	if err := os.WriteFile(between, []byte(`{"metric":{"__name__":"floats","path":"a\"b\\c\nd,e=f g","ünicode":"ß"},"timestamps_ns":[1790000015000000000],"values":[-0]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Must(0, "import", between, url, "--table=all", "--format=json")
	export := func(code int, from, to string, more ...string) (said string) {
		t.Helper()
		_, said = p.Must(code, append([]string{"export", "--to=" + to, url, "--table=" + from}, more...)...)
		return said
	}
	same := func(a, b string) {
		t.Helper()
		if want, got := p.Exported(a), p.Exported(b); got != want {
			t.Errorf("table %s:\n%s\ntable %s:\n%s", a, want, b, got)
		}
	}
	for _, file := range []string{"rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst"} {
		table := strings.ReplaceAll(file, ".", "-")
		export(0, "all", file)
		p.Must(0, "import", file, url, "--table="+table)
		same("all", table)
	}
	export(0, "fine", "fine.jsonl")
	p.Must(0, "import", "fine.jsonl", url, "--table=fine-json")
	same("fine", "fine-json")
	export(0, "fine", "fine.lp")
	p.Must(0, "import", "fine.lp", url, "--table=fine-line")
	same("fine", "fine-line")

	export(0, "all", "blocks", "--format=blocks")
	p.Must(0, "import", "blocks", url, "--table=blocks")
	if want, got := withoutHints(t, p.Exported("all")), withoutHints(t, p.Exported("blocks")); got != want {
		t.Errorf("%s\n%s", want, got)
	}
	if said := export(1, "fine", "fine-blocks", "--format=blocks"); !strings.Contains(said, "2 rows lie between milliseconds") || !strings.Contains(said, "1 rows shared a millisecond") {
		t.Error(said)
	}

	p.Must(0, "import", "--from=http://"+p.Addr, "--from-table=all", url, "--table=server")
	same("all", "server")

	for _, file := range []string{"all.om", "all.prom"} {
		said := export(1, "all", file)
		for _, want := range []string{"303 native histograms were left out", "1 stale markers were left out", "1 NaN values lost"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s: %s", file, said)
			}
		}
		table := strings.ReplaceAll(file, ".", "-")
		p.Must(0, "import", file, url, "--table="+table)
		if got := p.Exported(table); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"values":[0.1,-0,5e-324,1.7976931348623157e+308,"+Inf","-Inf","NaN","NaN"]`) {
			t.Errorf("%s: %s", file, got)
		}
	}
	if said := export(1, "all", "all.lp"); !strings.Contains(said, "5 values that are NaN or infinite") && !strings.Contains(said, "line protocol cannot write") {
		t.Error(said)
	}
	if _, said := p.Must(1, "export", "--to=all.om", url); !strings.Contains(said, "exists") {
		t.Error(said)
	}
}

// readBlocks reads a directory of blocks with Prometheus' own database.
func readBlocks(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "wal"), 0o700); err != nil { // as every Prometheus has
		t.Fatal(err)
	}
	db, err := tsdb.OpenDBReadOnly(dir, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	q, err := db.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchNotEqual, "__name__", ""))
	return textOf(t, set)
}

func textOf(t *testing.T, set promstorage.SeriesSet) string {
	t.Helper()
	var b strings.Builder
	for set.Next() {
		s := set.At()
		fmt.Fprintln(&b, s.Labels())
		it := s.Iterator(nil)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			switch kind {
			case chunkenc.ValFloat:
				at, v := it.At()
				fmt.Fprintf(&b, "  %d %x\n", at, math.Float64bits(v))
			case chunkenc.ValHistogram:
				at, h := it.AtHistogram(nil)
				fmt.Fprintf(&b, "  %d %v\n", at, h)
			default:
				at, h := it.AtFloatHistogram(nil)
				fmt.Fprintf(&b, "  %d %v\n", at, h)
			}
		}
		if err := it.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Err(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// movingPrometheus: blocks of a real Prometheus database are imported without what it deleted, and exported blocks are read
// by Prometheus.
func movingPrometheus(t *testing.T, p *processtest.Process) {
	const t0 = 1_790_000_000_000
	dir := t.TempDir()
	db, err := tsdb.Open(dir, slog.New(slog.DiscardHandler), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for hour := range int64(6) {
		app := db.Appender(ctx)
		for _, host := range []string{"a", "b", "gone"} {
			for i := range int64(240) {
				if _, err := app.Append(0, labels.FromStrings("__name__", "up", "host", host), t0+hour*3_600_000+i*15_000, float64(i)/3); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := app.AppendHistogram(0, labels.FromStrings("__name__", "latency"), t0+hour*3_600_000, tsdbutil.GenerateTestHistogram(hour), nil); err != nil {
			t.Fatal(err)
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	if err := db.Snapshot(snapshot, true); err != nil {
		t.Fatal(err)
	}
	live, err := tsdb.Open(snapshot, slog.New(slog.DiscardHandler), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := live.Delete(ctx, math.MinInt64, t0+10_000_000, labels.MustNewMatcher(labels.MatchEqual, "host", "gone")); err != nil {
		t.Fatal(err)
	}
	if err := live.Close(); err != nil {
		t.Fatal(err)
	}
	want := readBlocks(t, snapshot)
	if strings.Count(want, "\n") < 6*240*2 {
		t.Fatal(want)
	}

	url := "--url=http://" + p.Addr
	p.Must(0, "import", snapshot, url, "--table=moved")
	p.Must(0, "export", "--to=out", "--format=blocks", url, "--table=moved")
	if got := readBlocks(t, filepath.Join(p.Dir, "out")); got != want {
		t.Errorf("%d bytes came back, want %d\n%.2000s", len(got), len(want), got)
	}
	// Its own directory: all is in the head yet, and moves once it is stopped.
	if _, said := p.Must(1, "import", dir, url, "--table=head"); !strings.Contains(said, "is using its directory") {
		t.Error(said)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	want = readBlocks(t, dir)
	p.Must(0, "import", dir, url, "--table=head")
	p.Must(0, "export", "--to=head", "--format=blocks", url, "--table=head")
	if got := readBlocks(t, filepath.Join(p.Dir, "head")); got != want {
		t.Errorf("of the head %d bytes came back, want %d\n%.2000s", len(got), len(want), got)
	}
	if _, said := p.Must(1, "import", t.TempDir(), url); !strings.Contains(said, "neither a block of Prometheus nor a directory with blocks") {
		t.Error(said)
	}
}
