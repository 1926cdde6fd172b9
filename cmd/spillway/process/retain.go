package process

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/gateway/scrape"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/retention"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// retentionPeriod is how often partitions are checked against the retention of their tables.
const retentionPeriod = time.Minute

// clockRow is the row of the coordination store with the last trusted wall clock, in nanoseconds.
const clockRow = "retention/clock"

// retain is the state of keeping the retention.
type retain struct {
	// Owned by keepRetention.
	seen point.Nanos // the last trusted wall clock; 0: never
	at   time.Time   // when, by a clock that does not jump

	last atomic.Pointer[lastClock] // nil: the clock was never seen

	mu struct {
		sync.Mutex
		held map[string]retention.Verdict // by table
	}
}

// lastClock is the latest wall clock that this process has seen, or that an earlier one has noted. It never goes back, as seen does where the clock is set right.
type lastClock struct {
	wall point.Nanos
	at   time.Time // when, by a clock that does not jump
}

// now is where the clock should be at least; 0: not known.
func (c *lastClock) now() point.Nanos {
	if c == nil || c.wall == 0 {
		return 0
	}
	return c.wall + int64(time.Since(c.at))
}

// lastSeen is where the clock should be at least; 0: not known. A host may boot with a clock of some hours ago, or of another zone.
func (r *retain) lastSeen() point.Nanos { return r.last.Load().now() }

// keepRetention drops partitions that lie wholly before their table's retention: first their rows, then their place in
// the map. In between a reader finds the partition empty, and admission has refused rows of that age for long. Partitions
// that package retention holds wait for a person.
func (p *standalone) keepRetention(ctx context.Context) error {
	for {
		p.retainAll(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retentionPeriod):
		}
	}
}

func (p *standalone) rememberedClock(ctx context.Context) error {
	row, _, err := p.coord.Get(ctx, clockRow)
	if err != nil {
		return err
	}
	if len(row.Value) == 0 {
		return nil
	}
	if p.retention.seen, err = strconv.ParseInt(string(row.Value), 10, 64); p.retention.seen < point.ClockFirst {
		p.retention.seen = 0 // a build from before remembered clocks that were not set
	}
	p.retention.last.Store(&lastClock{p.retention.seen, time.Now()})
	return fault.Wrap(err, fault.Corrupt, "clock in the coordination store")
}

// remembered is the clock to remember: none that was not set yet, from which the right time would be a jump that waits for a person.
func remembered(c retention.Clock) point.Nanos {
	if c.Wall < point.ClockFirst {
		return c.Seen
	}
	return c.Next()
}

// backMax is how far a clock may be behind where it was last seen without a word: NTP sets clocks by seconds.
const backMax = 10 * time.Minute

// clockProblem says that a clock was never set, or is behind where it was last seen; "": it is not.
func clockProblem(now time.Time, seen point.Nanos) string {
	if now.UnixNano() >= point.ClockFirst {
		if back := time.Duration(seen - now.UnixNano()); seen != 0 && back > backMax {
			return fmt.Sprintf("The clock of this machine says %s, %v before where it was last seen. Rows up to that far ahead of it are accepted until the next start; rows without a time get this one: look whether it is right.", now.UTC().Format(time.RFC3339), back.Round(time.Minute))
		}
		return ""
	}
	return fmt.Sprintf("The clock of this machine says %s: it was never set. Rows without a time get this one, and queries of the last hours miss the rows of senders whose clock is right: set it, by NTP or by hand.", now.UTC().Format(time.RFC3339))
}

// noteRetention warns that tables which exist do not get the retention that the process was started with: a shorter one would
// delete rows, and other processes of a cluster may be started with another. The table of the processes' own metrics has a setting of its own.
func (c *config) noteRetention(all *tables.Tables, log *slog.Logger) {
	if !c.RetentionSet {
		return
	}
	const shown = 8
	want := time.Duration(c.Tables.Retention)
	var others []string
	example := ""
	for _, name := range all.Names() {
		m, ok := all.Get(name)
		if !ok || name == scrape.Table || m.Config.Retention == want {
			continue
		}
		if len(others) == 0 {
			example = fmt.Sprintf("spillway table set %s --retention=%s", name, setting.Span(want))
		}
		others = append(others, fmt.Sprintf("%s (%s)", name, administration.SpanText(setting.Span(m.Config.Retention))))
	}
	if len(others) == 0 {
		return
	}
	text := strings.Join(others[:min(len(others), shown)], ", ")
	if more := len(others) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	log.Warn("the retention that is set is that of new tables; `spillway table set` changes one that exists", "set", administration.SpanText(setting.Span(want)), "tables", text, "command", example)
}

// retainAll is one round.
func (p *standalone) retainAll(ctx context.Context) {
	p.finishDrops(ctx)
	now := time.Now()
	c := retention.Clock{Wall: now.UnixNano(), Seen: p.retention.seen, Confirmed: point.Nanos(p.cfg.Tables.RetentionConfirmed)}
	if c.Seen != 0 && !p.retention.at.IsZero() {
		c.Seen += int64(now.Sub(p.retention.at)) // by the monotonic clock
	}
	for _, name := range p.tables.Names() {
		if err := p.retainTable(ctx, name, c); err != nil && ctx.Err() == nil {
			p.log.Error("retention could not be kept; it is tried again", "table", name, "error", err)
		}
	}
	p.retention.seen, p.retention.at = remembered(c), now
	if p.retention.seen > p.retention.lastSeen() {
		p.retention.last.Store(&lastClock{p.retention.seen, now})
	}
	writes := []coord.Write{{Key: clockRow, Value: strconv.AppendInt(nil, p.retention.seen, 10)}}
	if _, _, err := p.coord.Commit(ctx, nil, writes); err != nil && ctx.Err() == nil {
		p.log.Warn("the clock could not be noted", "error", err)
	}
}

func (p *standalone) retainTable(ctx context.Context, name string, c retention.Clock) error {
	m, ok := p.tables.Get(name)
	if !ok {
		return nil
	}
	v := retention.Judge(m, c)
	if p.retention.note(name, v) {
		if v.Why == "" {
			p.log.Info("retention holds no partitions any more", "table", name)
		} else {
			p.log.Error("retention holds partitions that it would drop: the clock may be wrong. Set the clock right; or, if it is, start with --retention.confirmed and a date not long from now",
				"table", name, "partitions", len(v.Held), "why", v.Why)
		}
	}
	for _, id := range v.Drop {
		if err := p.server.DropPartition(name, id); err != nil {
			return err
		}
	}
	_, err := p.tables.Drop(ctx, name, v.Drop...)
	return err
}

// register shows how many partitions are held.
func (r *retain) register(registry prometheus.Registerer) {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_retention_held_partitions", Help: "Partitions that are too old by a clock that may be wrong: they are dropped when a person confirms it.",
	}, r.count))
}

// note keeps a table's verdict, and reports whether holding began or ended.
func (r *retain) note(table string, v retention.Verdict) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, was := r.mu.held[table]
	if len(v.Held) == 0 {
		delete(r.mu.held, table)
		return was
	}
	if r.mu.held == nil {
		r.mu.held = map[string]retention.Verdict{}
	}
	r.mu.held[table] = v
	return !was
}

// count is how many partitions are held.
func (r *retain) count() (n float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.mu.held {
		n += float64(len(v.Held))
	}
	return n
}

// problems lists the held partitions for the status page.
func (r *retain) problems() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for table, v := range r.mu.held {
		out = append(out, fmt.Sprintf("Retention holds %d partitions of table %s until a person confirms the clock (--retention.confirmed): %s.", len(v.Held), table, v.Why))
	}
	slices.Sort(out)
	return out
}
