package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Server has the flags that name a process to ask, and one of its tables.
type Server struct {
	URL    string `name:"url" help:"Where the process listens: a standalone or a gateway." default:"http://127.0.0.1:8428" env:"SPILLWAY_URL"`
	Table  string `name:"table" help:"Table (default: the server's default)."`
	Client Flags  `embed:""`
}

// path is the address of a route.
func (s *Server) path(route string) string {
	base := strings.TrimRight(s.URL, "/")
	if s.Table != "" {
		base += "/t/" + url.PathEscape(s.Table)
	}
	return base + route
}

// Query evaluates an expression of PromQL.
type Query struct {
	Expr    string        `arg:"" help:"Expression of PromQL."`
	Time    string        `name:"time" help:"Evaluate at one time: 2026-03-01T12:00:00Z, seconds since 1970, or 6h before now (default now)." xor:"when"`
	Start   string        `name:"start" help:"Evaluate over a range, from this time on, written likewise." xor:"when"`
	End     string        `name:"end" help:"End of the range (default now)."`
	Step    string        `name:"step" help:"Step of the range (default: 100 of them)."`
	Output  string        `name:"output" short:"o" help:"table, csv, or json: the server's answer." enum:"table,csv,json" default:"table"`
	Explain bool          `name:"explain" help:"Show what was evaluated over columns, and what ran where, on the other output."`
	Within  time.Duration `name:"timeout" help:"How long it may take." default:"2m"`
	Server  Server        `embed:""`
}

// queryAnswer is the part of an answer that is printed.
type queryAnswer struct {
	Data struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
		Explain    json.RawMessage `json:"explain"`
	} `json:"data"`
	Warnings  []string `json:"warnings"`
	Infos     []string `json:"infos"`
	ErrorType string   `json:"errorType"`
	Error     string   `json:"error"`
}

// queryBytesMax bounds an answer.
const queryBytesMax = 1 << 30

// Run evaluates the expression and prints the result; warnings go to the other output.
func (c *Query) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	route, form, err := c.request(time.Now())
	if err != nil {
		return err
	}
	rq, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Server.path(route), strings.NewReader(form.Encode()))
	if err != nil {
		return NoURL(c.Server.URL)
	}
	rq.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := c.Server.Client.Send(rq, c.Within+5*time.Second)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, queryBytesMax+1))
	if err != nil || len(b) > queryBytesMax {
		return fault.Errorf(fault.Unavailable, "the answer broke off or has more than %d bytes (%v)", queryBytesMax, err)
	}
	var answer queryAnswer
	if err := json.Unmarshal(b, &answer); err != nil {
		return fault.Errorf(fault.Unavailable, "%s answered %s: %.400s", c.Server.URL, resp.Status, bytes.TrimSpace(b))
	}
	if answer.Error != "" {
		return fault.Errorf(fault.Invalid, "%s (%s)", answer.Error, answer.ErrorType)
	}
	for _, w := range append(answer.Warnings, answer.Infos...) {
		fmt.Fprintln(os.Stderr, "warning: "+w)
	}
	if c.Output == "json" {
		_, err := os.Stdout.Write(append(b, '\n'))
		return err
	}
	if c.Explain {
		var text bytes.Buffer
		if json.Indent(&text, answer.Data.Explain, "", "  ") != nil {
			return fault.Errorf(fault.Invalid, "%s does not explain queries", c.Server.URL)
		}
		fmt.Fprintln(os.Stderr, text.String())
	}
	return c.print(os.Stdout, &answer)
}

// stepsDefault is how many steps a range without --step has.
const stepsDefault = 100

func (c *Query) request(now time.Time) (route string, form url.Values, err error) {
	form = url.Values{"query": {c.Expr}, "timeout": {c.Within.String()}}
	if c.Explain {
		form.Set("explain", "1")
	}
	at := func(name, flag, text string) (t time.Time) {
		if err == nil {
			t, err = terminal.ParseMoment(flag, text, now)
		}
		form.Set(name, strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64))
		return t
	}
	if c.Start == "" {
		if c.End != "" || c.Step != "" {
			return "", nil, fault.Errorf(fault.Invalid, "--end and --step go with --start")
		}
		at("time", "--time", cmp.Or(c.Time, "now"))
		return "/api/v1/query", form, err
	}
	lo, hi := at("start", "--start", c.Start), at("end", "--end", cmp.Or(c.End, "now"))
	if err == nil && lo.After(hi) {
		err = fault.Errorf(fault.Invalid, "--start is after --end")
	}
	step := max(hi.Sub(lo)/stepsDefault, time.Second)
	if c.Step != "" && err == nil {
		step, err = terminal.ParseSpan("--step", c.Step)
	}
	form.Set("step", strconv.FormatFloat(step.Seconds(), 'f', 3, 64))
	return "/api/v1/query_range", form, err
}

// querySample is a pair of seconds and a value's text.
type querySample struct {
	at    float64
	value string
}

// UnmarshalJSON reads [seconds, text]; of a histogram the text is its JSON.
func (s *querySample) UnmarshalJSON(b []byte) error {
	var pair [2]json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if err := json.Unmarshal(pair[0], &s.at); err != nil {
		return err
	}
	if json.Unmarshal(pair[1], &s.value) != nil {
		s.value = string(pair[1])
	}
	return nil
}

func (s querySample) time() string {
	return time.UnixMilli(int64(s.at * 1000)).UTC().Format("2006-01-02T15:04:05.999Z07:00")
}

type querySeries struct {
	Metric     map[string]string `json:"metric"`
	Value      *querySample      `json:"value"`
	Histogram  *querySample      `json:"histogram"`
	Values     []querySample     `json:"values"`
	Histograms []querySample     `json:"histograms"`
}

// samples are all samples of a series.
func (s *querySeries) samples() []querySample {
	all := append(s.Values, s.Histograms...)
	if s.Value != nil {
		all = append(all, *s.Value)
	}
	if s.Histogram != nil {
		all = append(all, *s.Histogram)
	}
	slices.SortStableFunc(all, func(a, b querySample) int { return cmp.Compare(a.at, b.at) })
	return all
}

// text writes a series as in PromQL.
func (s *querySeries) text() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(s.Metric)) {
		if name != "__name__" {
			pairs = append(pairs, name+"="+strconv.Quote(s.Metric[name]))
		}
	}
	if len(pairs) == 0 && s.Metric["__name__"] != "" {
		return s.Metric["__name__"]
	}
	return s.Metric["__name__"] + "{" + strings.Join(pairs, ", ") + "}"
}

func (c *Query) print(w io.Writer, a *queryAnswer) error {
	var series []querySeries
	if a.Data.ResultType == "scalar" || a.Data.ResultType == "string" {
		var one querySample
		if err := json.Unmarshal(a.Data.Result, &one); err != nil {
			return fault.Wrap(err, fault.Corrupt, "the answer")
		}
		series = []querySeries{{Value: &one}}
	} else if err := json.Unmarshal(a.Data.Result, &series); err != nil {
		return fault.Wrap(err, fault.Corrupt, "the answer")
	}
	if c.Output == "csv" {
		return printCSV(w, series)
	}
	if len(series) == 0 {
		_, err := fmt.Fprintln(os.Stderr, "no series")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "SERIES\tTIME\tVALUE")
	for i := range series {
		for _, s := range series[i].samples() {
			fmt.Fprintf(t, "%s\t%s\t%s\n", series[i].text(), s.time(), s.value)
		}
	}
	return t.Flush()
}

// printCSV has a column for each label that a series has, time and value.
func printCSV(w io.Writer, series []querySeries) error {
	known := map[string]bool{}
	for i := range series {
		for name := range series[i].Metric {
			known[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(known))
	out := csv.NewWriter(w)
	err := out.Write(append(slices.Clone(names), "time", "value"))
	for i := range series {
		for _, s := range series[i].samples() {
			row := make([]string, 0, len(names)+2)
			for _, name := range names {
				row = append(row, series[i].Metric[name])
			}
			if err == nil {
				err = out.Write(append(row, s.time(), s.value))
			}
		}
	}
	out.Flush()
	if err == nil {
		err = out.Error()
	}
	return err
}
