package administration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"time"

	"github.com/prometheus/common/model"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
	"github.com/spillwaydb/spillway/smear"
)

// Table has the commands about tables.
type Table struct {
	Create TableCreate `cmd:"" help:"Make a table."`
	List   TableList   `cmd:"" help:"List the tables."`
	Show   TableShow   `cmd:"" help:"Show a table's settings and columns."`
	Set    TableSet    `cmd:"" help:"Change a table's settings."`
	Advise TableAdvise `cmd:"" help:"Compute partition width, columns and smearing from a table's load, and say why."`
	Drop   TableDrop   `cmd:"" help:"Delete a table with all its rows."`
	Repair TableRepair `cmd:"" help:"Go by the newest map that a majority of its servers hold: the coordination store was restored from an older backup. It needs --servers or --coord: gateways go by what they read before the restore."`
	Top    tableTopCmd `cmd:"" help:"Show which tables use most of a running process, and what their limits refuse."`
}

// tableRow is a table as shown.
type tableRow struct {
	Table          string         `json:"table"`
	Seq            uint64         `json:"seq"`
	Partitions     int            `json:"partitions"`
	PartitionWidth setting.Span   `json:"partition_width"`
	Retention      setting.Span   `json:"retention"`
	Replicas       int            `json:"replicas"`
	MinInSync      int            `json:"min_in_sync"`
	MinInSyncSet   bool           `json:"min_in_sync_set,omitempty"` // by a person; else it follows from replicas
	Begin          string         `json:"begin,omitempty"`
	End            string         `json:"end,omitempty"`
	Columns        []tableColumns `json:"columns,omitempty"`
	RingBy         string         `json:"ring_by,omitempty"` // labels that decide where series lie; absent: all
	Smear          *tableSmear    `json:"smear,omitempty"`   // absent: rows do not wait
	unsmeared      string         // for people: why rows do not wait; "": not known
	Dropping       bool           `json:"dropping,omitempty"` // it accepts no writes until the drop has ended
}

type tableColumns struct {
	From    string   `json:"from"`
	Weights []uint32 `json:"weights"`
}

// tableSmear is a table's smearing as shown.
type tableSmear struct {
	Window    string       `json:"window"`               // off, auto, or a duration
	Threshold setting.Span `json:"threshold"`            // partitions of that width and wider get their rows at once
	Kafka     string       `json:"kafka,omitempty"`      // where rows of Kafka wait; absent: in staging
	Now       setting.Span `json:"window_now,omitempty"` // for the partitions of now
	Why       string       `json:"why,omitempty"`
}

func showSmear(r smear.Rule) *tableSmear {
	if r == (smear.Rule{}) {
		return nil
	}
	window := smear.Rule{Mode: r.Mode, Window: r.Window}.String()
	s := &tableSmear{Window: window, Threshold: setting.Span(r.WithDefaults().Threshold)}
	if r.Kafka != smear.KafkaStage {
		s.Kafka = r.Kafka.String()
	}
	return s
}

// smearNow adds the window that gateways with intake.smear choose now, and why; of a table that asks for none, the one that auto would choose.
func (r *tableRow) smearNow(m *topology.Map, now time.Time, servers int) {
	rule := m.Config.Smear
	if r.Smear == nil {
		rule.Mode = smear.Auto
	}
	window, why := rule.WithDefaults().Wanted(m.LoadAt(now.UnixNano(), servers))
	if r.Smear != nil {
		r.Smear.Now, r.Smear.Why = setting.Span(window), string(why)
		return
	}
	r.unsmeared = "off; with --smear=auto rows would not wait: " + string(why)
	if window > 0 {
		r.unsmeared = fmt.Sprintf("off; with --smear=auto rows would wait up to %s: %s", SpanText(setting.Span(window)), why)
	}
}

func showTable(m *topology.Map) tableRow {
	r := tableRow{Smear: showSmear(m.Config.Smear), Table: m.Table, Seq: m.Seq, Partitions: m.Len(), PartitionWidth: setting.Span(m.Config.PartitionWidth),
		Retention: setting.Span(m.Config.Retention), Replicas: m.Config.Replicas,
		MinInSync: m.Config.MinInSync(), MinInSyncSet: m.Config.InSyncMin > 0, RingBy: m.Config.Ring.String()}
	var end point.Nanos
	for p := range m.All() {
		if r.Begin == "" {
			r.Begin, end = instant(p.TimeLo), p.TimeHi
		}
		end = max(end, p.TimeHi)
		r.End = instant(end)
	}
	for _, l := range m.Layouts {
		r.Columns = append(r.Columns, tableColumns{From: instant(l.From), Weights: l.Weights})
	}
	return r
}

// minInSync says how many servers must keep a row.
func (r *tableRow) minInSync() string {
	if r.MinInSyncSet {
		return fmt.Sprintf("%d, as set: fewer servers take no rows", r.MinInSync)
	}
	return fmt.Sprintf("%d, by the number of replicas", r.MinInSync)
}

func instant(t point.Nanos) string { return time.Unix(0, t).UTC().Format(time.RFC3339Nano) }

// SpanText is a span as commands show it; 0 stands for ever.
func SpanText(d setting.Span) string {
	if d == 0 {
		return "for ever"
	}
	return model.Duration(d).String()
}

// TableList lists the tables.
type TableList struct {
	TableFlags `embed:""`
}

// Run lists the tables.
func (c *TableList) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	var rows []tableRow
	if err := c.ask(http.MethodGet, TablesPath, nil, nil, &rows); err != nil {
		return err
	}
	return printTables(c.local(), rows)
}

func (c *TableList) run(_ context.Context, a *admin) error {
	rows := []tableRow{}
	for _, m := range a.maps() {
		r := showTable(m)
		r.Dropping = a.tables.Dropping(r.Table)
		rows = append(rows, r)
	}
	return errors.Join(printTables(a, rows), a.incomplete())
}

func printTables(a *admin, rows []tableRow) error {
	return a.print(rows, func(w io.Writer) {
		fmt.Fprintln(w, "TABLE\tSEQ\tPARTITIONS\tWIDTH\tRETENTION\tREPLICAS\tBEGIN\tEND")
		for _, r := range rows {
			name := r.Table
			if r.Dropping {
				name += " (being dropped)"
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%d\t%s\t%s\n", name, r.Seq, r.Partitions, SpanText(r.PartitionWidth), SpanText(r.Retention), r.Replicas, cmp.Or(r.Begin, "-"), cmp.Or(r.End, "-"))
		}
	})
}

// TableShow shows the settings and columns of a table.
type TableShow struct {
	TableFlags `embed:""`
	Table      string `arg:"" help:"Name."`
}

// Run shows a table.
func (c *TableShow) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	var row tableRow
	if err := c.ask(http.MethodGet, TablesPath+"/"+url.PathEscape(c.Table), nil, nil, &row); err != nil {
		return err
	}
	return printTable(c.local(), row)
}

func (c *TableShow) run(_ context.Context, a *admin) error {
	m, err := a.table(c.Table)
	if err != nil {
		return err
	}
	r := showTable(m)
	r.Dropping = a.tables.Dropping(c.Table)
	r.smearNow(m, time.Now(), a.takers())
	return printTable(a, r)
}

func printTable(a *admin, r tableRow) error {
	return a.print(r, func(w io.Writer) {
		if r.Dropping {
			fmt.Fprintf(w, "state\tbeing dropped: nothing is written to it until `spillway table drop` has ended\n")
		}
		fmt.Fprintf(w, "table\t%s\nmap\ttransaction %d, %d partitions\npartition width\t%s\nretention\t%s\nreplicas\t%d\nmin in sync\t%s\ncovers\t%s … %s\n",
			r.Table, r.Seq, r.Partitions, SpanText(r.PartitionWidth), SpanText(r.Retention), r.Replicas, r.minInSync(), cmp.Or(r.Begin, "-"), cmp.Or(r.End, "-"))
		for _, l := range r.Columns {
			from := "from " + l.From
			if l.From == instant(math.MinInt64) {
				from = "for all times"
			}
			fmt.Fprintf(w, "columns\t%s: weights %v\n", from, l.Weights)
		}
		if r.RingBy != "" {
			fmt.Fprintf(w, "ring by\t%s\n", r.RingBy)
		}
		if r.unsmeared != "" {
			fmt.Fprintf(w, "smear\t%s\n", r.unsmeared)
		}
		if s := r.Smear; s != nil {
			fmt.Fprintf(w, "smear\t%s, where partitions are narrower than %s\n", s.Window, SpanText(s.Threshold))
			if s.Now > 0 {
				fmt.Fprintf(w, "smear now\trows wait up to %s: %s\n", SpanText(s.Now), s.Why)
			} else {
				fmt.Fprintf(w, "smear now\trows do not wait: %s\n", s.Why)
			}
			if s.Kafka != "" {
				fmt.Fprintf(w, "smear kafka\t%s: rows that gateways read from Kafka wait in their topic, where queries do not see them\n", s.Kafka)
			}
		}
	})
}

// TableSettings are the settings of a table that a person may set.
type TableSettings struct {
	PartitionWidth *setting.Span `name:"partition-width" help:"Time that a partition covers: 1h, 1d."`
	Retention      *setting.Span `name:"retention" help:"How long rows are kept: 30d, 10y; 0 for ever."`
	Replicas       *int          `name:"replicas" help:"How many servers keep each row; of a new table 3, if not given. As many as there are while the cluster has fewer."`
	MinInSync      *int          `name:"min-in-sync" help:"How many servers must have a row on their disks before it is acked as kept by all; while fewer are in sync, rows are refused with 503, or wait in staging. 0: 2 of 2 and 3 replicas, more than half of more, and fewer while the cluster has fewer servers."`
	Weights        []uint32      `name:"weights" help:"Columns of the ring by their weights: 1,1,2."`
	RingBy         *string       `name:"ring-by" help:"Labels by which series lie beside one another on the ring: host, or host,job; path:8 takes the first eight bytes of a value, path:/2 all up to the second slash. Queries that name their values ask fewer servers. Only before the table's first row; empty: by all labels."`
	Smear          *string       `name:"smear" help:"How long rows wait on their way to narrow partitions, so that all servers accept rows at once: off, auto, or the longest wait, such as 30s (docs/smear.md)."`
	SmearBelow     *setting.Span `name:"smear-below" help:"Rows of partitions of this width and wider do not wait; 0: 1m."`
	SmearMax       *setting.Span `name:"smear-max" help:"The longest wait that --smear=auto may choose; 0: 2m."`
	SmearKafka     *string       `name:"smear-kafka" help:"Where rows that came by Kafka wait: stage, as all others, or wait: in their topic, whose offsets are committed when the rows are written; queries do not see them before."`
}

// body is the request body for the administrators' port of a process.
func (s TableSettings) body() *tableBody {
	b := tableBody(s)
	return &b
}

// ofOneProcess refuses the settings that only a cluster can have. Errors are Invalid.
func (s TableSettings) ofOneProcess() error {
	switch {
	case s.Replicas != nil && *s.Replicas > 1:
		return fault.Errorf(fault.Invalid, "a process that is alone keeps one copy; --replicas is for tables of a cluster")
	case s.MinInSync != nil && *s.MinInSync > 1:
		return fault.Errorf(fault.Invalid, "a process that is alone keeps one copy; --min-in-sync is for tables of a cluster")
	case s.RingBy != nil && *s.RingBy != "":
		return fault.Errorf(fault.Invalid, "a process that is alone has the whole ring; --ring-by is for tables of a cluster")
	case s.Smear != nil || s.SmearBelow != nil || s.SmearMax != nil || s.SmearKafka != nil:
		return fault.Errorf(fault.Invalid, "a process that is alone has no other servers to spread rows over; --smear is for tables of a cluster")
	}
	return nil
}

// over writes the settings that the command line names into c. Errors are Invalid.
func (s TableSettings) over(c *topology.Config) error {
	if s.PartitionWidth != nil {
		c.PartitionWidth = time.Duration(*s.PartitionWidth)
	}
	if s.Retention != nil {
		c.Retention = time.Duration(*s.Retention)
	}
	terminal.Over(&c.Replicas, s.Replicas)
	terminal.Over(&c.InSyncMin, s.MinInSync)
	if s.RingBy != nil {
		rule, err := point.ParseRingRule(*s.RingBy)
		if err != nil {
			return fault.Annotate(err, "--ring-by")
		}
		c.Ring = rule
	}
	if s.Smear != nil {
		mode, window, err := smear.ParseWindow(*s.Smear)
		if err != nil {
			return fault.Annotate(err, "--smear")
		}
		c.Smear.Mode, c.Smear.Window = mode, window
	}
	if s.SmearBelow != nil {
		c.Smear.Threshold = point.Nanos(*s.SmearBelow)
	}
	if s.SmearMax != nil {
		c.Smear.WindowMax = point.Nanos(*s.SmearMax)
	}
	if s.SmearKafka != nil {
		kafka, err := smear.ParseKafka(*s.SmearKafka)
		if err != nil {
			return fault.Annotate(err, "--smear-kafka")
		}
		c.Smear.Kafka = kafka
	}
	return nil
}

// TableCreate makes a table.
type TableCreate struct {
	TableFlags    `embed:""`
	TableSettings `embed:""`
	Table         string `arg:"" help:"Name."`
}

// Run makes a table.
func (c *TableCreate) Run() error {
	if err := tablename.Check(c.Table); err != nil { // "." is no part of a URL's path
		return err
	}
	if !c.alone() {
		return c.with(c.run)
	}
	return c.change(http.MethodPut, c.Table, url.Values{}, c.body())
}

func (c *TableCreate) run(ctx context.Context, a *admin) error {
	if err := tablename.Check(c.Table); err != nil { // writers could not name it
		return err
	}
	cfg := topology.Config{PartitionWidth: 24 * time.Hour, Replicas: settings.Default().Tables.Replicas}
	if err := errors.Join(c.TableSettings.over(&cfg), cfg.Validate()); err != nil {
		return err
	}
	if _, err := a.table(c.Table); !fault.Is(err, fault.NotFound) {
		if err != nil {
			return err
		}
		return fault.Errorf(fault.Stale, "table %q exists; `spillway table set` changes its settings", c.Table)
	}
	what := fmt.Sprintf("create table %s, width %s, retention %s, %d replicas", c.Table, SpanText(setting.Span(cfg.PartitionWidth)), SpanText(setting.Span(cfg.Retention)), max(cfg.Replicas, 1))
	if cfg.InSyncMin > 0 {
		what += fmt.Sprintf(", min in sync %d", cfg.InSyncMin)
	}
	if !cfg.Ring.IsZero() {
		what += fmt.Sprintf(", ring by %s", cfg.Ring)
	}
	return a.act(ctx, "", what, func() error {
		m, err := a.tables.Create(ctx, c.Table, cfg)
		if fault.Is(err, fault.Unavailable) && a.servers != nil { // servers that do not run may have been chosen to keep its map
			if a.silent, err = a.silents(ctx); err == nil {
				m, err = a.tables.Create(ctx, c.Table, cfg)
			}
		}
		if err == nil && len(c.Weights) > 0 {
			var op topology.Op
			if op, err = columns(m, c.Weights, time.Time{}); err == nil {
				_, err = a.tables.Change(ctx, c.Table, func(*topology.Map) ([]topology.Op, error) { return []topology.Op{op}, nil })
			}
		}
		if err != nil {
			return err
		}
		return a.done("table %s is made", c.Table)
	})
}

// silents listens for a moment, and returns the servers that sent no heartbeat.
func (a *admin) silents(ctx context.Context) (map[topology.ServerID]bool, error) {
	s, _, err := a.look(ctx)
	silent := map[topology.ServerID]bool{}
	for _, srv := range s.Servers {
		if !srv.Live {
			silent[srv.ID] = true
		}
	}
	return silent, err
}

// columns makes the op that cuts the ring by weights from a boundary on; zero: the first boundary without data.
func columns(m *topology.Map, weights []uint32, from time.Time) (topology.Op, error) {
	now := time.Now().UnixNano()
	at := now
	for p := range m.All() {
		at = max(at, p.TimeHi)
	}
	_, boundary := m.Config.Aligned(at - 1)
	switch {
	case !from.IsZero():
		boundary = from.UnixNano()
	case m.Len() == 0:
		boundary = math.MinInt64 // there is no data anywhere: from ever, rows of past times too
	}
	if !from.IsZero() {
		if _, err := nanosOf(from); err != nil {
			return nil, fault.Annotate(err, "--columns-from")
		}
	}
	ranges, err := topology.Spread(m.RangesAt(boundary), weights)
	if err != nil {
		return nil, err
	}
	return topology.SetColumns{Now: now, Layout: topology.Layout{From: boundary, Weights: weights, Ranges: ranges}}, nil
}

// TableSet changes settings of a table.
type TableSet struct {
	TableFlags    `embed:""`
	TableSettings `embed:""`
	Table         string    `arg:"" help:"Name."`
	From          time.Time `name:"columns-from" help:"When --weights take effect: a multiple of the partition width, after all partitions that exist (default the first such time)."`
	Confirm       string    `name:"confirm" help:"The table's name again, where a shorter --retention deletes rows now."`
	Reason        string    `name:"reason" help:"Why, for the audit."`
	DryRun        bool      `name:"dry-run" help:"Show what would be changed."`
}

// Run changes a table's settings. Shortening the retention deletes rows, after confirmation: the master does it.
func (c *TableSet) Run() error {
	if reflect.ValueOf(c.TableSettings).IsZero() {
		return fault.Errorf(fault.Invalid, "nothing to set: give --retention, or another of the settings that `spillway table set --help` lists")
	}
	if !c.alone() {
		return c.with(c.run)
	}
	if !c.From.IsZero() {
		return fault.Errorf(fault.Invalid, "--columns-from needs --servers")
	}
	return c.change(http.MethodPatch, c.Table, url.Values{"reason": {c.Reason}, "dry_run": {fmt.Sprint(c.DryRun)}, "confirm": {c.Confirm}}, c.body())
}

func (c *TableSet) run(ctx context.Context, a *admin) error {
	m, err := a.table(c.Table)
	if err != nil {
		return err
	}
	plan := func(m *topology.Map) ([]topology.Op, error) {
		cfg := m.Config
		if err := c.TableSettings.over(&cfg); err != nil {
			return nil, err
		}
		ops := []topology.Op{topology.SetConfig{Config: cfg, Notes: cfg.Replicas != m.Config.Replicas}}
		if len(c.Weights) > 0 {
			set, err := m.Apply(ops...) // columns begin at a multiple of the new width
			if err != nil {
				return nil, err
			}
			op, err := columns(set, c.Weights, c.From)
			if err != nil {
				return nil, err
			}
			ops = append(ops, op)
		}
		return ops, nil
	}
	ops, err := plan(m)
	if err != nil {
		return err
	}
	next, err := m.Apply(ops...)
	if err != nil {
		return err
	}
	before, after := showTable(m), showTable(next)
	what := fmt.Sprintf("set table %s: width %s → %s, retention %s → %s, replicas %d → %d", c.Table, SpanText(before.PartitionWidth), SpanText(after.PartitionWidth),
		SpanText(before.Retention), SpanText(after.Retention), before.Replicas, after.Replicas)
	if before.MinInSync != after.MinInSync || before.MinInSyncSet != after.MinInSyncSet {
		what += fmt.Sprintf(", min in sync %s → %s", before.minInSync(), after.minInSync())
	}
	if m.Config.Ring != next.Config.Ring {
		what += fmt.Sprintf(", ring by %q → %q", m.Config.Ring, next.Config.Ring)
	}
	if m.Config.Smear != next.Config.Smear {
		what += fmt.Sprintf(", smear %s → %s", m.Config.Smear, next.Config.Smear)
	}
	if len(c.Weights) > 0 {
		what += fmt.Sprintf(", columns %v from %s", c.Weights, after.Columns[len(after.Columns)-1].From)
	}
	lost := expires(m, next)
	if lost > 0 {
		what += fmt.Sprintf(", which deletes %d of its %d partitions now", lost, m.Len())
	}
	if c.DryRun {
		return a.done("would %s", what)
	}
	if lost > 0 && c.Confirm != c.Table {
		return fault.Errorf(fault.Invalid, "of the %d partitions of table %s %d are older than %s, and their rows would be deleted; if that is meant, add --confirm=%s (over HTTP: ?confirm=)",
			m.Len(), c.Table, lost, SpanText(after.Retention), c.Table)
	}
	return a.act(ctx, c.Reason, what, func() error {
		if a.keeping != nil && m.Config.Retention != next.Config.Retention {
			if err := a.keeping(ctx, m, next, lost > 0 && !a.unseen); err != nil {
				return err
			}
		}
		if _, err := a.tables.Change(ctx, c.Table, plan); err != nil {
			return err
		}
		return a.done("%s", what)
	})
}

// expires counts the partitions that are too old by the settings of next, and not by those of m.
func expires(m, next *topology.Map) int {
	now := time.Now().UnixNano()
	return len(next.Expired(now)) - len(m.Expired(now))
}

// TableDrop deletes a table with all its rows.
type TableDrop struct {
	TableFlags `embed:""`
	Table      string `arg:"" help:"Name."`
	Confirm    string `name:"confirm" help:"The table's name again."`
	Reason     string `name:"reason" help:"Why, for the audit."`
	DryRun     bool   `name:"dry-run" help:"Show what would be deleted."`
}

// Run marks the table as being dropped, so that writers cannot go on, and drops all partitions, so that servers delete
// their rows; waits until no server holds one; then forgets the table and its lease rows.
func (c *TableDrop) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.change(http.MethodDelete, c.Table, url.Values{"reason": {c.Reason}, "dry_run": {fmt.Sprint(c.DryRun)}, "confirm": {c.Confirm}}, nil)
}

func (c *TableDrop) run(ctx context.Context, a *admin) error {
	return c.drop(ctx, a, func() error { return c.dropCluster(ctx, a) })
}

// drop drops the table after confirmation.
func (c *TableDrop) drop(ctx context.Context, a *admin, drop func() error) error {
	m, err := a.table(c.Table)
	if err != nil {
		return err
	}
	if c.DryRun {
		return a.done("would drop table %s with %d partitions and all their rows", c.Table, m.Len())
	}
	if c.Confirm != c.Table {
		return fault.Errorf(fault.Invalid, "table %s has %d partitions, and all their rows would be deleted; if that is meant, add --confirm=%s", c.Table, m.Len(), c.Table)
	}
	return a.act(ctx, c.Reason, fmt.Sprintf("drop table %s with %d partitions", c.Table, m.Len()), func() error {
		if err := drop(); err != nil {
			return err
		}
		return a.done("table %s is dropped", c.Table)
	})
}

func (c *TableDrop) dropCluster(ctx context.Context, a *admin) error {
	if err := a.tables.BeginDrop(ctx, c.Table); err != nil {
		return err
	}
	if err := a.untilFree(ctx, c.Table); err != nil {
		return err
	}
	if err := a.tables.EndDrop(ctx, c.Table); err != nil {
		return err
	}
	// The table is dropped. The master removes the rows that are left: where a writer has made the table again already, and where the store
	// gives no answer. An error would have a person drop the table once more, which may be one that a writer has made since.
	err := master.ForgetTable(ctx, a.store, c.Table)
	switch {
	case err == nil || fault.Is(err, fault.Stale):
		return nil
	case fault.Is(err, fault.Unavailable):
		a.log.Warn("the table is dropped; the master removes its lease rows", "table", c.Table, "error", err)
		return nil
	}
	return err
}

// untilFree waits until no live server holds a lease of a table that is being dropped, or the master has ended the drop: leases may be those of a table of
// the same name by then.
func (a *admin) untilFree(ctx context.Context, table string) error {
	for {
		if on, err := a.tables.DropGoesOn(ctx, table); err == nil && !on {
			return nil
		}
		s, _, err := a.look(ctx)
		if err != nil {
			return fault.Annotate(err, "the partitions are dropped, and not all servers have released them yet: nothing is written to the table until the command is run again, and ends")
		}
		held := ""
		for p, l := range s.Leases {
			for _, srv := range s.Servers {
				if p.Table == table && l.State == lease.Held && l.Holder == srv.ID && srv.Live {
					held = fmt.Sprintf("%s by %s", p, srv.ID)
				}
			}
		}
		if held == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fault.Errorf(fault.Unavailable, "the partitions are dropped, and %s is still held: nothing is written to the table until the command is run again, and ends", held)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
