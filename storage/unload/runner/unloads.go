package runner

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/deliver"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/unload"
)

// Ways are what moving rows needs to know of the cluster.
type Ways interface {
	deliver.Ways
	// Map returns the newest map of a table at hand, nil if there is none, and the sequence number of the table's first map; 0: unknown.
	Map(table string) (m *topology.Map, begun uint64)
	// HeirLeader returns the leader of a partition, and the epoch of its lease, 0 for a guess, while another one is led here under an epoch: the heir's lease row is read before the lease
	// here is found good. Errors are Unavailable, also where it is not good.
	HeirLeader(parent lease.Partition, epoch point.Epoch, heir *topology.Partition) (topology.ServerID, point.Epoch, error)
	// Holders returns the servers that hold leases of partitions of the parent's table for which may is true, by lease rows as new as the row by which the parent is led here
	// under an epoch. known is false where there are no such rows yet, or one of them cannot be read, and where a server is registered whose build does not end slices.
	Holders(ctx context.Context, parent lease.Partition, epoch point.Epoch, may func(point.PartitionID) bool) (servers []topology.ServerID, known bool)
}

// Partitions are the partitions of this server.
type Partitions interface {
	// EndWrites makes a partition act in an epoch in which it is led here. When it returns, no row is accepted under an earlier one, and no change is under way.
	EndWrites(ctx context.Context, p lease.Partition, epoch point.Epoch) error
	// Bounds returns the times of the first and last row; false: there is none.
	Bounds(p lease.Partition) (lo, hi point.Nanos, ok bool)
	// Rows passes f all rows and exemplars in [lo, hi], series by series, while the epoch lasts. f may keep them.
	Rows(ctx context.Context, p lease.Partition, epoch point.Epoch, lo, hi point.Nanos, f Take) error
}

// Series is a series' rows of some times, with their ranks: number At of Of series.
type Series struct {
	At, Of    int
	Labels    point.Labels
	Run       rows.Run
	Exemplars []point.ExemplarRow
}

// Take receives a series' rows.
type Take func(*Series) error

// Deps are the parts that Unloads uses.
type Deps struct {
	Ways       Ways
	Partitions Partitions
	// Finished is called once the heirs have all rows of a partition.
	Finished func(p lease.Partition, epoch point.Epoch)
	// Borrow begins the loan of a slice.
	Borrow     func(ctx context.Context) (context.Context, *budget.Loan, error)
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: none
}

// Settings are numbers a user sets.
type Settings struct {
	Machine unload.Settings
	// BytesPerSecond bounds the rows that are read, of all partitions together, 24 bytes a row. Default 4 MiB.
	BytesPerSecond int64
}

// slicesMax is how many slices of all partitions are in memory at a time.
const slicesMax = 2

// SetDefaults gives fields that are zero their defaults.
func (s *Settings) SetDefaults() {
	if s.BytesPerSecond == 0 {
		s.BytesPerSecond = 4 << 20
	}
	if s.Machine.SliceBytes == 0 {
		s.Machine.SliceBytes = min(16<<20, 4*s.BytesPerSecond)
	}
	if s.Machine.Window == 0 {
		s.Machine.Window = 1 // of each partition; other partitions' go on meanwhile
	}
	s.Machine.SetDefaults()
}

// Unloads moves the rows of partitions. Safe for concurrent use.
type Unloads struct {
	// Constant after New.
	deps     Deps
	settings Settings
	out      *deliver.Deliverer
	limit    *rate.Limiter
	// Held from before a slice is read until it is acked or dropped, so that rows in memory are bounded for the whole
	// server, however many partitions unload.
	slots   chan struct{}
	metrics *metrics
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		movers map[lease.Partition]*mover
		begun  map[lease.Partition]point.Epoch // under which rows were last moved; kept while the map has them: a lease may lapse and come back under its epoch
		closed bool
	}
}

// New makes Unloads that move nothing yet.
func New(d Deps, s Settings) *Unloads {
	s.SetDefaults()
	u := &Unloads{deps: d, settings: s, out: deliver.New(d.Ways), slots: make(chan struct{}, slicesMax),
		limit: rate.NewLimiter(rate.Limit(s.BytesPerSecond), int(max(s.Machine.SliceBytes, s.BytesPerSecond)))}
	u.ctx, u.stop = context.WithCancel(context.Background())
	u.mu.movers, u.mu.begun = map[lease.Partition]*mover{}, map[lease.Partition]point.Epoch{}
	u.metrics = newMetrics(d.Registerer, u)
	return u
}

// Close ends all work and waits for it.
func (u *Unloads) Close() error {
	u.mu.Lock()
	u.mu.closed = true
	u.mu.Unlock()
	u.stop()
	u.running.Wait()
	return u.out.Close()
}

// Set begins or ends the moving of a partition's rows under an epoch that is led here. first: no server moved any under an earlier epoch. It does not wait.
// A mover of an earlier epoch is stopped and not waited for: rows that it still sends have the ranks of their frames, which do
// not depend on the epoch, and its deletions are refused by ctx.
func (u *Unloads) Set(p lease.Partition, epoch point.Epoch, on, first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if m := u.mu.movers[p]; m != nil && (on || m.epoch == epoch) {
		m.stop()
		delete(u.mu.movers, p)
	}
	if !on || u.mu.closed {
		return
	}
	u.forgetGone()
	m := newMover(u, p, epoch, unload.Begin{First: first, Again: u.mu.begun[p] == epoch})
	u.mu.movers[p], u.mu.begun[p] = m, epoch
	u.running.Go(m.run)
}

// forgetGone forgets under which epochs rows of partitions were moved that are out of the map. Called with mu held.
func (u *Unloads) forgetGone() {
	maps.DeleteFunc(u.mu.begun, func(p lease.Partition, _ point.Epoch) bool {
		tm, _ := u.deps.Ways.Map(p.Table)
		if tm == nil {
			return false
		}
		_, ok := tm.ByID(p.ID)
		return !ok
	})
}

// Delete calls f, which deletes in a partition that unloads here, while none of its rows are on their way. Errors are Unavailable (it is not led here, or
// not ready yet), Canceled, and those of f.
func (u *Unloads) Delete(ctx context.Context, p lease.Partition, f func() error) error {
	u.mu.Lock()
	m := u.mu.movers[p]
	u.mu.Unlock()
	if m == nil {
		return fault.Errorf(fault.Unavailable, "the rows of partition %v move to others, and its leader is not ready to delete: do it again", p)
	}
	return m.delete(ctx, f)
}

// Progress is how far the rows of a partition are moved.
type Progress struct {
	Partition lease.Partition
	Since     time.Time   // when it began
	Moved     time.Time   // when a slice was last acked; zero: none yet
	UpTo      point.Nanos // the time before which all rows are there
	Rows      int64       // moved under this epoch
	// PerSecond is the mean rate of rows since the first slice was acked; 0: not known yet.
	PerSecond float64
	Finished  bool
}

// Progress lists the partitions whose rows are being moved here, in no order.
func (u *Unloads) Progress() (all []Progress) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range u.mu.movers {
		m.mu.Lock()
		all = append(all, m.mu.progress)
		m.mu.Unlock()
	}
	return all
}

// Of returns the progress of one partition; false: its rows are not being moved here.
func (u *Unloads) Of(p lease.Partition) (Progress, bool) {
	u.mu.Lock()
	m := u.mu.movers[p]
	u.mu.Unlock()
	if m == nil {
		return Progress{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.mu.progress
	if took := time.Since(m.mu.first).Seconds(); !m.mu.first.IsZero() && took > 0 {
		at.PerSecond = float64(at.Rows-m.mu.firstRows) / took
	}
	return at, true
}

// errEnded ends what waits for a mover.
var errEnded = errors.New("the lease ended")
