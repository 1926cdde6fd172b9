package administration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/diagram"
	"github.com/spillwaydb/spillway/cmd/spillway/figures"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// Presplit has the commands about partitions that are cut ahead of their time.
type Presplit struct {
	Show     presplitShowCmd     `cmd:"" help:"Show a table's forecast, the partitions to come with the sizes they should get, and how large the last ones became."`
	Backtest presplitBacktestCmd `cmd:"" help:"Replay a recorded load and show how near their target partitions would have closed; no cluster is needed."`
}

// growth reads the recorded growth of all tables, which the master writes every ten minutes, and each minute while a table is young.
func (a *admin) growth(ctx context.Context) (map[string]*master.Growth, error) {
	rows, _, err := a.store.List(ctx, master.GrowthPrefix)
	if err != nil {
		return nil, err
	}
	out := map[string]*master.Growth{}
	for _, row := range rows {
		g, err := master.DecodeGrowth(row.Value)
		if err != nil {
			a.log.Warn("the recorded growth of a table cannot be read", "key", row.Key, "error", err)
			continue
		}
		out[strings.TrimPrefix(row.Key, master.GrowthPrefix)] = g
	}
	return out, nil
}

type presplitShowCmd struct {
	Flags  `embed:""`
	Table  string        `arg:"" help:"Table."`
	Ahead  time.Duration `name:"ahead" help:"How far to look ahead." default:"2h"`
	Past   int           `name:"past" help:"How many of the partitions that ended to show, and to compute errors of." default:"20"`
	Target setting.Bytes `name:"target" help:"Size near which partitions should close: tables.split_bytes of the storage servers." default:"1GiB" env:"SPILLWAY_TABLES_SPLIT_BYTES"`
	SVG    string        `name:"svg" help:"Draw what came, the forecast and the sizes into this file." placeholder:"FILE"`
	PNG    string        `name:"png" help:"The same, as PNG." placeholder:"FILE"`
}

// Run reads the growth, the map and the sizes.
func (c *presplitShowCmd) Run() error { return c.with(c.run) }

// columnForecast is a column as shown.
type columnForecast struct {
	Ring              string          `json:"ring"`
	Since             string          `json:"since,omitempty"`
	Known             bool            `json:"known"` // enough of the last 15 minutes was observed
	RowsPerSec        float64         `json:"rows_per_second"`
	BytesPerRow       float64         `json:"bytes_per_row"`
	BytesPerPartition int64           `json:"bytes_per_partition"`
	Days              int             `json:"days"`
	ShortHistory      string          `json:"short_history,omitempty"` // all that was observed, if it is less than five minutes
	Recorded          []forecastPoint `json:"recorded"`                // the load since the first of the partitions began
	Forecast          []forecastPoint `json:"forecast"`
	Errors            *sizeErrors     `json:"errors"` // null: no partition that the forecast made has ended
	Partitions        []sizedPart     `json:"partitions"`

	until point.Nanos // of the forecast
}

type forecastPoint struct {
	At             string  `json:"at"`
	BytesPerSecond float64 `json:"bytes_per_second"`

	at point.Nanos
}

// sizeErrors are how far partitions that ended are from the target, as shares of it. They show the error of the forecast: by it each was to be as large
// as the target.
type sizeErrors struct {
	Partitions int     `json:"partitions"`
	Median     float64 `json:"median"`
	P95        float64 `json:"p95"`
	Max        float64 `json:"max"`
	Mean       float64 `json:"mean"` // with its sign: below 0 partitions are too small

	of presplit.Report
}

type sizedPart struct {
	Partition uint64 `json:"partition"`
	Begin     string `json:"begin"`
	End       string `json:"end"`
	Width     string `json:"width"`
	Bytes     *int64 `json:"bytes"`    // null: not known
	Expected  bool   `json:"expected"` // by the forecast; else as it is
	Leader    string `json:"first_server"`

	lo, hi point.Nanos
}

func (c *presplitShowCmd) run(ctx context.Context, a *admin) error {
	if c.Target <= 0 || c.Ahead <= 0 || c.Past < 0 {
		return fault.Errorf(fault.Invalid, "--target and --ahead must be more than nothing, and --past not less")
	}
	m, err := a.table(c.Table)
	if err != nil {
		return err
	}
	all, err := a.growth(ctx)
	if err != nil {
		return err
	}
	sizes := master.Sizes(ctx, []string{c.Table}, a.servers.All(), a.peers.Server, a.log)
	now := time.Now().UnixNano()
	cols := []columnForecast{}
	if g := all[c.Table]; g != nil {
		for _, col := range g.Columns() {
			cols = append(cols, c.column(m, col, sizes, now))
		}
	}
	if err := c.draw(cols); err != nil {
		return err
	}
	return a.print(map[string]any{"table": c.Table, "target_bytes": int64(c.Target), "columns": cols}, func(w io.Writer) { printForecasts(w, c.Table, int64(c.Target), cols) })
}

// draw draws the columns below each other into the files asked for.
func (c *presplitShowCmd) draw(cols []columnForecast) error {
	return diagram.Write(c.SVG, c.PNG, plotWidth, plotHeight*float64(max(len(cols), 1)), func(s diagram.Sheet) {
		for i := range cols {
			drawForecast(s, plotHeight*float64(i), c.Table, &cols[i], float64(c.Target))
		}
	})
}

func (c *presplitShowCmd) column(m *topology.Map, col master.ColumnGrowth, sizes map[lease.Partition]master.Size, now point.Nanos) columnForecast {
	f := figures.Forecaster{Map: m, Now: now, Ahead: c.Ahead, Past: c.Past, Target: float64(c.Target), Sizes: func(id point.PartitionID) (master.Size, bool) {
		s, ok := sizes[lease.Partition{Table: m.Table, ID: id}]
		return s, ok
	}}
	shown := f.Column(col)
	out := columnForecast{Ring: fmt.Sprintf("[%#x, %s)", col.Lo, ringEnd(col.Hi)), Known: shown.Known, RowsPerSec: shown.RowsPerSecond, BytesPerRow: shown.BytesPerRow, BytesPerPartition: shown.BytesPerPartition, Days: shown.Days, Recorded: []forecastPoint{}, Forecast: []forecastPoint{}, Partitions: []sizedPart{}, until: now + int64(c.Ahead)}
	if shown.Short > 0 {
		out.ShortHistory = shown.Short.Round(time.Second).String()
	}
	if shown.Since != nil {
		out.Since = shown.Since.UTC().Format(time.RFC3339)
	}
	for _, p := range shown.Points {
		out.Forecast = append(out.Forecast, forecastPoint{p.At.Format(time.RFC3339), p.BytesPerSecond, p.At.UnixNano()})
	}
	for _, p := range shown.Partitions {
		out.Partitions = append(out.Partitions, sizedPart{Partition: p.ID, Begin: p.From.Format(time.RFC3339), End: p.To.Format(time.RFC3339), Width: p.To.Sub(p.From).String(),
			Bytes: p.Bytes, Expected: p.Expected, Leader: p.Server, lo: p.From.UnixNano(), hi: p.To.UnixNano()})
	}
	out.Recorded = recorded(col, out.Partitions, now)
	out.Errors = errorsOf(out.Partitions, float64(c.Target), int64(m.Config.PartitionWidth), now)
	return out
}

// recordedMax bounds the points of the load that came.
const recordedMax = 240

// recorded is the load since the first of the partitions began, a minute apart or more. Times that are unknown are left out.
func recorded(col master.ColumnGrowth, parts []sizedPart, now point.Nanos) []forecastPoint {
	out := []forecastPoint{}
	if since, ok := col.Rows.Since(); ok && len(parts) > 0 {
		from := min(max(parts[0].lo, since), now)
		step := max(point.Nanos(time.Minute), (now-from)/recordedMax)
		for at := from; at <= now; at += step {
			if rate, known := col.Rows.Rate(at); known {
				out = append(out, forecastPoint{time.Unix(0, at).UTC().Format(time.RFC3339), rate * col.BytesPerRow, at})
			}
		}
	}
	return out
}

// errorsOf are the errors of the partitions that ended and are narrower than the table's partitions are without a forecast: the same that the page
// shows. nil: there are none.
func errorsOf(parts []sizedPart, target float64, width, now point.Nanos) *sizeErrors {
	var e sizeErrors
	for _, p := range parts {
		if p.hi <= now && !p.Expected && p.Bytes != nil && p.hi-p.lo < width {
			off := float64(*p.Bytes)/target - 1
			e.of.Errors = append(e.of.Errors, off)
			e.Mean += off
		}
	}
	if e.Partitions = len(e.of.Errors); e.Partitions == 0 {
		return nil
	}
	e.Mean /= float64(e.Partitions)
	e.Median, e.P95, e.Max = e.of.Quantile(0.5), e.of.Quantile(0.95), e.of.Quantile(1)
	return &e
}

func ringEnd(hi uint64) string {
	if hi == 0 {
		return "2^64"
	}
	return fmt.Sprintf("%#x", hi)
}

func printForecasts(w io.Writer, table string, target int64, cols []columnForecast) {
	if len(cols) == 0 {
		fmt.Fprintf(w, "nothing is recorded of table %q yet: the master writes its growth within two minutes or three, later every ten\n", table)
		return
	}
	for _, c := range cols {
		fmt.Fprintf(w, "ring %s, recorded since %s; %d past days have a part in the season\n", c.Ring, cmp.Or(c.Since, "now"), c.Days)
		if !c.Known {
			fmt.Fprintln(w, "too little of the last minutes is known for a forecast: partitions stay as they are")
		} else {
			fmt.Fprintf(w, "%.0f rows/s × %.2f B = %s/s; in the next hours:\n", c.RowsPerSec, c.BytesPerRow, master.Bytes(int64(c.RowsPerSec*c.BytesPerRow)))
			if c.ShortHistory != "" {
				fmt.Fprintf(w, "short history: by the last %s alone, as if they stood for all times\n", c.ShortHistory)
			}
			if c.BytesPerPartition > 0 {
				fmt.Fprintf(w, "of that, each partition has %s however few rows it gets: the definitions of its series\n", master.Bytes(c.BytesPerPartition))
			}
			most := 0.0
			for _, p := range c.Forecast {
				most = max(most, p.BytesPerSecond)
			}
			for _, p := range c.Forecast {
				fmt.Fprintf(w, "%s\t%s/s\t%s\n", p.At, master.Bytes(int64(p.BytesPerSecond)), loadBar(p.BytesPerSecond, most))
			}
		}
		if e := c.Errors; e != nil {
			fmt.Fprintf(w, "the last %d partitions that ended and were cut are off %s by %.1f %% (median), %.1f %% (95th percentile), %.0f %% (most); in the mean they are %s\n",
				e.Partitions, master.Bytes(target), 100*e.Median, 100*e.P95, 100*e.Max, meanText(e.Mean))
		}
		fmt.Fprintln(w, "partition\tbegins\twidth\tsize\t\tfirst server")
		for _, p := range c.Partitions {
			size, kind := "unknown", ""
			if p.Bytes != nil {
				size = master.Bytes(*p.Bytes)
			}
			if p.Expected {
				kind = "expected"
			}
			fmt.Fprintf(w, "p%d\t%s\t%s\t%s\t%s\t%s\n", p.Partition, p.Begin, p.Width, size, kind, p.Leader)
		}
	}
}

func meanText(mean float64) string {
	if mean < 0 {
		return fmt.Sprintf("%.1f %% too small", -100*mean)
	}
	return fmt.Sprintf("%.1f %% too large", 100*mean)
}

// loadBar is a bar of up to 40 cells.
func loadBar(v, most float64) string {
	if most <= 0 {
		return ""
	}
	return strings.Repeat("█", int(math.Round(40*v/most)))
}

// presplitBacktestCmd replays a load.
type presplitBacktestCmd struct {
	Trace      string        `name:"trace" help:"CSV file of time,bytes_per_second (RFC 3339 or seconds since 1970), or synthetic:NAME: steady, daily, weekly, growth, step, spike, outage, new." placeholder:"FILE"`
	Prometheus string        `name:"prometheus" help:"Read the load from a Prometheus, or another server with its API, at this URL." placeholder:"URL"`
	Query      string        `name:"query" help:"What to ask there; the sum of its series is the load in bytes per second." default:"sum(rate(prometheus_tsdb_head_samples_appended_total[5m])) * 1.5"`
	Days       int           `name:"days" help:"How many days to read from there, or to make of a synthetic load." default:"9"`
	Target     setting.Bytes `name:"target" help:"Size near which partitions should close." default:"1GiB"`
	Width      setting.Span  `name:"width" help:"Width of a partition that the load does not fill." default:"1d"`
	Ahead      time.Duration `name:"ahead" help:"How far ahead partitions are cut." default:"2h"`
	Repeated   setting.Bytes `name:"repeated" help:"What each partition has besides the load, as the definitions of its series: bytes_per_partition of presplit show. It is learned from partitions that closed." default:"0"`
	Learn      setting.Span  `name:"learn" help:"Beginning of the load whose partitions are not counted." default:"2d"`
	SVG        string        `name:"svg" help:"Draw the load and the sizes into this file." placeholder:"FILE"`
	PNG        string        `name:"png" help:"The same, as PNG." placeholder:"FILE"`
	Output     string        `name:"output" short:"o" help:"table or json." enum:"table,json" default:"table"`
	Client     client.Flags  `embed:""`
}

// Run reads the load, replays it and prints the errors.
func (c *presplitBacktestCmd) Run() error {
	trace, err := c.read(context.Background())
	if err != nil {
		return err
	}
	learn := point.Nanos(c.Learn)
	if c.Trace == "synthetic:new" {
		learn = 0
	}
	target := float64(c.Target)
	r := presplit.Backtest(*trace, presplit.Test{Plan: presplit.Plan{Target: target, WidthMin: presplit.WidthMin, WidthMax: int64(c.Width)},
		Horizon: int64(c.Ahead), Learn: learn, Repeated: float64(c.Repeated)})
	if err := diagram.Write(c.SVG, c.PNG, plotWidth, plotHeight, func(s diagram.Sheet) { drawBacktest(s, *trace, r, target, learn) }); err != nil {
		return err
	}
	return c.print(os.Stdout, trace, r, learn)
}

func (c *presplitBacktestCmd) print(w io.Writer, trace *presplit.Trace, r presplit.Report, learn point.Nanos) error {
	days := float64(len(trace.Bytes)) / 1440
	if c.Output == "json" {
		errs := r.Errors
		if errs == nil {
			errs = []float64{}
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"days": days, "partitions": len(errs), "errors": errs, "median": orZero(r.Quantile(0.5)), "p95": orZero(r.Quantile(0.95)), "max": orZero(r.Quantile(1)), "transactions": r.Cuts})
	}
	fmt.Fprintf(w, "%.1f days of load, the first %.1f to learn from; target %s\n", days, float64(learn)/float64(24*time.Hour), master.Bytes(int64(c.Target)))
	if len(r.Errors) == 0 {
		fmt.Fprintln(w, "no partition closed: give a longer load, a smaller --target or less to --learn")
		return nil
	}
	widths := make([]time.Duration, len(r.Partitions))
	for i, p := range r.Partitions {
		widths[i] = time.Duration(p.Hi - p.Lo)
	}
	slices.Sort(widths)
	fmt.Fprintf(w, "%d partitions, %v to %v wide, %.0f transactions a day\n", len(widths), widths[0], widths[len(widths)-1], float64(r.Cuts)/days)
	fmt.Fprintf(w, "sizes are off the target by %.1f %% (median), %.1f %% (95th percentile), %.0f %% (most)\n", 100*r.Quantile(0.5), 100*r.Quantile(0.95), 100*r.Quantile(1))
	return nil
}

func orZero(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}
