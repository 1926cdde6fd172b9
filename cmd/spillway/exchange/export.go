package exchange

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/transfer"
	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// rangeFlags choose the rows that are exported, or imported from another server.
type rangeFlags struct {
	Match  string `name:"match" help:"Series to take, as a selector of PromQL: up, or {job=\"api\"} (default: all)."`
	Start  string `name:"start" help:"Time of the first rows: 2026-03-01, 2026-03-01T12:00:00Z, seconds since 1970, or 30d before now (default: the oldest)."`
	End    string `name:"end" help:"Time of the last rows, likewise (default: the newest)."`
	Window string `name:"window" help:"How much time is read at once; an interrupted run goes on at the last whole window (default 1d; for blocks 2h)."`
}

// Export writes the rows of a server into a file.
type Export struct {
	To     string       `name:"to" help:"File, - for standard output, or directory for blocks. Names that end in .gz or .zst are compressed." required:""`
	Format string       `name:"format" help:"openmetrics, prometheus (text), line (Influx), json (lines; keeps every bit), or blocks (of Prometheus' TSDB); default: by the name: .om .prom .lp .jsonl." enum:",openmetrics,prometheus,line,json,blocks" default:""`
	URL    string       `name:"url" help:"Where the process listens: a standalone, a gateway, or any server with Prometheus' remote read." default:"http://127.0.0.1:8428" env:"SPILLWAY_URL"`
	Table  string       `name:"table" help:"Table to export (default: the server's default)."`
	Range  rangeFlags   `embed:""`
	Client client.Flags `embed:""`
}

// Run exports.
func (c *Export) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.Format == "" {
		if c.Format = transfer.FormatOf(c.To); c.Format == "" {
			return fault.Errorf(fault.Invalid, "--to %s does not say in which format: give --format openmetrics, prometheus, line, json or blocks", c.To)
		}
	}
	do, err := c.Client.Sender(0, true)
	if err != nil {
		return err
	}
	losses := &transfer.Losses{}
	e, err := c.Range.export(ctx, &transfer.Server{URL: c.URL, Table: c.Table, Do: do}, c.Format, "")
	if err != nil {
		return err
	}
	bar := terminal.NewBar(os.Stderr, "export")
	e.To, e.Format, e.Losses = c.To, c.Format, losses
	e.Say = func(text string) { bar.Say(text) }
	e.Progress = func(p transfer.Progress) {
		bar.Draw(p.Part, false, func(s float64) string {
			return fmt.Sprintf("%s  %d rows  %.0f rows/s", p.At, p.Rows, float64(p.Rows)/s)
		})
	}
	// A run goes on with the same end: "now" of the first one counts.
	e.What = strings.Join([]string{"export of", c.URL, "table", cmp.Or(c.Table, "default"), "as", c.Format, "match", cmp.Or(c.Range.Match, "all"), "from", cmp.Or(c.Range.Start, "the oldest"), "to", cmp.Or(c.Range.End, "the newest"), "window", e.Window.String()}, " ")
	rows, size, err := e.Run(ctx)
	bar.End()
	if err != nil {
		if ctx.Err() != nil && c.To != "-" {
			return fault.Errorf(fault.Canceled, "interrupted after %d rows; the same command goes on from there", rows)
		}
		return err
	}
	if c.Format == transfer.FormatBlocks {
		fmt.Fprintf(os.Stderr, "%d rows were exported to %s in %d blocks\n", rows, c.To, size)
	} else {
		fmt.Fprintf(os.Stderr, "%d rows were exported to %s\n", rows, cmp.Or(strings.TrimPrefix(c.To, "-"), "standard output"))
	}
	return tellLosses(losses)
}

// tellLosses ends with 1 when something was left out.
func tellLosses(l *transfer.Losses) error {
	if !l.Any() {
		return nil
	}
	l.Print(os.Stderr)
	return terminal.Degraded
}

// export makes a run that reads a server; called is its name in messages.
func (r *rangeFlags) export(ctx context.Context, s *transfer.Server, format, called string) (*transfer.Export, error) {
	now := time.Now()
	window := 24 * time.Hour
	if format == transfer.FormatBlocks {
		window = transfer.BlockWindow
	}
	if r.Window != "" {
		var err error
		if window, err = terminal.ParseSpan("--window", r.Window); err != nil {
			return nil, err
		}
		if format == transfer.FormatBlocks && window%transfer.BlockWindow != 0 {
			return nil, fault.Errorf(fault.Invalid, "--window %s: blocks of Prometheus cover a multiple of %s", r.Window, transfer.BlockWindow)
		}
	}
	reader, err := transfer.NewReader(ctx, s, r.Match)
	if err != nil {
		return nil, err
	}
	e := &transfer.Export{Reader: reader, Window: window, Losses: &transfer.Losses{}, Say: func(string) {}}
	lo, hi, empty, known := reader.Range(ctx, now)
	if e.Lo = lo; r.Start != "" {
		at, err := terminal.ParseMoment("--start", r.Start, now)
		if err != nil {
			return nil, err
		}
		e.Lo = at.UnixMilli()
	} else if !known {
		return nil, fault.Errorf(fault.Invalid, "%s does not say how old its rows are: give --start", cmp.Or(called, s.URL))
	}
	if e.Hi = hi; r.End != "" {
		at, err := terminal.ParseMoment("--end", r.End, now)
		if err != nil {
			return nil, err
		}
		e.Hi = at.UnixMilli()
	} else if !known {
		e.Hi = now.Add(time.Hour).UnixMilli()
	}
	if empty {
		e.Lo, e.Hi = 0, -1
	} else if known && reader.Exact() {
		e.Lo, e.Hi = max(e.Lo, lo), min(e.Hi, hi)
	}
	return e, nil
}

// foreignSender is for another operator's server: its token and authority.
func foreignSender(tokenFile, caFile string) (func(*http.Request) (*http.Response, error), error) {
	return client.Flags{TokenFile: tokenFile, CAFile: caFile}.Sender(0, true)
}
