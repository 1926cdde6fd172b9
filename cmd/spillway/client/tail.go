package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/transfer"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Tail prints rows as they come.
type Tail struct {
	Match  string        `arg:"" help:"Series, as a selector of PromQL: up, or {job=\"api\"}."`
	Every  time.Duration `name:"every" help:"How often to look." default:"2s"`
	Since  string        `name:"since" help:"Time of the first rows to print: 1m before now, or a time (default now)." default:"now"`
	Server Server        `embed:""`
}

// tailSeriesMax bounds the series that tail follows.
const tailSeriesMax = 100_000

// Run prints until it is interrupted. Rows count as new by their own time: rows older than the newest one of their series
// that was printed are not.
func (c *Tail) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.Every < 100*time.Millisecond {
		return fault.Errorf(fault.Invalid, "--every must be 100ms at least")
	}
	since, err := terminal.ParseMoment("--since", c.Since, time.Now())
	if err != nil {
		return err
	}
	do, err := c.Server.Client.Sender(0, true)
	if err != nil {
		return err
	}
	r, err := transfer.NewReader(ctx, &transfer.Server{URL: c.Server.URL, Table: c.Server.Table, Do: do}, c.Match)
	if err != nil {
		return err
	}
	t := &tail{reader: r, from: since.UnixMilli(), seen: map[string]point.Nanos{}, out: os.Stdout}
	for {
		if err := t.look(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Every):
		}
	}
}

// tail follows series.
type tail struct {
	reader *transfer.Reader
	from   int64                  // milliseconds; older rows are not asked for
	seen   map[string]point.Nanos // the newest row printed, by series
	out    io.Writer
}

type tailRow struct {
	at   point.Nanos
	text string
}

// tailBack is how far behind the newest row of all series rows of others are looked for.
const tailBack = 5 * time.Minute

func (t *tail) look(ctx context.Context) error {
	var rows []tailRow
	next, newest := map[string]point.Nanos{}, int64(math.MinInt64)
	err := t.reader.Read(ctx, t.from, transfer.TimeMax, func(l *transfer.Line) error {
		series := transfer.SeriesText(l)
		last, known := t.seen[series]
		add := func(at point.Nanos, value string) {
			if known && at <= last {
				return
			}
			rows = append(rows, tailRow{at, series + " " + value})
			if newest, ok := next[series]; !ok || at > newest {
				next[series] = at
			}
		}
		for i, at := range l.Times {
			add(at, transfer.ValueText(l.Values[i]))
		}
		for _, h := range l.Hists {
			if h.Int != nil {
				add(h.Time, fmt.Sprint(h.Int))
			} else {
				add(h.Time, fmt.Sprint(h.Float))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	maps.Copy(t.seen, next)
	slices.SortStableFunc(rows, func(a, b tailRow) int { return cmp.Compare(a.at, b.at) })
	for _, r := range rows {
		newest = max(newest, point.MillisOf(r.at))
		if _, err := fmt.Fprintln(t.out, time.Unix(0, int64(r.at)).UTC().Format(time.RFC3339Nano), r.text); err != nil {
			return err
		}
	}
	if len(rows) > 0 {
		t.from = max(t.from, newest-tailBack.Milliseconds())
	}
	if len(t.seen) > tailSeriesMax {
		maps.DeleteFunc(t.seen, func(_ string, at point.Nanos) bool { return point.MillisOf(at) < t.from })
		if len(t.seen) > tailSeriesMax {
			return fault.Errorf(fault.TooLarge, "more than %d series; choose fewer", tailSeriesMax)
		}
	}
	return nil
}
