package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
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

	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/point"
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
		c.Target, c.Width, c.Ahead, c.Learn, c.SVG, c.Output = 4e9, duration(24*time.Hour), 2*time.Hour, duration(24*time.Hour), filepath.Join(t.TempDir(), "x.svg"), "json"
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
		svg, err := os.ReadFile(c.SVG)
		if err != nil {
			t.Fatal(err)
		}
		circles := 0
		for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: the drawing is no XML: %v", name, err)
			}
			if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "circle" {
				circles++
			}
		}
		if circles != got.Partitions {
			t.Errorf("%s: %d partitions are drawn of %d", name, circles, got.Partitions)
		}
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
		if c.Days, c.Width, c.Ahead = 3, duration(time.Hour), time.Hour; c.Target == 0 {
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
