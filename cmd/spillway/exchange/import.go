package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/transfer"
	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Import writes rows of a file, of a directory of Prometheus, or of another server to a server.
type Import struct {
	Source string `arg:"" optional:"" help:"File, compressed by gzip or zstd or not; - for standard input; or a directory of Prometheus, stopped, with its blocks and its write-ahead log; or a snapshot of one, or a single block."`
	From   string `name:"from" help:"Instead: URL of another server to read from, a Spillway, a VictoriaMetrics, or any with Prometheus' remote read."`

	FromTable     string `name:"from-table" help:"Table to read there, if it is a Spillway."`
	FromTokenFile string `name:"from-token-file" help:"File with a token for it." type:"path"`
	FromCAFile    string `name:"from-ca-file" help:"File with the authority of its certificate." type:"path"`

	Format    string `name:"format" help:"openmetrics, prometheus (text), line (Influx), json (lines, VictoriaMetrics' too) or blocks; default: by the name: .om .prom .lp .jsonl, or a directory." enum:",openmetrics,prometheus,line,json,blocks" default:""`
	Precision string `name:"precision" help:"Unit of the times in line protocol: ns, us, ms or s." enum:"ns,us,ms,s" default:"ns"`

	URL     string `name:"url" help:"Where to write to: a standalone, a gateway, or any server with Prometheus' remote write." default:"http://127.0.0.1:8428" env:"SPILLWAY_URL"`
	Table   string `name:"table" help:"Table to write to (default: the server's default)."`
	Senders int    `name:"senders" help:"How many requests are under way at once." default:"4"`
	Note    string `name:"resume" help:"File that notes how far the run came, so that the same command goes on after an interruption (default: the source's name with .resume; with --from import-<host>.resume)." type:"path"`

	Range  rangeFlags   `embed:""`
	Client client.Flags `embed:""`
}

// Run imports.
func (c *Import) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	m, err := c.plan(ctx)
	if err != nil {
		return err
	}
	bar := terminal.NewBar(os.Stderr, "import")
	m.Say = bar.Say
	m.Progress = func(p transfer.Progress) {
		bar.Draw(p.Part, false, func(s float64) string { return fmt.Sprintf("%d rows  %.0f rows/s", p.Rows, float64(p.Rows)/s) })
	}
	rows, err := m.Run(ctx)
	bar.End()
	if err != nil {
		m.Losses.Print(os.Stderr)
		if ctx.Err() != nil && m.Note != "" && !errors.Is(err, transfer.ErrNote) {
			return fault.Errorf(fault.Canceled, "interrupted after %d rows; the same command goes on from there", rows)
		}
		return err
	}
	what := "rows"
	if m.Format == transfer.FormatLine {
		what = "lines"
	}
	fmt.Fprintf(os.Stderr, "%d %s were imported to %s, table %s\n", rows, what, c.URL, cmp.Or(c.Table, "default"))
	return tellLosses(m.Losses)
}

// plan makes the run of the flags.
func (c *Import) plan(ctx context.Context) (*transfer.Import, error) {
	switch {
	case (c.Source == "") == (c.From == ""):
		return nil, fault.Errorf(fault.Invalid, "give a file or directory, or --from and the URL of another server")
	case c.From != "" && !strings.HasPrefix(c.From, "http://") && !strings.HasPrefix(c.From, "https://"):
		return nil, fault.Errorf(fault.Invalid, "--from %s is no URL of another server, http://… or https://…; a file or directory is given without --from: spillway import %[1]s", c.From)
	case c.Senders < 1 || c.Senders > transfer.SendersMax:
		return nil, fault.Errorf(fault.Invalid, "--senders must be from 1 to %d", transfer.SendersMax)
	}
	do, err := c.Client.Sender(0, true)
	if err != nil {
		return nil, err
	}
	m := &transfer.Import{
		Server: &transfer.Server{URL: c.URL, Table: c.Table, Do: do}, From: c.Source, Format: c.Format, Precision: c.Precision,
		Senders: c.Senders, Note: c.Note, Losses: &transfer.Losses{}, Lo: transfer.TimeMin, Hi: transfer.TimeMax,
	}
	if c.From != "" {
		err = c.fromServer(ctx, m)
	} else {
		err = c.fromFile(m)
	}
	m.What = strings.Join([]string{"import of", cmp.Or(c.Source, c.From), "to", c.URL, "table", cmp.Or(c.Table, "default"), "match", cmp.Or(c.Range.Match, "all"), "from", cmp.Or(c.Range.Start, "the oldest"), "to", cmp.Or(c.Range.End, "the newest")}, " ")
	if c.FromTable != "" {
		m.What += " from table " + c.FromTable
	}
	// Bytes of a file are rows only in its format, and times only in their unit.
	if c.Source != "" && c.Format != "" && c.Format != transfer.FormatOf(c.Source) {
		m.What += " format " + c.Format
	}
	if m.Format == transfer.FormatLine && c.Precision != "ns" {
		m.What += " precision " + c.Precision
	}
	return m, err
}

func (c *Import) fromServer(ctx context.Context, m *transfer.Import) error {
	do, err := foreignSender(c.FromTokenFile, c.FromCAFile)
	if err != nil {
		return err
	}
	from := &transfer.Server{URL: c.From, Table: c.FromTable, Do: do}
	if m.Source, err = c.Range.export(ctx, from, "", c.From); err != nil {
		return err
	}
	m.Source.Losses = m.Losses
	m.Source.Say = func(text string) { m.Say(text) }
	if m.Note == "" {
		host := strings.NewReplacer("https://", "", "http://", "", "/", "_", ":", "_", "@", "_").Replace(c.From)
		m.Note = "import-" + host + transfer.ResumeSuffix
	}
	return nil
}

func (c *Import) fromFile(m *transfer.Import) error {
	if c.Range.Match != "" || c.Range.Window != "" {
		return fault.Errorf(fault.Invalid, "--match and --window go with --from: a file is imported as it is")
	}
	if m.Format == "" {
		m.Format = transfer.FormatOf(c.Source)
		st, err := os.Stat(c.Source)
		if err != nil && c.Source != "-" {
			return fault.Wrap(err, fault.Invalid, "the file to import")
		}
		if err == nil && st.IsDir() {
			m.Format = transfer.FormatBlocks
		}
	}
	if m.Format == "" {
		return fault.Errorf(fault.Invalid, "%s does not say in which format it is: give --format openmetrics, prometheus, line, json or blocks", c.Source)
	}
	if m.Format != transfer.FormatBlocks && (c.Range.Start != "" || c.Range.End != "") {
		return fault.Errorf(fault.Invalid, "--start and --end go with --from and with blocks: a file is imported as it is")
	}
	now := time.Now()
	for _, of := range []struct {
		flag, text string
		to         *int64
	}{{"--start", c.Range.Start, &m.Lo}, {"--end", c.Range.End, &m.Hi}} {
		if of.text == "" {
			continue
		}
		at, err := terminal.ParseMoment(of.flag, of.text, now)
		if err != nil {
			return err
		}
		*of.to = at.UnixMilli()
	}
	if m.Note == "" && c.Source != "-" {
		m.Note = filepath.Clean(c.Source) + transfer.ResumeSuffix
	}
	return nil
}

// Write writes a few rows: an import from standard input or a file that notes nothing.
type Write struct {
	File      string        `arg:"" optional:"" help:"File (default: standard input)." default:"-"`
	Format    string        `name:"format" help:"line (Influx), openmetrics, prometheus (text) or json (lines)." enum:"line,openmetrics,prometheus,json" default:"line"`
	Precision string        `name:"precision" help:"Unit of the times in line protocol: ns, us, ms or s." enum:"ns,us,ms,s" default:"ns"`
	Server    client.Server `embed:""`
}

// Run writes the rows; those without a time get now.
func (c *Write) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	do, err := c.Server.Client.Sender(0, true)
	if err != nil {
		return err
	}
	m := &transfer.Import{
		Server: &transfer.Server{URL: c.Server.URL, Table: c.Server.Table, Do: do}, From: c.File, Format: c.Format, Precision: c.Precision,
		Senders: 1, Losses: &transfer.Losses{}, Say: func(text string) { fmt.Fprintln(os.Stderr, "write: "+text) },
	}
	if _, err := m.Run(ctx); err != nil {
		return err
	}
	return tellLosses(m.Losses)
}
