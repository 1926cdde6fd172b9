package administration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/findings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// StatusFlags are the flags of commands that look at a cluster, or, where none is named, at the status page of one process:
// a standalone, or a gateway.
type StatusFlags struct {
	Flags  `embed:""`
	URL    string       `name:"url" help:"Where a standalone process or a gateway listens; used where no cluster is named." default:"http://127.0.0.1:8428" env:"SPILLWAY_URL"`
	Client client.Flags `embed:""`
}

// alone reports whether no cluster is named.
func (f *StatusFlags) alone() bool { return len(f.Servers) == 0 && f.Coord.URL == "" }

// status asks the process at URL for its status, with the partitions of one table, or of all ("").
func (f *StatusFlags) status(table string) (*ui.Status, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rq, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(f.URL, "/")+"/api/v1/status/cluster?"+url.Values{"table": {table}}.Encode(), nil)
	if err != nil {
		return nil, client.NoURL(f.URL)
	}
	resp, err := f.Client.Send(rq, f.Timeout)
	if err != nil {
		return nil, fault.Annotate(err, "--url (SPILLWAY_URL) names a standalone or a gateway, --servers a storage server of a cluster")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // the status says enough
		if resp.StatusCode == http.StatusNotFound {
			return nil, fault.Errorf(fault.Invalid, "%s has no status page: --url is the address of a standalone process or a gateway for writes and queries (http.listen, port 8428 unless it is set), not its admin.listen; a storage server is named with --servers, by its peer.listen", f.URL)
		}
		return nil, fault.Errorf(fault.Unavailable, "%s answered %s: %s", f.URL, resp.Status, strings.TrimSpace(string(text)))
	}
	var answer struct{ Data ui.Status }
	err = json.NewDecoder(io.LimitReader(resp.Body, 256<<20)).Decode(&answer)
	return &answer.Data, fault.Wrap(err, fault.Corrupt, "answer of %s", f.URL)
}

// local prints as the commands about a cluster do.
func (f *StatusFlags) local() *admin { return &admin{out: os.Stdout, json: f.Output == "json"} }

// runAlone examines the status page of one process.
func (c *Doctor) runAlone() error {
	s, err := c.status("")
	if err != nil {
		return terminal.Unseen(err)
	}
	partitions := 0
	for _, t := range s.Tables {
		partitions += t.Count
	}
	return printFindings(c.local(), findings.OfStatus(s), len(s.Servers), len(s.Tables), partitions)
}

// printFindings prints faults, the worst first; the error is the exit code.
func printFindings(a *admin, report []findings.Finding, servers, tables, partitions int) error {
	status, end := "well", error(nil)
	for _, f := range report {
		if f.Severity == "broken" {
			status, end = "broken", terminal.Broken
		} else if end == nil {
			status, end = "degraded", terminal.Degraded
		}
	}
	slices.SortStableFunc(report, func(a, b findings.Finding) int { return strings.Compare(a.Severity, b.Severity) })
	err := a.print(map[string]any{"status": status, "findings": report}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %d servers, %d tables, %d partitions, %d findings\n", status, servers, tables, partitions, len(report))
		for _, f := range report {
			fmt.Fprintf(w, "\n%s  %s (%s): %s\n  → %s\n", f.Severity, f.Kind, f.Subject, f.What, f.Do)
		}
	})
	if err != nil {
		return err
	}
	return end
}

// runAlone lists the partitions that a process shows.
func (c *partitionListCmd) runAlone() error {
	s, err := c.status(c.Table)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.Tables, func(t ui.Table) bool { return t.Name == c.Table })
	if i < 0 {
		return fault.Errorf(fault.NotFound, "%s has no table %q, or it may not be read", c.URL, c.Table)
	}
	rows := slices.DeleteFunc(s.Tables[i].Partitions, func(p ui.Partition) bool {
		return !c.From.IsZero() && !p.To.After(c.From) || !c.To.IsZero() && p.From.After(c.To)
	})
	return c.local().print(rows, func(w io.Writer) {
		fmt.Fprintln(w, "PARTITION\tBEGIN\tEND\tRING\tSTATE\tLEADER\tROWS\tBYTES\tNOTE")
		for _, p := range rows {
			fmt.Fprintf(w, "p%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.ID, p.From.UTC().Format(time.RFC3339), p.To.UTC().Format(time.RFC3339), ringText(&p), p.State,
				cmp.Or(p.Leader, "-"), countText(p.Rows), countText(p.Bytes), cmp.Or(strings.Join(notesOf(&p), ", "), "-"))
		}
	})
}

func notesOf(p *ui.Partition) (notes []string) {
	for _, n := range []struct{ what, why string }{{"damaged", p.Damaged}, {"not flushed", p.Unflushed}, {"offline", p.Offline}} {
		if n.why != "" {
			notes = append(notes, n.what+": "+n.why)
		}
	}
	return notes
}

func ringText(p *ui.Partition) string {
	if p.RingLo == 0 && (p.RingHi == 0 || p.RingHi == 1) {
		return "all"
	}
	return fmt.Sprintf("%.1f-%.1f %%", 100*p.RingLo, 100*p.RingHi)
}

// countText is a number, or that it is not known.
func countText(n *uint64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}
