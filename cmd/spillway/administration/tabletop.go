package administration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// TableUsePath is the path at which a process reports the resources that each table uses.
const TableUsePath = "/api/v1/status/tables"

// tableTopCmd shows the tables that use most of a gateway.
type tableTopCmd struct {
	URL    string        `name:"url" help:"Where the process listens." default:"http://127.0.0.1:8428" env:"SPILLWAY_URL"`
	Output string        `name:"output" short:"o" help:"table or json." enum:"table,json" default:"table"`
	Number int           `name:"number" short:"n" help:"How many tables to show." default:"20"`
	Watch  time.Duration `name:"watch" short:"w" help:"Show it again and again, so far apart (default once)."`

	Client client.Flags `embed:""`
}

// Run asks a running process and prints its answer.
func (c *tableTopCmd) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.Number < 1 || c.Watch < 0 {
		return fault.Errorf(fault.Invalid, "--number and --watch must be positive")
	}
	for {
		uses, err := fetchTableUse(ctx, c.Client, c.URL, c.Number)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.print(os.Stdout, uses); err != nil || c.Watch == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Watch):
		}
	}
}

func (c *tableTopCmd) print(w io.Writer, uses []limits.TableUse) error {
	if c.Output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(uses)
	}
	if c.Watch > 0 {
		fmt.Fprint(w, "\x1b[H\x1b[2J", time.Now().Format(time.TimeOnly), "\n")
	}
	return printTableUse(w, uses)
}

func fetchTableUse(ctx context.Context, flags client.Flags, url string, n int) ([]limits.TableUse, error) {
	rq, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s?limit=%d", strings.TrimRight(url, "/"), TableUsePath, n), nil)
	if err != nil {
		return nil, client.NoURL(url)
	}
	resp, err := flags.Do(rq)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, client.Refused(url, resp)
	}
	var body struct{ Data []limits.TableUse }
	err = json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&body)
	return body.Data, fault.Wrap(err, fault.Corrupt, "answer of %s", url)
}

// printTableUse prints a table for people.
func printTableUse(w io.Writer, uses []limits.TableUse) error {
	if len(uses) == 0 {
		_, err := fmt.Fprintln(w, "no table that you may read was written to or read since the process started")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "table\tsamples/s\tKiB/s\tseries\tnew/s\tqueries/s\trefused/s\tnear a limit\trefused for\t")
	for _, u := range uses {
		name := u.Table
		if u.DryRun {
			name += " (dry run)"
		}
		refused, why := refusedBy(u)
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t\n", name, rate(u.SamplesPerSecond), rate(u.BytesPerSecond/1024), u.ActiveSeries,
			rate(u.NewSeriesPerSecond), rate(u.QueriesPerSecond), rate(refused), nearOf(u), why)
	}
	return t.Flush()
}

// refusedBy adds up the refusals, real or in trial, and names the reasons, the greatest first.
func refusedBy(u limits.TableUse) (sum float64, why string) {
	by := u.RefusedPerSecond
	if u.DryRun {
		by = u.WouldRefuse
	}
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b)) })
	for _, v := range by {
		sum += v
	}
	return sum, cmp.Or(strings.Join(names, ", "), "-")
}

func nearOf(u limits.TableUse) string {
	if len(u.Near) == 0 {
		return "-"
	}
	return fmt.Sprintf("%s %.0f %%", u.Near[0].Limit, 100*u.Near[0].Used)
}

// rate formats a number for people: about three digits.
func rate(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
