package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/share"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Maps returns the newest partition map of a table that this process has.
type Maps interface {
	Get(table string) (*topology.Map, bool)
}

// Deps are the server's dependencies.
type Deps struct {
	Brick *brick.Brick // opened, not yet recovered
	Maps  Maps
	// Newest returns where the newest map of a table is; Stale answers name it. Nil: they do not.
	Newest func(table string) (peer.MapAt, bool)
	// Leadership decides which partitions this process may act for. Nil: all, under Settings.Epoch; for a process that runs alone.
	Leadership Leadership
	// Parents finds the ranks of partitions that others lead. Nil: the ranks of their halves run ahead.
	Parents Parents
	// Chains keep the copies of replicated tables. Nil: there are no copies; only the leader has the rows.
	Chains Chains
	// Differs says which copies of a partition that is led here hold something else than it, and what; "": none. Nil: there are no copies.
	Differs func(table string, p point.PartitionID) string
	// Staging keeps rows for leaders that are away. Nil: this server stages none.
	Staging Staging
	// Transfers returns, for a partition that is led here, the progress of each copy that lacks segments. Nil: there are no copies.
	Transfers func(table string, p point.PartitionID) []peer.Transfer
	// Unloads moves the rows of partitions whose keys others own now. Nil: they stay where they are.
	Unloads Unloads
	// Now is the time by the median of the servers' clocks. Nil: this server's clock.
	Now func() point.Nanos
	// Latest is the latest time that it may be: stamps up to rank.AheadMax ahead of it are accepted. Nil: Now.
	Latest func() point.Nanos
	// ClocksKnown reports whether Now and Latest go by the clocks of all live servers, and not by that of this server alone as soon
	// after a start. Nil: they do.
	ClocksKnown func() bool
	// Weight is a table's weight among the tables that share the memory of heads; it may change. Nil: 1.
	Weight func(table string) int64
	// Lane leaves processors to writes; compactions and evaluations wait for turns there, beside the queries of the process. Nil: they do not.
	Lane *lane.Lane
	// Writes counts the inserts, and the frames of leaders, that use a processor, for the lane; nil: the process counts its writes elsewhere.
	Writes *lane.Writes
	// CPU is the CPU time that the process has used. Nil: what the server can accept is not measured.
	CPU func() time.Duration
	// Processors is the number of processors. 0: as many as Go's scheduler uses.
	Processors int
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Settings are numbers a user sets.
type Settings struct {
	// Server is this server's name in partition maps.
	Server topology.ServerID
	// Epoch is the fencing token under which a process without a Leadership writes; higher than any an earlier process wrote
	// under.
	Epoch point.Epoch
	// Partition are the settings of every partition.
	Partition partition.Settings
	// HeadBytesMax bounds the memory of all head rows together. From half of it on heads are flushed, so that the rows
	// being flushed and the new rows both fit; from three quarters on inserts into tables that hold more than their
	// share are answered Throttled, at the bound all inserts are (heads.go). Default 1 GiB.
	HeadBytesMax int64
	// NamesBytesMax bounds the series tables of all partitions, 12 bytes a series and partition. Beyond it the partitions that were idle
	// for the longest time are flushed and cooled: backfill over 100 days with a million series would keep 1.2 GB for two hours. Default:
	// an eighth of HeadBytesMax.
	NamesBytesMax int64
	// NamesIdleMin is how long a partition must be idle before it is cooled for NamesBytesMax. Default 10 s. Smaller:
	// series are read back from segments again and again where rows for many partitions alternate.
	NamesIdleMin time.Duration
	// CacheBytes bounds the cache of segment blocks. Default 256 MiB.
	CacheBytes int64
	// OpenFilesMax bounds the segment files that are open at once; others are opened again when they are read. Default
	// segment.FilesMax. Smaller: fewer file descriptors, and queries over more segments than that open files.
	OpenFilesMax int
	// LogBytesMax is how much log may be kept before the partitions that pin the oldest files are flushed.
	// Default 4 GiB. Larger: longer recovery.
	LogBytesMax int64
	// StreamSeriesMax bounds the numbers one stream may define. Default 20,000,000.
	StreamSeriesMax int
	// SeriesMax bounds the series in memory, of all tables: beyond three quarters of it new ones that gateways offer are refused where their table has its
	// share (offer.go). Series of rows that were accepted before count, and are never refused. 0: no bound.
	SeriesMax int
	// HandOverMax is how long an insert waits at a gate that a hand-over closed. Default 500 ms, as long as a hand-over that is not
	// committed keeps it closed (rules.Settings, SealMax): a caller that is refused comes again after a pause, mostly long after the outcome.
	HandOverMax time.Duration
	// RankWithin bounds how long the first row of an epoch waits for the highest ranks of partitions that others lead. Default 250 ms. Larger: a leader that is
	// silent holds up writes for longer. Smaller: the answer of a busy one comes too late, and ranks run ahead.
	RankWithin time.Duration
	// ScrubBytesPerSecond bounds how fast all segments are read again to check them. While the disk is slow or the memory of heads fills,
	// it is an eighth. Default 8 MiB/s, 1 TiB in 36 hours. Larger: damage is found sooner, and the disk has less time for other work.
	ScrubBytesPerSecond int64
	// ScrubPeriod is how often a pass over all segments begins at most. Default 7 days. Smaller: damage is found sooner.
	ScrubPeriod time.Duration
	// NoScrub turns the scrub off. Default: false.
	NoScrub bool
}

// SetDefaults gives fields that are zero their defaults.
func (s *Settings) SetDefaults() {
	if s.HeadBytesMax == 0 {
		s.HeadBytesMax = 1 << 30
	}
	if s.NamesBytesMax == 0 {
		s.NamesBytesMax = s.HeadBytesMax / 8
	}
	if s.NamesIdleMin == 0 {
		s.NamesIdleMin = 10 * time.Second
	}
	if s.CacheBytes == 0 {
		s.CacheBytes = 256 << 20
	}
	if s.RankWithin == 0 {
		s.RankWithin = 250 * time.Millisecond
	}
	if s.HandOverMax == 0 {
		s.HandOverMax = 500 * time.Millisecond
	}
	if s.OpenFilesMax == 0 {
		s.OpenFilesMax = segment.FilesMax
	}
	if s.LogBytesMax == 0 {
		s.LogBytesMax = 4 << 30
	}
	if s.StreamSeriesMax == 0 {
		s.StreamSeriesMax = point.DictSeriesMax
	}
	if s.ScrubBytesPerSecond == 0 {
		s.ScrubBytesPerSecond = 8 << 20
	}
	if s.ScrubPeriod == 0 {
		s.ScrubPeriod = 7 * 24 * time.Hour
	}
	s.Partition.SetDefaults()
}

// Server is one storage server in its process.
type Server struct {
	// Constant after Open.
	deps       Deps
	settings   Settings
	leadership Leadership
	now        func() point.Nanos
	latest     func() point.Nanos
	cache      *segment.Cache
	metrics    *metrics
	partition  *partition.Metrics
	refused    sliceRefusals
	heads      *share.Pool               // bytes
	series     *share.Pool               // of them; nil: nothing bounds them here
	compacting budget.Held               // by compactions under way
	evaluating chan struct{}             // holds one for each evaluation under way
	dropping   []point.PlacementID       // an earlier process began to drop them
	rebuilt    string                    // constant after Open: see Rebuilt
	unknown    map[point.PlacementID]int // with records in the log, and no entry in the catalogue

	rankQuestions singleflight.Group // under way, by partition and map

	ledRows  atomic.Uint64 // accepted as their leader
	capacity struct {
		sync.Mutex
		capacity
	}

	scrubShown struct {
		sync.Mutex
		Scrub
	}

	// Guards the map and is held for a look-up; a table is never removed, so a pointer to one stays good without it.
	mu struct {
		sync.RWMutex
		tables map[string]*table
		sorted []*table // by name; replaced, never changed
		closed bool
	}
}

var _ peer.Storage = (*Server)(nil)

// Open opens all placements of the catalogue and replays the log. Errors are Corrupt (with the remedy), Unavailable, or
// Canceled.
func Open(ctx context.Context, d Deps, s Settings) (*Server, error) {
	s.SetDefaults()
	d.Processors = cmp.Or(d.Processors, runtime.GOMAXPROCS(0))
	srv := &Server{deps: d, settings: s, leadership: d.Leadership, cache: segment.NewCache(s.CacheBytes),
		evaluating: make(chan struct{}, evaluationsPerProcessor*d.Processors)}
	if srv.leadership == nil {
		srv.leadership = always{s.Epoch}
	}
	if srv.now = d.Now; srv.now == nil {
		srv.now = func() point.Nanos { return time.Now().UnixNano() }
	}
	if srv.latest = d.Latest; srv.latest == nil {
		srv.latest = srv.now
	}
	srv.capacity.processors = d.Processors
	srv.heads = share.New(s.HeadBytesMax)
	if s.SeriesMax > 0 {
		srv.series = share.NewReserved(int64(s.SeriesMax))
	}
	srv.cache.LimitFiles(s.OpenFilesMax)
	srv.mu.tables = map[string]*table{}
	srv.metrics = newMetrics(d.Registerer, srv)
	srv.partition = partition.NewMetrics(d.Registerer)
	// The order of a start: entries of the catalogue (load), rows behind the segments (recover), the end of drops and
	// files without an entry (tidy), and last that no copy flushes before its leader is known (delayFlushes). Nothing
	// is served or flushed before Open returns.
	if err := errors.Join(srv.load(), srv.loadFamilies(), srv.loadRebuilt()); err != nil {
		return nil, errors.Join(err, srv.Close())
	}
	if err := srv.recover(ctx); err != nil {
		return nil, errors.Join(err, srv.Close())
	}
	if err := srv.tidy(); err != nil {
		return nil, errors.Join(err, srv.Close())
	}
	if err := srv.delayFlushes(); err != nil {
		return nil, errors.Join(err, srv.Close())
	}
	return srv, nil
}

// load opens the partitions that the catalogue lists.
func (s *Server) load() (err error) {
	if s.dropping, err = partition.Dropping(s.deps.Brick); err != nil {
		return err
	}
	return s.deps.Brick.Scan(partition.StatePrefix(), func(_, value []byte) error {
		st, err := partition.DecodeState(value)
		if err != nil {
			return err
		}
		t := s.tableOrNew(st.Table)
		p, err := partition.Open(s.partitionDeps(t), s.settings.Partition, st, 0)
		if err != nil {
			return err
		}
		t.add(p)
		return nil
	})
}

func (s *Server) partitionDeps(t *table) partition.Deps {
	point := func(l point.Labels) (uint64, bool) {
		m, ok := s.deps.Maps.Get(t.name)
		if !ok {
			return 0, false
		}
		return m.PointOf(l), true
	}
	return partition.Deps{Brick: s.deps.Brick, Index: t.index, Point: point, Cache: s.cache, Log: s.deps.Log, Metrics: s.partition, HeadBytes: t.heads, Compacting: &s.compacting, Lane: s.deps.Lane, Writes: s.deps.Writes, Now: s.ranksNow}
}

func (s *Server) table(name string) (*table, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t, ok := s.mu.tables[name]
	return t, ok
}

func (s *Server) tableOrNew(name string) *table {
	if t, ok := s.table(name); ok {
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.mu.tables[name]; ok {
		return t
	}
	var weight func() int64
	if of := s.deps.Weight; of != nil {
		weight = func() int64 { return of(name) }
	}
	t := newTable(name, s.heads, s.series, weight)
	s.mu.tables[name] = t
	at, _ := slices.BinarySearchFunc(s.mu.sorted, name, func(t *table, name string) int { return cmpString(t.name, name) })
	s.mu.sorted = slices.Insert(slices.Clip(s.mu.sorted), at, t) // a copy: callers of tables go over the one before
	return t
}

// tables gives all tables, sorted by name; callers change nothing in it. The loops of Run ask 20 times a second: to sort 10,000 names each time
// was a third of what a process with so many tables used at rest (2026-12-01).
func (s *Server) tables() []*table {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.sorted
}

// Close closes the partitions and the cache; the brick stays the caller's. No other call may run meanwhile.
func (s *Server) Close() error {
	for _, t := range s.tables() {
		for _, p := range t.all() {
			p.Close()
		}
	}
	s.cache.Close()
	return nil
}

// DropPartition removes a partition and all its rows from this server and makes sure that no insert creates it again. A
// partition that is not here is no error. After an error it can be called again.
func (s *Server) DropPartition(name string, id point.PartitionID) error {
	m, _ := s.deps.Maps.Get(name)
	return s.tableOrNew(name).drop(id, m)
}
