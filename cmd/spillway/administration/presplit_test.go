package administration

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/diagram"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// daysOfLoad is a load of three days with a daily cycle, a value every five minutes.
func daysOfLoad(f func(at time.Time, rate float64)) {
	begin := time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)
	for i := range 3 * 288 {
		at := begin.Add(time.Duration(i) * 5 * time.Minute)
		f(at, 5e6*(1+0.5*math.Sin(float64(i)/288*2*math.Pi)))
	}
}

func TestALoadIsReplayedFromAFileAndFromPrometheus(t *testing.T) {
	var text strings.Builder
	text.WriteString("time,bytes_per_second\n")
	rates := map[int64]float64{}
	daysOfLoad(func(at time.Time, rate float64) {
		fmt.Fprintf(&text, "%s,%v\n", at.Format(time.RFC3339), rate)
		rates[at.Unix()%86400] = rate
	})
	file := filepath.Join(t.TempDir(), "load.csv")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	prom := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.ParseInt(r.FormValue("start"), 10, 64)
		to, _ := strconv.ParseInt(r.FormValue("end"), 10, 64)
		var values []string
		for at := from; at <= to; at += 60 {
			values = append(values, fmt.Sprintf(`[%d,"%v"]`, at, rates[at%86400/300*300]/2))
		}
		series := `{"metric":{},"values":[` + strings.Join(values, ",") + `]}`
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[%s,%s]}}`, series, series)
	}))
	defer prom.Close()
	for name, c := range map[string]presplitBacktestCmd{
		"file":       {Trace: file, Days: 3},
		"prometheus": {Prometheus: prom.URL, Query: "load", Days: 3},
	} {
		c.Target, c.Width, c.Ahead, c.Learn, c.SVG, c.Output = 4e9, setting.Span(24*time.Hour), 2*time.Hour, setting.Span(24*time.Hour), filepath.Join(t.TempDir(), "x.svg"), "json"
		c.PNG = filepath.Join(t.TempDir(), "x.png")
		trace, err := c.read(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n := len(trace.Bytes); n < 3*1440-6 || n > 3*1440 {
			t.Errorf("%s: %d minutes", name, n)
		}
		out := printed(t, func() error { return c.Run() })
		var got struct {
			Partitions  int
			Median, P95 float64
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil || got.Partitions < 150 || got.Partitions > 260 || got.P95 > 0.1 {
			t.Errorf("%s: %v, %s", name, err, out)
		}
		circles := circlesOf(t, c.SVG)
		if circles != got.Partitions {
			t.Errorf("%s: %d partitions are drawn of %d", name, circles, got.Partitions)
		}
		if colours := coloursOf(t, c.PNG); colours[diagram.Blue] < 1000 || colours[diagram.Red] < 500 || colours[diagram.Black] < 1000 || colours[diagram.Light] < 1000 || colours[diagram.Orange] != 0 {
			t.Errorf("%s: the pixels of the picture, by colour: %v", name, colours)
		}
	}
}

// circlesOf counts the partitions in a drawing.
func circlesOf(t *testing.T, file string) (n int) {
	t.Helper()
	svg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return n
		} else if err != nil {
			t.Fatalf("the drawing is no XML: %v", err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "circle" {
			n++
		}
	}
}

// coloursOf counts the pixels of each colour.
func coloursOf(t *testing.T, file string) map[diagram.Colour]int {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := m.(*image.Paletted)
	if !ok || p.Rect.Dx() != plotWidth*diagram.PNGScale || p.Rect.Dy() < plotHeight*diagram.PNGScale {
		t.Fatalf("a picture of %v, %T", m.Bounds(), m)
	}
	out := map[diagram.Colour]int{}
	for _, c := range p.Pix {
		out[diagram.Colour(c)]++
	}
	return out
}

// TestTheErrorsOfPartitionsThatEndedAreShown in the terminal, as JSON and in drawings: of those that are narrower than the table's.
func TestTheErrorsOfPartitionsThatEndedAreShown(t *testing.T) {
	const minute = point.Nanos(time.Minute)
	now := presplit.SyntheticStart + 24*60*minute
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	// A partition of the whole width, then ten of ten minutes that ended, then six to come.
	op := topology.Presplit{Now: now}
	lo := now - 160*minute
	for i := range 17 {
		hi := lo + 10*minute
		if i == 0 {
			hi = lo + 60*minute
		}
		op.Partitions = append(op.Partitions, topology.Partition{ID: point.PartitionID(i + 1), TimeLo: lo, TimeHi: hi, Placements: []topology.Placement{{ID: 1, Server: "a"}}})
		lo = hi
	}
	if m, err = m.Apply(topology.Create{Partitions: op.Partitions}); err != nil {
		t.Fatal(err)
	}
	col := master.ColumnGrowth{Rows: &presplit.History{}, BytesPerRow: 2}
	for at := now - 180*minute; at < now; at += minute {
		col.Rows.Observe(at, at+minute, 50_000) // a million bytes in ten minutes
	}
	sizes := map[lease.Partition]master.Size{}
	for i := range 11 {
		sizes[lease.Partition{Table: "t", ID: point.PartitionID(i + 1)}] = master.Size{Rows: 500_000, Bytes: 900_000 + 20_000*int64(i)} // 0.92 to 1.1 of the target
	}
	c := presplitShowCmd{Table: "t", Ahead: time.Hour, Past: 20, Target: 1_000_000, SVG: filepath.Join(t.TempDir(), "x.svg"), PNG: filepath.Join(t.TempDir(), "x.png")}
	cols := []columnForecast{c.column(m, col, sizes, now)}
	e := cols[0].Errors
	if e == nil || e.Partitions != 10 || math.Abs(e.Median-0.06) > 1e-9 || math.Abs(e.P95-0.1) > 1e-9 || math.Abs(e.Max-0.1) > 1e-9 || math.Abs(e.Mean-0.01) > 1e-9 {
		t.Errorf("errors: %+v", e)
	}
	if n := len(cols[0].Recorded); n < 155 || n > 165 || cols[0].Recorded[9].BytesPerSecond < 1600 || cols[0].Recorded[9].BytesPerSecond > 1700 {
		t.Errorf("%d points of what came: %+v", n, cols[0].Recorded)
	}
	var text strings.Builder
	printForecasts(&text, "t", int64(c.Target), cols)
	if want := "the last 10 partitions that ended and were cut are off 976.6 KiB by 6.0 % (median), 10.0 % (95th percentile), 10 % (most); in the mean they are 1.0 % too large\n"; !strings.Contains(text.String(), want) {
		t.Errorf("%s lacks %q", text.String(), want)
	}
	var begun presplit.History
	begun.Observe(now-100*int64(time.Second), now, 5000)
	if short := c.column(m, master.ColumnGrowth{Rows: &begun, BytesPerRow: 2}, sizes, now); !short.Known || short.ShortHistory != "2m0s" || math.Abs(short.RowsPerSec-50) > 1 {
		t.Errorf("a history of 100 s: %+v", short)
	}
	cols[0].BytesPerPartition, cols[0].ShortHistory = 3<<20, "2m0s"
	printForecasts(&text, "t", int64(c.Target), cols)
	if want := "short history: by the last 2m0s alone, as if they stood for all times\nof that, each partition has 3.0 MiB however few rows it gets"; strings.Count(text.String(), want) != 1 {
		t.Errorf("%s lacks %q", text.String(), want)
	}
	if err := c.draw(cols); err != nil {
		t.Fatal(err)
	}
	if n := circlesOf(t, c.SVG); n != 17 {
		t.Errorf("%d partitions are drawn of 17", n)
	}
	if colours := coloursOf(t, c.PNG); colours[diagram.Blue] < 1000 || colours[diagram.Orange] < 1000 || colours[diagram.Red] < 500 {
		t.Errorf("the pixels of the picture, by colour: %v", colours)
	}
	sizes = nil
	if one := c.column(m, col, sizes, now); one.Errors != nil {
		t.Errorf("errors of partitions whose size is not known: %+v", one.Errors)
	}
}

func printed(t *testing.T, f func() error) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stdout
	os.Stdout = w
	done := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		done <- string(b)
	}()
	err = f()
	os.Stdout = old
	_ = w.Close()
	if err != nil {
		t.Error(err)
	}
	return <-done
}

func TestAMistakeInALoadNamesItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"time,bytes\n2026-01-05T00:00:00Z,1\nyesterday,2\n": "line 3",
		"1767571200,1\n1767571260,-3\n":                     "line 2: -3 bytes per second",
		"1767571200,1\n1767571260,x\n":                      "line 2",
		"1767571200,1,2\n":                                  "line 1",
	} {
		if _, err := readTrace(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := minutes([]loadPoint{{0, 1}}); err == nil {
		t.Error("one point is a load")
	}
	gap, err := minutes([]loadPoint{{0, 1}, {point.Nanos(time.Hour), 1}, {point.Nanos(4 * time.Hour), 1}, {point.Nanos(4*time.Hour + 60e9), 1}})
	if err != nil || len(gap.Bytes) != 241 || gap.Bytes[59] != 60 || !math.IsNaN(gap.Bytes[60]) || !math.IsNaN(gap.Bytes[239]) || gap.Bytes[240] != 60 {
		t.Errorf("%v: %d minutes", err, len(gap.Bytes))
	}
	for _, c := range []presplitBacktestCmd{{}, {Trace: "synthetic:x"}, {Trace: "a", Prometheus: "b"}, {Trace: "synthetic:daily", Target: -1}} {
		if c.Days, c.Width, c.Ahead = 3, setting.Span(time.Hour), time.Hour; c.Target == 0 {
			c.Target = 1
		}
		if _, err := c.read(t.Context()); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if presplit.Synthetic("daily", 1, 1) == nil {
		t.Error("no synthetic load")
	}
}
