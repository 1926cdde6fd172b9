package forward

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/follow/runner"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/pace"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/share"
)

// Servers finds storage servers by their names in partition maps.
type Servers interface {
	Server(id topology.ServerID) (peer.Storage, bool)
	// IDs lists the servers that can be reached now, in a steady order.
	IDs() []topology.ServerID
}

// Limits are those of the series of one table. They may change at any time. Safe for concurrent use.
type Limits interface {
	// LabelLimits bound the labels of a series that is new.
	LabelLimits() point.LabelLimits
	// LabelsRefused is given the number of series that exceeded them.
	LabelsRefused(series int)
	// NewSeries is asked for every series that is new to a dictionary; the arguments are the dictionary's series and the
	// places it holds for others. It must be short, for the dictionary is locked. The error is that of the series' rows.
	NewSeries(known, reserved int) error
	// ActiveSeriesMax is how many series NewSeries lets into one dictionary; 0: as many as come.
	ActiveSeriesMax() int
	// Weight is how often the table counts among those that share the memory for series; 1 and more.
	Weight() int64
	// Renumbered reports that a dictionary with so many series is followed by an empty one.
	Renumbered(known int)
}

// Deps are the dependencies of forwarding.
type Deps struct {
	Tables  *tables.Tables
	Servers Servers
	Leaders runner.Leaders // nil: the first placement of every partition leads, always, as in a process that is alone
	// ReadOnly is the reason why a server accepts no rows, as its heartbeats say; "": it accepts them. Nil: not known of any, and Unavailable is asked again.
	ReadOnly func(server topology.ServerID) string
	// Live reports whether heartbeats of a server come. Nil: not known of any, and shares of dead leaders are not counted as leaderless.
	Live   func(server topology.ServerID) bool
	Clock  *Clock
	Log    *slog.Logger
	Limits func(table string) Limits // nil: Settings.Labels bound labels, and nothing else bounds series
	// Relabel returns the rules by which series of a table are rewritten, the same value as long as they do not change. Nil: none are.
	Relabel func(table string) point.Relabeller
	// Replicas returns the labels by which senders of the same series of a table differ. Nil, and the zero value: none.
	Replicas func(table string) point.ReplicaLabels

	// Staging chooses the servers that keep rows while their leader is away. Nil: writes wait for the leader. Ping asks a server for a sign of life, and LastReceived
	// returns when it last sent anything.
	Staging      Staging
	Ping         func(ctx context.Context, server topology.ServerID) error
	LastReceived func(server topology.ServerID) time.Time

	Registerer prometheus.Registerer // nil: metrics are counted and shown nowhere
}

// Settings are numbers a user sets.
type Settings struct {
	// GenerationAge is how long a dictionary of series is used. Default 2 h. Larger: series that are gone use memory
	// for longer; smaller: more definitions travel.
	GenerationAge time.Duration
	// GenerationSeriesMax bounds the series in the dictionaries of all tables, which share them (live.go). Rows of series
	// beyond are refused as Invalid until others are gone; series in a dictionary go on. Default point.DictSeriesMax.
	GenerationSeriesMax int
	// Labels bound the labels of new series; beyond them rows are refused as Invalid with the name of the series. Default
	// point.DefaultLabelLimits.
	Labels point.LabelLimits
	// GenerationAgeMin is how soon a dictionary that fills up may be followed by a new one. Default 10 min. Larger: series
	// that are gone keep new ones out for longer; smaller: with more active series than fit, all are numbered again and
	// again, which costs ten times what their rows do.
	GenerationAgeMin time.Duration
	// InsertRowsMax and InsertBytesMax are where an insert is cut in two; bytes are counted as if every row brought its
	// series along. Default 65,536 and 24 MiB: a frame of either fits into the log's records of 32 MiB.
	InsertRowsMax  int
	InsertBytesMax int
	// PartitionsMax bounds the partitions that rows can create in one table. Rows beyond wait: the write is Unavailable,
	// the other rows of their batch are kept. Default topology.TablePartitionsMax.
	PartitionsMax int
	// NewPartitionsPerWrite bounds the partitions that one write makes; rows that need more are refused as Throttled after
	// all others are kept, and are accepted when they are sent again. Default 64. Larger: a request holds the disk for
	// longer, 3 waits for it a partition.
	NewPartitionsPerWrite int
	// NewPartitionsPerSecond bounds those that rows make in one table, beyond a burst of four writes; the partition of
	// now is not counted. Default 50: ten years of days need a minute. Larger: one table uses more of the disk from others.
	NewPartitionsPerSecond int
	// Smear lets rows of tables with a rule for smearing wait in staging. It needs Deps.Staging. Default off.
	Smear bool
	// Timeout is how long a write keeps trying while servers do not have a partition or its leader is away; then it is
	// answered as Unavailable, or Stale. In a cluster it also ends calls that a server does not answer. Default 5 s: enough
	// for a partition that moves, and as long as common senders wait. Larger: waiting requests use memory for longer.
	Timeout time.Duration
}

// SetDefaults gives fields that are zero their defaults.
func (s *Settings) SetDefaults() {
	if s.Timeout == 0 {
		s.Timeout = 5 * time.Second
	}
	if s.GenerationAge == 0 {
		s.GenerationAge = 2 * time.Hour
	}
	if s.GenerationAgeMin == 0 {
		s.GenerationAgeMin = s.GenerationAge / 12
	}
	if s.GenerationSeriesMax == 0 {
		s.GenerationSeriesMax = point.DictSeriesMax
	}
	if s.Labels == (point.LabelLimits{}) {
		s.Labels = point.DefaultLabelLimits
	}
	if s.InsertRowsMax == 0 {
		s.InsertRowsMax = 1 << 16
	}
	if s.InsertBytesMax == 0 {
		s.InsertBytesMax = 24 << 20
	}
	if s.PartitionsMax == 0 {
		s.PartitionsMax = topology.TablePartitionsMax
	}
	if s.NewPartitionsPerWrite == 0 {
		s.NewPartitionsPerWrite = 64
	}
	if s.NewPartitionsPerSecond == 0 {
		s.NewPartitionsPerSecond = 50
	}
}

// Forwarder writes into tables. Safe for concurrent use.
type Forwarder struct {
	// Constant after New.
	deps     Deps
	settings Settings
	follow   *runner.Runner
	metrics  *metrics

	budget  budget
	absence absence
	slow    slowServers
	series  *share.Pool  // that are active, of all tables: GenerationSeriesMax of them
	wanted  atomic.Int64 // unix nanoseconds when a table within its share was last refused a series
	aging   aging
	closed  atomic.Bool

	mu struct {
		sync.RWMutex
		tables map[string]*Table
	}
}

// New makes a forwarder.
func New(d Deps, s Settings) *Forwarder {
	s.SetDefaults()
	f := &Forwarder{deps: d, settings: s, metrics: newMetrics(d.Registerer), follow: &runner.Runner{
		Policy: follow.Writes(s.Timeout, d.Leaders == nil), Tables: d.Tables, Leaders: d.Leaders, Maps: tables.NewRefresher(d.Tables, d.Log)}}
	f.series = share.NewReserved(int64(s.GenerationSeriesMax))
	f.metrics.shows(d.Registerer, f.series)
	if d.Staging != nil {
		f.follow.Policy.StageAfter, f.follow.Ping, f.follow.LastReceived = follow.SilenceMax, d.Ping, d.LastReceived
	}
	if d.Leaders == nil {
		f.follow.Leaders = constant{}
	}
	f.mu.tables = map[string]*Table{}
	return f
}

// Table gives a table to write to; it is made if that is allowed. Errors are those of Tables.Ensure.
func (f *Forwarder) Table(ctx context.Context, name string) (*Table, error) {
	f.mu.RLock()
	t, ok := f.mu.tables[name]
	f.mu.RUnlock()
	if ok {
		return t, nil
	}
	if _, err := f.deps.Tables.Ensure(ctx, name); err != nil {
		return nil, err
	}
	return f.opened(name), nil
}

// Existing gives a table that is there, and never makes one: a reader that names a table which was dropped a moment ago must not bring it back. The error
// is NotFound.
func (f *Forwarder) Existing(name string) (*Table, error) {
	if _, ok := f.deps.Tables.Get(name); !ok {
		return nil, fault.Errorf(fault.NotFound, "there is no table %q", name)
	}
	return f.opened(name), nil
}

func (f *Forwarder) opened(name string) *Table {
	f.mu.RLock()
	t, ok := f.mu.tables[name]
	f.mu.RUnlock()
	if ok {
		return t
	}
	t = &Table{f: f, name: name, pace: f.settings.newPace(), series: f.series.Member(), tooMany: errTooMany(name, f.series)}
	if f.deps.Limits != nil { // not under the lock: the registry of limits calls Holds under its own lock
		t.limits = f.deps.Limits(name)
	}
	t.current.Store(t.newGeneration(&seriesBook{}))
	f.mu.Lock()
	defer f.mu.Unlock()
	if other, ok := f.mu.tables[name]; ok {
		return other
	}
	f.mu.tables[name] = t
	return t
}

// Holds reports whether there is state of a table here, which may have been dropped.
func (f *Forwarder) Holds(name string) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	_, ok := f.mu.tables[name]
	return ok
}

// forget frees the state of a table that was dropped. Writes that began with it are refused; the next ones get a new Table.
func (f *Forwarder) forget(t *Table) {
	f.mu.Lock()
	if f.mu.tables[t.name] == t {
		delete(f.mu.tables, t.name)
	}
	f.mu.Unlock()
	if err := t.end(); err != nil {
		f.deps.Log.Warn("closing the streams of a table that was dropped", "table", t.name, "error", err)
	}
}

// Close ends all streams.
func (f *Forwarder) Close() error {
	f.closed.Store(true)
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, t := range f.mu.tables {
		errs = append(errs, t.current.Load().retire())
	}
	return errors.Join(errs...)
}

// Table is the way into one table.
type Table struct {
	f       *Forwarder
	name    string
	pace    *pace.Bucket  // of new partitions
	limits  Limits        // nil: none
	series  *share.Member // of Forwarder.series
	tooMany error

	smearing smearing

	current atomic.Pointer[generation]
	turn    sync.Mutex  // one generation begins at a time
	ended   atomic.Bool // none begins any more: the table was dropped; written under turn
	old     atomic.Pointer[generation]

	cutters sync.Pool // *route.Cutter

	merged struct {
		sync.Mutex
		warned map[string]bool // metrics
	}
}

// Dict gives the dictionary for the next batch.
func (t *Table) Dict() *point.Dict {
	if other := t.f.aging.next(t.f); other != nil {
		if _, exists := t.f.deps.Tables.Get(other.name); exists {
			other.dict()
		} else if other != t {
			t.f.forget(other)
		}
	}
	return t.dict()
}

// dict returns the table's dictionary, which is followed by another where that is due.
func (t *Table) dict() *point.Dict {
	g := t.current.Load()
	series := g.dict.Len()
	if t.limits != nil {
		t.limit(g)
	}
	if g.prev.Load() != nil && time.Since(g.born) > t.f.settings.preferTime() {
		g.prev.Store(nil)
		g.dict.Follow(nil) // its memory goes
	}
	if by := raise(&g.droppedRows, g.dict.DroppedRows()); by > 0 {
		t.f.metrics.dropped.Add(float64(by))
	}
	if t.turnDue(g, time.Since(g.born)) || g.relabel != t.relabel() || g.replicas != t.replicas() {
		t.renew(g)
		g = t.current.Load()
	} else if (g.book.hasRefused() || g.dict.Weight() >= t.f.settings.GenerationSeriesMax) && !g.full.Swap(true) {
		t.f.metrics.full.Inc()
		t.f.deps.Log.Warn("more series are active than there is memory for: rows of further ones are refused; raise storage.memory_bytes, or intake.series_max if that was set",
			"table", t.name, "series", series, "series_of_all_tables", t.f.series.Used(), "series_max", t.f.series.Most(), "next_try", g.born.Add(t.f.settings.GenerationAgeMin))
	}
	if old := t.old.Load(); old != nil && old.users.Load() == 0 {
		t.old.CompareAndSwap(old, nil) // no goroutine can enter it any more: its memory is released
	}
	return g.dict
}

// relabel returns the rules for series of the table; nil: none.
func (t *Table) relabel() point.Relabeller {
	if t.f.deps.Relabel == nil {
		return nil
	}
	return t.f.deps.Relabel(t.name)
}

// replicas returns the labels by which senders to the table differ; the zero value: none.
func (t *Table) replicas() point.ReplicaLabels {
	if t.f.deps.Replicas == nil {
		return point.ReplicaLabels{}
	}
	return t.f.deps.Replicas(t.name)
}

// limit gives a dictionary the limits that are in force now, and counts its refusals by them.
func (t *Table) limit(g *generation) {
	if now := t.limits.LabelLimits(); now != g.dict.LabelLimits() {
		g.dict.SetLabelLimits(now)
	}
	if by := raise(&g.labelsLimited, g.dict.LabelLimited()); by > 0 {
		t.limits.LabelsRefused(int(by))
	}
}

// raise raises a counter to n and returns by how much, 0 if it is there already. Callers may come with an older n than another's.
func raise(to *atomic.Uint64, n uint64) (by uint64) {
	for {
		was := to.Load()
		if n <= was {
			return 0
		}
		if to.CompareAndSwap(was, n) {
			return n - was
		}
	}
}

func (t *Table) renew(g *generation) {
	t.turn.Lock()
	defer t.turn.Unlock()
	if t.current.Load() != g || t.ended.Load() {
		return
	}
	if t.limits != nil {
		t.limits.Renumbered(g.dict.Len())
	}
	next := t.newGeneration(t.inherit(g))
	t.prefer(next, g.dict)
	t.current.Store(next)
	t.old.Store(g) // batches begun with it still find it
	if err := g.retire(); err != nil {
		t.f.deps.Log.Warn("closing the streams of an old generation", "table", t.name, "error", err)
	}
}

// end ends the last generation, and releases all series that the table has booked.
func (t *Table) end() error {
	t.turn.Lock()
	defer t.turn.Unlock()
	if t.ended.Swap(true) {
		return nil
	}
	g := t.current.Load()
	g.book.end(t.series)
	return g.retire()
}

// Bounds are the oldest and newest time the table keeps at time now; the newest is not bounded here.
func (t *Table) Bounds(now point.Nanos) (lo, hi point.Nanos) {
	m, ok := t.f.deps.Tables.Get(t.name)
	if !ok || m.Config.Retention == 0 {
		return math.MinInt64, math.MaxInt64
	}
	return now - int64(m.Config.Retention), math.MaxInt64
}

// generationOf finds the generation a batch was decoded with and enters it; nil when it is gone.
func (t *Table) generationOf(d *point.Dict) *generation {
	for _, g := range []*generation{t.current.Load(), t.old.Load()} {
		if g != nil && g.dict == d && g.enter() {
			return g
		}
	}
	return nil
}

// enter enters the batch's generation. If the generation is gone because the batch was decoded long ago, the batch is
// numbered again.
func (t *Table) enter(b *point.Batch) (*generation, *point.Batch, error) {
	if g := t.generationOf(b.Dict); g != nil {
		return g, b, nil
	}
	for {
		next := point.GetBatch(t.Dict())
		g := t.generationOf(next.Dict)
		if g == nil {
			next.Put()
			switch { // no generation begins any more
			case t.f.closed.Load():
				return nil, nil, fault.Errorf(fault.Unavailable, "this process is stopping")
			case t.ended.Load():
				return nil, nil, t.errDropped()
			}
			continue
		}
		if err := renumber(next, b); err != nil {
			next.Put()
			return nil, nil, errors.Join(err, g.leave())
		}
		return g, next, nil
	}
}

// renumber copies a batch into one of another Dict.
func renumber(to, from *point.Batch) error {
	id := func(old point.SeriesID) (point.SeriesID, error) {
		l := from.Dict.Labels(old)
		return to.Dict.InternTaken(to.Dict.Hash([]byte(l)), l)
	}
	for i, old := range from.IDs {
		n, err := id(old)
		if err != nil {
			return err
		}
		to.Append(n, from.Times[i], from.Values[i])
	}
	for _, h := range from.Hists {
		n, err := id(h.ID)
		if err != nil {
			return err
		}
		h.ID = n
		to.Hists = append(to.Hists, h)
	}
	for _, e := range from.Exemplars {
		n, err := id(e.ID)
		if err != nil {
			return err
		}
		e.ID = n
		to.Exemplars = append(to.Exemplars, e)
	}
	to.Metadata = append(to.Metadata, from.Metadata...)
	to.Smear = from.Smear
	return nil
}
