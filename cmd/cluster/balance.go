package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// balanceBack is how far behind now partitions still count: rows of the longest window arrive that late.
const balanceBack = 3 * time.Minute

// balance is how the rows of a table came to its servers. It counts what partitions hold more than at the look before, for the servers that
// lead them.
type balance struct {
	rows map[uint64]uint64 // by partition, at the last look
	at   time.Time
}

// look counts once more: rows a second of each server since the last look. The first look, and one that lacks the rows of a partition,
// count nothing: false.
func (b *balance) look(t *ui.Table, now time.Time, servers []string) (perSecond []float64, known bool) {
	rows, grown := map[uint64]uint64{}, map[string]float64{}
	known = b.rows != nil
	for i := range t.Partitions {
		p := &t.Partitions[i]
		if p.From.After(now) || p.To.Before(now.Add(-balanceBack)) {
			continue
		}
		if p.Rows == nil {
			known = false
			continue
		}
		rows[p.ID] = *p.Rows
		if before := b.rows[p.ID]; *p.Rows > before {
			grown[p.Leader] += float64(*p.Rows - before)
		}
	}
	for _, s := range servers {
		perSecond = append(perSecond, grown[s]/max(now.Sub(b.at).Seconds(), 0.001))
	}
	b.rows, b.at = rows, now
	return perSecond, known
}

// busiest is the load of the busiest server ÷ the mean of all; 0: there is no load.
func busiest(perSecond []float64) float64 {
	sum := 0.0
	for _, v := range perSecond {
		sum += v
	}
	if sum <= 0 {
		return 0
	}
	return slices.Max(perSecond) * float64(len(perSecond)) / sum
}

// ahead counts the partitions that begin in the future.
func ahead(t *ui.Table, now time.Time) (n int) {
	for i := range t.Partitions {
		if t.Partitions[i].From.After(now) {
			n++
		}
	}
	return n
}

// report says a line at every full ten seconds, when the partitions of ten seconds change, so that the server of one counts alone.
func (d *demo) report(ctx context.Context, c *processes.Cluster, say func(format string, args ...any)) {
	var servers []string
	for _, s := range c.Storage {
		servers = append(servers, s.Name)
	}
	balances := map[string]*balance{turnsTable: {}, spreadTable: {}}
	for n := 0; ; {
		next := time.Now().Truncate(demoWidth).Add(demoWidth)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
		var parts []string
		var counts []string
		for _, name := range demoTables {
			t, err := tableStatus(ctx, c.HTTP[0], name)
			if err != nil {
				parts = append(parts, fmt.Sprintf("%s: %v", name, err))
				continue
			}
			counts = append(counts, strconv.Itoa(ahead(t, next)))
			if b := balances[name]; b != nil {
				if perSecond, known := b.look(t, time.Now(), servers); known {
					parts = append(parts, balanceText(t, perSecond))
				}
			}
		}
		if ctx.Err() != nil || len(parts) == 0 {
			continue // the first look
		}
		if n++; n%20 == 1 {
			say("%-8s  %s", "", heading(servers))
		}
		say("%s  %s | %s | %s\n", next.Format("15:04:05"), strings.Join(parts, " | "), strings.Join(counts, ", "), d.load.total())
	}
}

// nameWidth is that of the table and its window in a line.
const nameWidth = 13

func heading(servers []string) string {
	one := fmt.Sprintf("%-*s", nameWidth, "table, window")
	for _, s := range servers {
		one += fmt.Sprintf(" %6s", s)
	}
	one += " rows/s, ÷ mean"
	return one + " | " + one + " | partitions ahead | rows acked\n"
}

func balanceText(t *ui.Table, perSecond []float64) string {
	window := "off"
	if t.Smear != nil && t.Smear.Window > 0 {
		window = t.Smear.Window.String()
	}
	out := fmt.Sprintf("%-*s", nameWidth, t.Name+", "+window)
	for _, v := range perSecond {
		out += fmt.Sprintf(" %6.0f", v)
	}
	return out + fmt.Sprintf(" %14.2f", busiest(perSecond))
}

// tableStatus asks a gateway's status page for a table.
func tableStatus(ctx context.Context, gateway, table string) (*ui.Table, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	rq, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+gateway+ui.Path+"?table="+table, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultTransport.RoundTrip(rq)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var body struct{ Data ui.Status }
	if err := json.NewDecoder(io.LimitReader(answer.Body, 64<<20)).Decode(&body); err != nil {
		return nil, fmt.Errorf("%s: %w", answer.Status, err)
	}
	for i := range body.Data.Tables {
		if body.Data.Tables[i].Name == table {
			return &body.Data.Tables[i], nil
		}
	}
	return nil, fmt.Errorf("the gateway does not know it yet")
}
