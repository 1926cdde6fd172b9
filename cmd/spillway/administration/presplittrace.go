package administration

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// traceDaysMax bounds a replayed load: each minute costs a forecast.
const traceDaysMax = 400

// read gets the load. Errors are Invalid, or of the file or server.
func (c *presplitBacktestCmd) read(ctx context.Context) (*presplit.Trace, error) {
	if c.Days < 1 || c.Days > traceDaysMax || c.Target <= 0 || c.Width <= 0 || c.Ahead <= 0 {
		return nil, fault.Errorf(fault.Invalid, "--days are 1 to %d, and --target, --width and --ahead more than nothing", traceDaysMax)
	}
	kind, synthetic := strings.CutPrefix(c.Trace, "synthetic:")
	switch {
	case c.Trace != "" && c.Prometheus != "":
		return nil, fault.Errorf(fault.Invalid, "--trace and --prometheus name two loads: give one")
	case c.Prometheus != "":
		return c.ask(ctx)
	case synthetic:
		if t := presplit.Synthetic(kind, c.Days, 1); t != nil {
			return t, nil
		}
		return nil, fault.Errorf(fault.Invalid, "there is no synthetic load %q: there are %s", kind, strings.Join(presplit.Traces, ", "))
	case c.Trace == "":
		return nil, fault.Errorf(fault.Invalid, "name a load: --trace FILE, --trace synthetic:daily or --prometheus URL")
	}
	f, err := os.Open(c.Trace)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	points, err := readTrace(f)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "%s", c.Trace)
	}
	return minutes(points)
}

// loadPoint is the load from a time on, in bytes per second.
type loadPoint struct {
	at   point.Nanos
	rate float64
}

// readTrace reads lines of time,bytes_per_second. A first line that holds no time is a heading.
func readTrace(r io.Reader) ([]loadPoint, error) {
	var out []loadPoint
	lines := csv.NewReader(r)
	lines.FieldsPerRecord, lines.Comment = 2, '#'
	for {
		f, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		at, err := traceTime(strings.TrimSpace(f[0]))
		line, _ := lines.FieldPos(0)
		if err != nil && len(out) == 0 && line == 1 {
			continue
		}
		rate, wrong := strconv.ParseFloat(strings.TrimSpace(f[1]), 64)
		if err = errors.Join(err, wrong); err == nil && (rate < 0 || math.IsInf(rate, 0)) {
			err = fmt.Errorf("%v bytes per second", rate)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		out = append(out, loadPoint{at, rate})
	}
}

func traceTime(s string) (point.Nanos, error) {
	if v, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(v) < 9e9 {
		return point.Nanos(v * 1e9), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	return t.UnixNano(), err
}

// minutes makes a trace: the load between two points is that of the first, or unknown where they are more than an hour apart.
func minutes(points []loadPoint) (*presplit.Trace, error) {
	slices.SortStableFunc(points, func(a, b loadPoint) int { return int(max(min(a.at-b.at, 1), -1)) })
	if len(points) < 2 {
		return nil, fault.Errorf(fault.Invalid, "%d points are no load", len(points))
	}
	const min = point.Nanos(time.Minute)
	first, last := points[0].at/min*min, points[len(points)-1].at
	if last-first > traceDaysMax*1440*min {
		return nil, fault.Errorf(fault.Invalid, "%v of load: give at most %d days", time.Duration(last-first), traceDaysMax)
	}
	t := &presplit.Trace{Start: first}
	i := 0
	for at := first; at < last; at += min {
		for i+1 < len(points) && points[i+1].at <= at {
			i++
		}
		bytes := math.NaN()
		if i+1 < len(points) && points[i+1].at-points[i].at <= 60*min {
			bytes = points[i].rate * 60
		}
		t.Bytes = append(t.Bytes, bytes)
	}
	return t, nil
}

// ask reads the load from a server with Prometheus' API, day by day.
func (c *presplitBacktestCmd) ask(ctx context.Context) (*presplit.Trace, error) {
	end := time.Now().Truncate(time.Minute)
	var points []loadPoint
	for day := c.Days; day > 0; day-- {
		from := end.Add(-time.Duration(day) * 24 * time.Hour)
		form := url.Values{"query": {c.Query}, "start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(from.Add(24*time.Hour-time.Minute).Unix(), 10)}, "step": {"60"}}
		rq, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.Prometheus, "/")+"/api/v1/query_range?"+form.Encode(), nil)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "--prometheus")
		}
		if points, err = c.askDay(rq, points); err != nil {
			return nil, err
		}
	}
	return minutes(points)
}

func (c *presplitBacktestCmd) askDay(rq *http.Request, points []loadPoint) ([]loadPoint, error) {
	resp, err := c.Client.Do(rq)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var body struct {
		Error string
		Data  struct {
			Result []struct {
				Values [][2]json.RawMessage
			}
		}
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&body); err != nil || resp.StatusCode != http.StatusOK {
		return nil, fault.Errorf(fault.Unavailable, "%s answered %s: %s", c.Prometheus, resp.Status, body.Error)
	}
	sums := map[point.Nanos]float64{}
	for _, series := range body.Data.Result {
		for _, v := range series.Values {
			var at float64
			var text string
			if err := errors.Join(json.Unmarshal(v[0], &at), json.Unmarshal(v[1], &text)); err != nil {
				return nil, fault.Wrap(err, fault.Corrupt, "answer of %s", c.Prometheus)
			}
			if rate, err := strconv.ParseFloat(text, 64); err == nil && rate >= 0 && !math.IsInf(rate, 0) {
				sums[point.Nanos(at*1e9)] += rate
			}
		}
	}
	for at, rate := range sums {
		points = append(points, loadPoint{at, rate})
	}
	return points, nil
}
