package administration

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
	"github.com/spillwaydb/spillway/smear"
)

// TableAdvise computes settings from a table's recorded load.
type TableAdvise struct {
	TableFlags `embed:""`
	Table      string        `arg:"" help:"Name."`
	Rows       float64       `name:"rows-per-second" help:"The load to go by, for a table that has none yet. Default: the most that is forecast for the next day." placeholder:"N"`
	RowBytes   float64       `name:"row-bytes" help:"Bytes of a row at rest. Default: as measured, else 2." placeholder:"N"`
	ServerRows float64       `name:"server-rows" help:"Rows a second that one storage server should accept for this table. Default: the least that a server measured while it was busy, for 70 % of its processors; until then 200000." placeholder:"N"`
	SplitBytes setting.Bytes `name:"split-bytes" help:"tables.split_bytes of the storage servers." default:"1GiB"`
	Whole      bool          `name:"whole-ranges" help:"Keep each range of time on one server: narrow partitions and smearing instead of columns of the ring."`
	Apply      bool          `name:"apply" help:"Change the table so."`
	DryRun     bool          `name:"dry-run" help:"With --apply: show what would be changed."`
	Reason     string        `name:"reason" help:"With --apply: why, for the audit."`
}

// Run reads the load and prints the advice.
func (c *TableAdvise) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	var out tableAdvice
	if err := c.ask(http.MethodGet, TablesPath+"/"+url.PathEscape(c.Table)+"/advice", c.query(), nil, &out); err != nil {
		return err
	}
	if err := c.print(c.local(), &out); err != nil || !c.Apply {
		return err
	}
	if out.Set == nil {
		return c.local().done("table %s is as advised", c.Table)
	}
	return c.change(http.MethodPatch, c.Table, url.Values{"reason": {c.Reason}, "dry_run": {fmt.Sprint(c.DryRun)}}, out.Set)
}

// query are the parameters of the request for advice.
func (c *TableAdvise) query() url.Values {
	q := url.Values{"split_bytes": {c.SplitBytes.String()}, "whole_ranges": {strconv.FormatBool(c.Whole)}}
	for name, v := range map[string]float64{"rows_per_second": c.Rows, "row_bytes": c.RowBytes, "server_rows": c.ServerRows} {
		if v != 0 {
			q.Set(name, strconv.FormatFloat(v, 'g', -1, 64))
		}
	}
	return q
}

// adviceOf reads the parameters of a request for advice, which changes nothing. Errors are Invalid.
func adviceOf(table string, q url.Values) (*TableAdvise, error) {
	c := &TableAdvise{Table: table, SplitBytes: AdviseSplitBytes, Whole: q.Get("whole_ranges") == "true"}
	for name, v := range map[string]*float64{"rows_per_second": &c.Rows, "row_bytes": &c.RowBytes, "server_rows": &c.ServerRows} {
		if text := q.Get(name); text != "" {
			var err error
			if *v, err = strconv.ParseFloat(text, 64); err != nil {
				return nil, fault.Errorf(fault.Invalid, "%s is no number: %q", name, text)
			}
		}
	}
	if text := q.Get("split_bytes"); text != "" {
		if err := c.SplitBytes.UnmarshalText([]byte(text)); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "split_bytes")
		}
	}
	return c, nil
}

func (c *TableAdvise) print(a *admin, out *tableAdvice) error {
	return a.print(out, func(w io.Writer) { out.draw(w, c.Table) })
}

func (c *TableAdvise) run(ctx context.Context, a *admin) error {
	out, err := c.advice(ctx, a)
	if err != nil {
		return err
	}
	if err := c.print(a, &out); err != nil || !c.Apply {
		return err
	}
	if out.Set == nil {
		return a.done("table %s is as advised", c.Table)
	}
	return (&TableSet{Table: c.Table, TableSettings: TableSettings(*out.Set), Reason: c.Reason, DryRun: c.DryRun}).run(ctx, a)
}

// adviseMost bounds the numbers to go by: more than all clusters together, and exact in the sums.
const adviseMost = 1e12

// advice measures the table and its servers, and says how the table should be set.
func (c *TableAdvise) advice(ctx context.Context, a *admin) (out tableAdvice, err error) {
	m, err := a.table(c.Table)
	if err != nil {
		return out, err
	}
	for flag, v := range map[string]float64{"--rows-per-second": c.Rows, "--row-bytes": c.RowBytes, "--server-rows": c.ServerRows} {
		if !(v >= 0) || v > adviseMost {
			return out, fault.Errorf(fault.Invalid, "%s has to be positive, and at most %g", flag, float64(adviseMost))
		}
	}
	in := loadOf{Rows: c.Rows, RowBytes: c.RowBytes, ServerRows: c.ServerRows, SplitBytes: float64(c.SplitBytes), Whole: c.Whole,
		Servers: a.takers(), Replicas: max(m.Config.Replicas, 1), MinInSync: m.Config.MinInSync(), Retention: m.Config.Retention, Width: m.Config.PartitionWidth,
		Columns: max(len(m.RangesAt(time.Now().UnixNano())), 1), Smear: m.Config.Smear}
	if err := c.measure(ctx, a, &in); err != nil {
		return out, err
	}
	if in.ServerRows == 0 {
		in.ServerRows, in.Measured = a.capacity(ctx, c.Table)
	}
	if !(in.ServerRows > 0) || !(in.SplitBytes > 0) || !(in.Rows >= 0) || math.IsInf(in.Rows, 0) {
		return out, fault.Errorf(fault.Invalid, "--rows-per-second, --server-rows and --split-bytes have to be positive")
	}
	out = in.advise()
	out.Set = out.changes(&in)
	return out, nil
}

// measure fills the numbers that the command line leaves out from the recorded growth.
func (c *TableAdvise) measure(ctx context.Context, a *admin, in *loadOf) error {
	all, err := a.growth(ctx)
	if err != nil {
		return err
	}
	var bytes, rows float64
	known := false
	now := time.Now().UnixNano()
	if g := all[c.Table]; g != nil {
		for _, col := range g.Columns() {
			f, ok := col.Rows.Forecast(min(now, col.Rows.Until()), now+int64(24*time.Hour))
			if !ok {
				continue
			}
			most := 0.0
			for at := now; at < now+int64(24*time.Hour); at += int64(10 * time.Minute) {
				most = max(most, f.Rate(at))
			}
			known, rows, bytes = true, rows+most, bytes+most*col.BytesPerRow
		}
	}
	if in.RowBytes == 0 && rows > 0 {
		in.RowBytes = bytes / rows
	}
	in.RowBytes = cmp.Or(in.RowBytes, adviseRowBytes)
	if in.Rows == 0 {
		if !known {
			return fault.Errorf(fault.Unavailable, "too little of the load of table %q is recorded: the master writes it every ten minutes; or give --rows-per-second", c.Table)
		}
		in.Rows = rows
	}
	return nil
}

// capacity is the least that a server measured, and how; or an assumption while none has.
func (a *admin) capacity(ctx context.Context, table string) (rows float64, how string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if a.servers == nil { // a process that is alone: nothing could be spread
		return adviseServerRows, "assumed"
	}
	ids := a.serverIDs()
	all := make([]peer.Capacity, len(ids))
	var g errgroup.Group
	g.SetLimit(8)
	for i, id := range ids {
		if st, ok := a.peers.Server(id); ok {
			g.Go(func() error {
				if stats, err := st.Stats(ctx, table, 0); err == nil { // one that does not answer is not the least
					all[i] = stats.Capacity
				}
				return nil
			})
		}
	}
	_ = g.Wait()
	return leastCapacity(ids, all)
}

// leastCapacity chooses among what servers measured.
func leastCapacity(ids []topology.ServerID, all []peer.Capacity) (rows float64, how string) {
	known, least := 0, 0
	for i, c := range all {
		if c.RowsPerSecond <= 0 {
			continue
		}
		if known == 0 || c.RowsPerSecond < all[least].RowsPerSecond {
			least = i
		}
		known++
	}
	if known == 0 {
		return adviseServerRows, "assumed: no server was busy for five minutes of the last ones it remembers, or answered; --server-rows sets it"
	}
	return all[least].RowsPerSecond, fmt.Sprintf("measured: the least of %d servers that were busy, %s in %d minutes, for 70 %% of its processors", known, ids[least], all[least].Minutes)
}

const (
	adviseRowBytes = 2.0
	// AdviseSplitBytes is the default of tables.split_bytes.
	AdviseSplitBytes = 1 << 30
	// adviseServerRows is what a server accepts a second until servers have measured it.
	adviseServerRows = 200_000
	// adviseStagedBytes is about the size of a row while it waits: its series is defined in each frame.
	adviseStagedBytes = 60.0
	// adviseFollower is the CPU time of a follower for a row, as a part of the leader's.
	adviseFollower = 0.5
	// adviseRoom is the share of the partitions that a table may have which narrow ones may fill until retention drops them.
	adviseRoom = 0.8
)

// narrowWidths are the widths of partitions that are advised for smearing.
var narrowWidths = [...]time.Duration{10 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second}

// loadOf is what advice follows from.
type loadOf struct {
	Rows, RowBytes    float64 // a second at the busiest time to come; of one at rest
	ServerRows        float64 // what one server should accept a second
	Measured          string  // how that is known; "": it was given
	SplitBytes        float64
	Whole             bool
	Servers, Replicas int
	MinInSync         int // servers that keep a row which waits

	// As the table is.
	Retention, Width time.Duration
	Columns          int
	Smear            smear.Rule
}

// tableAdvice is how a table should be set, and why.
type tableAdvice struct {
	Rows          float64      `json:"rows_per_second"`
	RowBytes      float64      `json:"bytes_per_row"`
	ServerRows    float64      `json:"server_rows_per_second"`
	ServersNeeded int          `json:"servers_needed"`
	Width         setting.Span `json:"partition_width"`
	Columns       int          `json:"columns"`
	Smear         string       `json:"smear"`
	Window        setting.Span `json:"window"`
	Why           []string     `json:"why"`
	// Set are the settings to change; nil: the table is as advised.
	Set *tableBody `json:"set,omitempty"`
}

func (a *tableAdvice) because(format string, args ...any) {
	a.Why = append(a.Why, fmt.Sprintf(format, args...))
}

// changes are the settings in which the table differs; nil: there are none.
func (a *tableAdvice) changes(l *loadOf) *tableBody {
	b := &tableBody{}
	if time.Duration(a.Width) != l.Width {
		b.PartitionWidth = &a.Width
	}
	if mode, _, _ := smear.ParseWindow(a.Smear); mode != l.Smear.Mode {
		b.Smear = &a.Smear
	}
	if a.Columns != l.Columns {
		for range a.Columns {
			b.Weights = append(b.Weights, 1)
		}
	}
	if b.PartitionWidth == nil && b.Smear == nil && b.Weights == nil {
		return nil
	}
	return b
}

// advise is pure.
func (l loadOf) advise() tableAdvice {
	a := tableAdvice{Rows: l.Rows, RowBytes: l.RowBytes, ServerRows: l.ServerRows, Width: setting.Span(l.Width), Columns: 1, Smear: "off"}
	if l.Width < time.Hour { // it was for smearing; wide ones are cut by size
		a.Width = setting.Span(24 * time.Hour)
	}
	if l.Retention > 0 {
		a.Width = setting.Span(max(min(time.Duration(a.Width), l.Retention), time.Duration(presplit.WidthMin)))
	}
	work := l.Rows * (1 + adviseFollower*float64(l.Replicas-1)) / l.ServerRows
	a.ServersNeeded = max(int(math.Ceil(work)), 1)
	a.because("%.0f rows/s with %d replicas are the work of %d servers at %.0f rows/s each (a follower spends half of what a leader does)", l.Rows, l.Replicas, a.ServersNeeded, l.ServerRows)
	if l.Measured != "" {
		a.because("%.0f rows/s a server are %s", l.ServerRows, l.Measured)
	}
	if a.ServersNeeded > l.Servers {
		a.because("there are only %d servers that take partitions: add servers, or rows will wait and be refused", l.Servers)
	}
	fill := time.Duration(min(l.SplitBytes/max(l.Rows*l.RowBytes, 1), 1e9)) * time.Second
	switch {
	case l.Rows <= l.ServerRows || l.Servers <= 1:
		a.because("one server at a time can lead the whole table: neither columns nor smearing are needed")
	case l.Whole && a.narrow(&l):
		return a
	default:
		a.columns(&l)
	}
	if fill < time.Duration(a.Width) {
		a.because("partitions are cut ahead of their time: each of %s takes about %s to fill", master.Bytes(int64(l.SplitBytes)), (fill * time.Duration(a.Columns)).Round(time.Second))
	} else {
		a.because("a partition of %s stays below %s: it is not cut", SpanText(a.Width), master.Bytes(int64(l.SplitBytes)))
	}
	return a
}

// columns spreads a moment over as many servers as needed; a divisor of all where there is one.
func (a *tableAdvice) columns(l *loadOf) {
	need := min(a.ServersNeeded, l.Servers)
	a.Columns = need
	for n := need; n <= l.Servers; n++ {
		if l.Servers%n == 0 {
			a.Columns = n
			break
		}
	}
	a.because("%d columns of the ring are led by %d servers at a moment; that costs nothing a row", a.Columns, a.Columns)
}

// narrow advises partitions of seconds and smearing; false: they do not fit.
func (a *tableAdvice) narrow(l *loadOf) bool {
	rule := smear.Rule{Mode: smear.Auto, Threshold: l.Smear.Threshold, WindowMax: l.Smear.WindowMax}.WithDefaults()
	room := float64(topology.TablePartitionsMax) * adviseRoom
	if l.Retention == 0 {
		a.because("--whole-ranges: a table that keeps its rows for ever would have more than %d partitions of seconds: set a retention, or use columns", topology.TablePartitionsMax)
		return false
	}
	for _, w := range narrowWidths {
		load := smear.Load{Width: point.Nanos(w), Columns: 1, Servers: l.Servers}
		load.Columns = rule.ColumnsFor(load)
		window, why := rule.Wanted(load)
		if float64(l.Retention/w)*float64(load.Columns) > room || window == 0 {
			continue
		}
		a.Width, a.Columns, a.Smear, a.Window = setting.Span(w), load.Columns, "auto", setting.Span(window)
		a.because("partitions of %s lie on the servers in turn; a window of %s (%s) fills those of %d servers at once", SpanText(a.Width), SpanText(a.Window), why, min(l.Servers, int(window/load.Width)*load.Columns))
		waiting := l.Rows * time.Duration(window).Seconds() / 2
		holders := float64(l.MinInSync)
		each := waiting * holders / float64(l.Servers) * adviseStagedBytes
		a.because("%.0f rows wait at a moment, about %s on each server: storage.staging_bytes_max should be %s or more, since smeared rows may take half of it", waiting, master.Bytes(int64(each)), master.Bytes(int64(2*each)))
		a.because("where old ones are not merged (tables.merge_from) there are %d partitions of the %d that a table may have; rows that wait cost more CPU: see docs/smear.md", int(l.Retention/w)*load.Columns, topology.TablePartitionsMax)
		return true
	}
	a.because("--whole-ranges: partitions of at most %v would be too many within the retention of %s, or no window fits: columns instead", narrowWidths[len(narrowWidths)-1], SpanText(setting.Span(l.Retention)))
	return false
}

func (a *tableAdvice) draw(w io.Writer, table string) {
	fmt.Fprintf(w, "table\t%s\nload\t%.0f rows/s of %.2f B\npartition width\t%s\ncolumns\t%d\nsmear\t%s\n", table, a.Rows, a.RowBytes, SpanText(a.Width), a.Columns, a.Smear)
	for i, why := range a.Why {
		label := ""
		if i == 0 {
			label = "because"
		}
		fmt.Fprintf(w, "%s\t%s\n", label, why)
	}
}
