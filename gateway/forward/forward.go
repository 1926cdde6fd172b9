package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/gateway/route"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Servers finds storage servers by their names in partition maps.
type Servers interface {
	Server(id topology.ServerID) (peer.Storage, bool)
	// IDs lists the servers that can be reached now, in a steady order.
	IDs() []topology.ServerID
}

// Deps are what forwarding needs of others.
type Deps struct {
	Tables  *tables.Tables
	Servers Servers
	Clock   *Clock
	Log     *slog.Logger
}

// Settings are numbers a user sets.
type Settings struct {
	// GenerationAge is how long a dictionary of series is used. Default 2 h. Larger: series that are gone take memory
	// for longer; smaller: more definitions travel.
	GenerationAge time.Duration
	// GenerationSeriesMax bounds the series of one dictionary. Default point.DictSeriesMax.
	GenerationSeriesMax int
	// InsertRowsMax and InsertBytesMax are where an insert is cut in two; bytes are counted as if every row brought its
	// series along. Default 65,536 and 24 MiB: a frame of either fits into the log's records of 32 MiB.
	InsertRowsMax  int
	InsertBytesMax int
	// PartitionsMax bounds the partitions that rows can bring into being in one table. Rows beyond are refused as
	// Invalid, the others of their batch are kept. Default 50,000.
	PartitionsMax int
}

func (s *Settings) setDefaults() {
	if s.GenerationAge == 0 {
		s.GenerationAge = 2 * time.Hour
	}
	if s.GenerationSeriesMax == 0 {
		s.GenerationSeriesMax = point.DictSeriesMax
	}
	if s.InsertRowsMax == 0 {
		s.InsertRowsMax = 1 << 16
	}
	if s.InsertBytesMax == 0 {
		s.InsertBytesMax = 24 << 20
	}
	if s.PartitionsMax == 0 {
		s.PartitionsMax = 50_000
	}
}

// Forwarder writes into tables. Safe for concurrent use.
type Forwarder struct {
	deps     Deps
	settings Settings

	mu struct {
		sync.RWMutex
		tables map[string]*Table
	}
}

// New makes a forwarder.
func New(d Deps, s Settings) *Forwarder {
	s.setDefaults()
	f := &Forwarder{deps: d, settings: s}
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
	f.mu.Lock()
	defer f.mu.Unlock()
	if t, ok := f.mu.tables[name]; ok {
		return t, nil
	}
	t = &Table{f: f, name: name}
	t.current.Store(newGeneration(f.settings.GenerationSeriesMax))
	f.mu.tables[name] = t
	return t, nil
}

// Close ends all streams.
func (f *Forwarder) Close() error {
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
	f    *Forwarder
	name string

	current atomic.Pointer[generation]
	turn    sync.Mutex // one generation begins at a time
	old     atomic.Pointer[generation]

	cutters sync.Pool // *route.Cutter
}

// Dict gives the dictionary for the next batch.
func (t *Table) Dict() *point.Dict {
	g := t.current.Load()
	if time.Since(g.born) > t.f.settings.GenerationAge || g.dict.Len() > t.f.settings.GenerationSeriesMax/10*9 {
		t.renew(g)
		g = t.current.Load()
	}
	return g.dict
}

func (t *Table) renew(g *generation) {
	t.turn.Lock()
	defer t.turn.Unlock()
	if t.current.Load() != g {
		return
	}
	t.current.Store(newGeneration(t.f.settings.GenerationSeriesMax))
	t.old.Store(g) // batches begun with it still find it
	if err := g.retire(); err != nil {
		t.f.deps.Log.Warn("closing the streams of an old generation", "table", t.name, "error", err)
	}
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

// staleRetries is how often a write goes by a newer map before it gives up, with a little more patience each time.
const staleRetries = 5

// Write takes everything in b and returns when it is as safe as the level says. Rows at times for which no partition can
// be made are refused in b. Errors keep the Kind of the share that failed; what had been kept by then stays.
func (t *Table) Write(ctx context.Context, b *point.Batch, level point.Level) error {
	m, ok := t.f.deps.Tables.Get(t.name)
	if !ok {
		return fault.Errorf(fault.NotFound, "table %q does not exist any more", t.name)
	}
	g, b2, err := t.enter(b)
	if err != nil {
		return err
	}
	if b2 != b {
		defer b2.Put()
	}
	defer g.leave()
	if err := t.metadata(ctx, b2); err != nil {
		return err
	}
	stamp := t.f.deps.Clock.Next()
	for try := 0; ; try++ {
		homeless, err := t.writeBy(ctx, m, g, b2, stamp, level)
		if err == nil && homeless > 0 {
			b.Refuse(homeless, point.Refusal{Kind: fault.Invalid, Reason: fmt.Sprintf(
				"table %q has %d partitions, the most that rows can make, and none for these times: check the timestamps, set a retention or a larger partition width",
				t.name, t.f.settings.PartitionsMax)})
		}
		if !fault.Is(err, fault.Stale) || try == staleRetries {
			return err
		}
		if err := sleep(ctx, time.Duration(try)*20*time.Millisecond); err != nil {
			return err
		}
		if m, ok = t.f.deps.Tables.Get(t.name); !ok {
			return err
		}
	}
}

// enter enters the batch's generation. A batch that was decoded so long ago that its generation is gone is numbered anew.
func (t *Table) enter(b *point.Batch) (*generation, *point.Batch, error) {
	if g := t.generationOf(b.Dict); g != nil {
		return g, b, nil
	}
	for {
		next := point.GetBatch(t.Dict())
		g := t.generationOf(next.Dict)
		if g == nil {
			next.Put()
			continue
		}
		if err := renumber(next, b); err != nil {
			next.Put()
			return nil, nil, errors.Join(err, g.leave())
		}
		return g, next, nil
	}
}

func renumber(to, from *point.Batch) error {
	id := func(old point.SeriesID) (point.SeriesID, error) {
		l := from.Dict.Labels(old)
		return to.Dict.InternLabels(l, to.Dict.Hash([]byte(l)))
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
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d/2 + rand.N(d)):
		return nil
	}
}

// writeBy routes and writes by one map. homeless counts the rows for which no partition can be made.
func (t *Table) writeBy(ctx context.Context, m *topology.Map, g *generation, b *point.Batch, stamp point.Stamp, level point.Level) (homeless int, err error) {
	c, _ := t.cutters.Get().(*route.Cutter)
	if c == nil {
		c = new(route.Cutter)
	}
	defer t.cutters.Put(c)
	shares, uncovered := c.Cut(m, b)
	for len(uncovered) > 0 {
		times := missing(m, uncovered, t.f.settings.PartitionsMax-m.Len())
		if len(times) == 0 {
			break
		}
		next, err := t.f.deps.Tables.Cover(ctx, t.name, times)
		if err != nil {
			return 0, err
		}
		if next.Seq == m.Seq {
			break // times that no partition can hold
		}
		m = next
		shares, uncovered = c.Cut(m, b)
	}
	if len(shares) == 1 {
		return len(uncovered), t.send(ctx, m, g, &shares[0], stamp, level)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range shares {
		group.Go(func() error { return t.send(ctx, m, g, &shares[i], stamp, level) })
	}
	return len(uncovered), group.Wait()
}

// missing gives a time of each partition that the uncovered times need, the newest first and at most that many: at the
// bound, what is measured now matters more than what a wrong clock says.
func missing(m *topology.Map, uncovered []point.Nanos, most int) []point.Nanos {
	slots := map[point.Nanos]point.Nanos{}
	for _, at := range uncovered {
		lo, _ := m.Config.Aligned(at)
		slots[lo] = at
	}
	times := slices.SortedFunc(maps.Values(slots), func(a, b point.Nanos) int { return cmp.Compare(b, a) })
	return times[:min(len(times), max(most, 0))]
}

// send takes one share to its leader, in inserts of a bounded size.
func (t *Table) send(ctx context.Context, m *topology.Map, g *generation, s *route.Share, stamp point.Stamp, level point.Level) error {
	leader := s.Partition.Placements[0].Server
	storage, ok := t.f.deps.Servers.Server(leader)
	if !ok {
		return fault.Errorf(fault.Unavailable, "storage server %q, leader of partition %s/%d, cannot be reached", leader, t.name, s.Partition.ID)
	}
	l, err := g.link(ctx, t.name, leader, storage)
	if err != nil {
		return err
	}
	rest := pieces{ids: s.IDs, times: s.Times, values: s.Values, hists: s.Hists, exemplars: s.Exemplars}
	in := peer.Insert{Partition: s.Partition.ID, MapSeq: m.Seq, Stamp: stamp, Level: level}
	for rest.len() > 0 {
		rest.first(&in, t.f.settings.InsertRowsMax)
		if err := l.define(ctx, g.dict, &in); err != nil {
			return err
		}
		shorten(&in, t.f.settings.InsertBytesMax, int(l.longest.Load()), g.dict)
		if err := l.stream.Insert(ctx, &in); err != nil {
			return err
		}
		rest.drop(&in)
	}
	return nil
}

// metadata hands descriptions of metric families to the first server that can be reached; readers ask all of them.
// Descriptions that are refused are no reason to refuse the rows beside them.
func (t *Table) metadata(ctx context.Context, b *point.Batch) error {
	if len(b.Metadata) == 0 {
		return nil
	}
	for _, id := range t.f.deps.Servers.IDs() {
		if s, ok := t.f.deps.Servers.Server(id); ok {
			err := s.PutMetadata(ctx, t.name, b.Metadata)
			if fault.Is(err, fault.Invalid) {
				t.f.deps.Log.Debug("metadata refused", "table", t.name, "error", err)
				return nil
			}
			return err
		}
	}
	return fault.Errorf(fault.Unavailable, "no storage server can be reached to keep metadata of table %q", t.name)
}
