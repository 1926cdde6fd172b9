package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/gateway/scrape"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/retention"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// retentionPeriod is how often partitions are checked against the retention of their tables.
const retentionPeriod = time.Minute

// clockRow is the row of the coordination store with the clock that is remembered (clock.Memory), in nanoseconds.
const clockRow = "retention/clock"

// retain is the state of keeping the retention.
type retain struct {
	clock *clock.Clock // constant after rememberedClock

	memory clock.Memory // owned by keepRetention

	mu struct {
		sync.Mutex
		held map[string]retention.Verdict // by table
	}
}

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

// rememberedClock reads the clock that an earlier process remembered.
func (p *standalone) rememberedClock(ctx context.Context) error {
	r := &p.retention
	r.clock = clock.New()
	row, _, err := p.coord.Get(ctx, clockRow)
	if err != nil || len(row.Value) == 0 {
		return err
	}
	stored, err := strconv.ParseInt(string(row.Value), 10, 64)
	if err != nil {
		return fault.Wrap(err, fault.Corrupt, "clock in the coordination store")
	}
	_, steady := r.clock.Both()
	r.memory = clock.Remembered(stored, steady)
	r.clock.Judge(r.memory.State())
	return nil
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
	r := &p.retention
	wall, steady := r.clock.Both()
	c := retention.Clock{Wall: wall, Seen: r.memory.Stored(steady), Confirmed: point.Nanos(p.cfg.Tables.RetentionConfirmed)}
	for _, name := range p.tables.Names() {
		if err := p.retainTable(ctx, name, c); err != nil && ctx.Err() == nil {
			p.log.Error("retention could not be kept; it is tried again", "table", name, "error", err)
		}
	}
	r.memory.Look(wall, steady, r.clock.Seen(), c.IsConfirmed())
	r.clock.Judge(r.memory.State())
	stored := r.memory.Stored(steady)
	if stored == 0 {
		return
	}
	writes := []coord.Write{{Key: clockRow, Value: strconv.AppendInt(nil, stored, 10)}}
	if _, _, err := p.coord.Commit(ctx, nil, writes); err != nil && ctx.Err() == nil {
		p.log.Warn("the clock could not be noted", "error", err)
	}
}

func (p *standalone) retainTable(ctx context.Context, name string, c retention.Clock) error {
	m, ok := p.tables.Get(name)
	if !ok {
		return nil
	}
	v := retention.Judge(m, c, retention.Confirmed{})
	var unread error
	if len(v.Held) > 0 {
		said, _, err := p.confirmed(ctx, name)
		v, unread = retention.Judge(m, c, said), err
	}
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
	m, err := p.tables.Drop(ctx, name, v.Drop...)
	if err == nil && len(v.Drop) > 0 {
		err = p.doneConfirmed(ctx, m)
	}
	return errors.Join(unread, err)
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
