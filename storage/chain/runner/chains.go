package runner

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Partitions are the placements of this server.
type Partitions interface {
	// Placement returns the placement of a partition that is here.
	Placement(p lease.Partition) (*partition.Partition, bool)
	// Copy returns it, or makes an empty one if the newest map has it here. Errors are Stale and those of the store.
	Copy(p lease.Partition, placement point.PlacementID) (*partition.Partition, error)
	// LeadCopies leads a partition that has rows, in an epoch with a lease held here: it calls Chains.Lead.
	LeadCopies(ctx context.Context, p lease.Partition, epoch point.Epoch) error
}

// Led is a partition that this server leads, with its lease row's list.
type Led struct {
	Partition     lease.Partition
	Epoch         point.Epoch
	List, Dropped []lease.Member
}

// Leases is the lease table's interface.
type Leases interface {
	// Kept reports whether a chain keeps the in-sync list of a partition that is placed here.
	Kept(table string, id point.PartitionID) bool
	// Copied returns the partitions with rows that this server leads and that have their lists kept by chains.
	Copied() []Led
	// CopiedOf returns one of them; false: it is none.
	CopiedOf(p lease.Partition) (Led, bool)
	// Changes returns a number that is another one whenever Copied may give others. It costs next to nothing.
	Changes() uint64
	// Led returns the epoch under which this server led a partition last, and whether its lease goes on or lapsed.
	Led(p lease.Partition) (epoch point.Epoch, goesOn bool)
	// Placed returns the placements of a partition, those on live servers with this server's first, and the minimum number that must keep a row.
	Placed(p lease.Partition) chain.Placements
	// Relist asks for an in-sync list; Chains.Listed answers.
	Relist(p lease.Partition, epoch point.Epoch, ask uint64, members []lease.Member)
	// GiveUp releases the lease of an epoch that cannot be led.
	GiveUp(p lease.Partition, why string)
}

// Wire carries messages and frames to other servers. Messages that cannot be sent are lost.
type Wire interface {
	// Send does not wait.
	Send(p lease.Partition, from, to lease.Member, m chain.Message)
	// TryFrame sends a log record if there is a link with room, else returns false; rec must never change.
	TryFrame(p lease.Partition, epoch point.Epoch, from, to lease.Member, rec []byte) bool
	// LastReceived returns how long ago anything came from a member's server, for whatever partition; false: there is no link to it.
	LastReceived(x lease.Member) (ago time.Duration, ok bool)
	// Frames waits until there is room for n log records of so many bytes together, and calls send then, which sends them; rec is the caller's again when
	// frame returns. Records that wait need not be in memory.
	Frames(ctx context.Context, p lease.Partition, epoch point.Epoch, from, to lease.Member, n, bytes int, send func(frame func(rec []byte) error) error) error
}

// Deps are the dependencies that the code passes in.
type Deps struct {
	Server string
	Store  lease.StoreID
	Leases Leases
	Wire   Wire
	Clock  func() chain.Time                   // never goes back and counts suspends
	Epoch  func(point.PlacementID) point.Epoch // the brick's highest
	Watch  func(synced func())                 // registers synced, which is called after each fsync of the log
	Log    *slog.Logger
	// RecentBytes bounds the memory of the newest frames of all logs together. 0: 64 MiB. Smaller: a member that is a moment behind is sent frames out of the log.
	RecentBytes int64
	// ReadBytes bounds the memory in which the logs are read for members that are behind. 0: 64 MiB; at least one read of 1 MiB is under way.
	// Smaller: where many are behind at once they wait for each other.
	ReadBytes int64
	// Registerer is where metrics are registered; nil: none are.
	Registerer prometheus.Registerer
}

// Chains runs the chains of a server. Its methods may be called from any goroutine.
type Chains struct {
	deps     Deps
	settings chain.Settings
	here     atomic.Pointer[Partitions] // nil until Serve
	recents  recents
	reads    *logReads

	ctx    context.Context // ends with Run
	cancel context.CancelFunc
	work   sync.WaitGroup

	awake atomic.Int64 // placements that ping

	again atomic.Bool // the leases are to be read though nothing changed: an epoch ended, or could not begin

	looked        uint64    // Leases.Changes as of the last look; Run's alone
	lookedAt      time.Time // Run's alone
	quietLooked   time.Time // Run's alone
	outsideLooked time.Time // Run's alone

	mu struct {
		sync.Mutex
		copies  map[lease.Partition]*placement
		opening map[lease.Partition]bool
		leaving bool
		over    bool
	}
	unsynced struct {
		sync.Mutex              // acquired under a placement's lock: no other is acquired while it is held
		list       []*placement // with frames in the log that are not known to be fsynced
	}
}

// New makes a server's chains; Run runs them.
func New(d Deps, s chain.Settings) *Chains {
	c := &Chains{deps: d, settings: s}
	c.recents.most = cmp.Or(d.RecentBytes, recentBytes)
	c.reads = newLogReads(cmp.Or(d.ReadBytes, readBytes))
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.copies, c.mu.opening = map[lease.Partition]*placement{}, map[lease.Partition]bool{}
	d.Watch(c.synced)
	c.register(d.Registerer)
	return c
}

// enlist has a placement looked at after the next fsync.
// The list is of pointers and swapped as a whole by synced, so that the brick's watcher looks at the placements with
// unsynced frames only, not at all of thousands.
func (c *Chains) enlist(x *placement) {
	c.unsynced.Lock()
	defer c.unsynced.Unlock()
	c.unsynced.list = append(c.unsynced.list, x)
}

// synced reports to the machines which frames an fsync has made durable. First all placements get their inputs, then all are drained: so the reports of one
// fsync are queued on a link before its writer wakes, and travel together. A placement with frames left is enlisted again under its lock, before another append
// can see it as enlisted.
func (c *Chains) synced() {
	c.unsynced.Lock()
	list := c.unsynced.list
	c.unsynced.list = nil
	c.unsynced.Unlock()
	for _, x := range list {
		x.mu.Lock()
		if x.mu.enlisted = x.noteSynced(); x.mu.enlisted {
			c.enlist(x)
		}
		x.mu.Unlock()
	}
	for _, x := range list {
		x.drain()
	}
}

// Serve sets the placements. Messages that arrive before it are lost.
func (c *Chains) Serve(p Partitions) { c.here.Store(&p) }

const (
	// lookEvery is how often the leases are read if they changed.
	lookEvery = 100 * time.Millisecond
	// lookMax is how often they are read if they did not: a look is at each of thousands of partitions.
	lookMax = time.Second
)

// Run leads the partitions that the leases name, until ctx ends.
func (c *Chains) Run(ctx context.Context) error {
	defer c.stop()
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if here := c.here.Load(); here != nil {
				c.look(ctx, *here)
			}
		}
	}
}

// look begins the epochs of partitions with rows: their copies go on whether clients write or not.
func (c *Chains) look(ctx context.Context, here Partitions) {
	c.tendQuiet()
	c.logOutside()
	changes, now := c.deps.Leases.Changes(), time.Now() // before the look: a change beside it is seen at the next
	if !c.again.Swap(false) && changes == c.looked && now.Sub(c.lookedAt) < lookMax {
		return
	}
	c.looked, c.lookedAt = changes, now
	var g errgroup.Group
	// Beginning an epoch waits for an fsync; eight at once share it, and a server that restarts with thousands of
	// partitions does not start thousands of goroutines.
	g.SetLimit(8)
	for _, l := range c.deps.Leases.Copied() {
		p, ok := here.Placement(l.Partition)
		x := c.find(l.Partition)
		switch {
		case !ok || x != nil && x.led() == l.Epoch:
			continue
		case p.Leads(l.Epoch): // its epoch is over for the chain, or began without one
			c.deps.Leases.GiveUp(l.Partition, "its copies need a new epoch")
			continue
		}
		g.Go(func() error {
			if err := here.LeadCopies(ctx, l.Partition, l.Epoch); err != nil && ctx.Err() == nil {
				c.again.Store(true)
				c.deps.Log.Warn("a partition's copies are not led yet; it is tried again", "partition", l.Partition.String(), "epoch", l.Epoch, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait()
	c.forget(here)
}

const (
	// outsideLogEvery is how often copies that are not in sync are logged, and for how long they must have been outside.
	outsideLogEvery = 30 * time.Second
	// outsideLogged bounds how many are named each time.
	outsideLogged = 20
)

// logOutside logs why copies of partitions that are led here are not in sync.
func (c *Chains) logOutside() {
	now := time.Now()
	if now.Sub(c.outsideLooked) < outsideLogEvery {
		return
	}
	c.outsideLooked = now
	n := 0
	defer func() {
		if n > outsideLogged {
			c.deps.Log.Info("more copies of partitions are not in sync", "copies", n-outsideLogged)
		}
	}()
	placements := c.all()
	slices.SortFunc(placements, func(a, b *placement) int { return comparePartitions(a.key, b.key) })
	for _, x := range placements {
		x.mu.Lock()
		all := x.mu.machine.Outside(c.deps.Clock(), outsideLogEvery)
		x.mu.Unlock()
		for _, o := range all {
			if n++; n > outsideLogged {
				continue
			}
			c.deps.Log.Info("a copy of a partition is not in sync", "partition", x.key.String(), "server", string(o.Member.Server), "reason", o.Why)
		}
	}
}

// forget ends the chains of placements that are not here any more.
func (c *Chains) forget(here Partitions) {
	for _, x := range c.all() {
		if p, ok := here.Placement(x.key); !ok || p != x.p {
			c.mu.Lock()
			if c.mu.copies[x.key] == x { // it may have been replaced by a chain of the placement that is here now
				delete(c.mu.copies, x.key)
			}
			c.mu.Unlock()
			x.cancel()
		}
	}
}

// all returns the placements, in any order.
func (c *Chains) all() []*placement {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*placement, 0, len(c.mu.copies))
	for _, x := range c.mu.copies {
		all = append(all, x)
	}
	return all
}

// over is set first: nothing is made after it (of, reach). A post may start goroutines while Wait runs, without a race on work: a placement's loop, which
// counts in work, ends only once no goroutine drains, and only draining goroutines start others.
func (c *Chains) stop() {
	c.mu.Lock()
	c.mu.over = true
	c.mu.Unlock()
	c.cancel()
	c.work.Wait()
}

// of returns the chain of a placement, or begins it. Nil: it is over.
// A placement that was removed and made again has the same key and another Partition: the chain of the old one is ended
// here, and forget must not end the new one.
func (c *Chains) of(key lease.Partition, p *partition.Partition) *placement {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.mu.copies[key]; x != nil && x.p == p || c.mu.over {
		return x
	}
	if old := c.mu.copies[key]; old != nil {
		old.cancel()
	}
	x := newPlacement(c, key, p)
	if c.mu.leaving {
		x.post(event{in: chain.Leaving{}})
	}
	c.mu.copies[key] = x
	return x
}

func (c *Chains) find(key lease.Partition) *placement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.copies[key]
}

// Lead makes a placement lead its chain in an epoch with a lease held here, with the row's in-sync list. When it returns the partition
// accepts rows in that epoch. Errors are Stale and those of the store.
func (c *Chains) Lead(ctx context.Context, key lease.Partition, p *partition.Partition, epoch point.Epoch) error {
	led, ok := c.deps.Leases.CopiedOf(key)
	if !ok || led.Epoch != epoch {
		return fault.Errorf(fault.Stale, "epoch %d of partition %v is over", epoch, key)
	}
	x := c.of(key, p)
	if x == nil {
		return fault.Errorf(fault.Unavailable, "the server stops")
	}
	if !slices.Contains(led.List, x.self) {
		return fault.Errorf(fault.Stale, "placement %s of partition %v is not in sync", x.self.Placement, key)
	}
	// One slot: the answer never waits, although the caller may have given up.
	done := make(chan error, 1)
	x.post(event{lead: &led, done: done})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.Canceled, "lead partition %v", key)
	case <-x.ctx.Done():
		return fault.Errorf(fault.Stale, "partition %v is no longer here", key)
	}
}

// Kept reports whether a partition that is placed here has a chain.
func (c *Chains) Kept(table string, id point.PartitionID) bool { return c.deps.Leases.Kept(table, id) }

// Accepts returns why a partition that is led here accepts no row now, or nil. Errors are Unavailable, Throttled and Stale.
func (c *Chains) Accepts(key lease.Partition) error {
	x := c.find(key)
	if x == nil {
		return fault.Errorf(fault.Stale, "partition %v is not led here", key)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return fault.Annotate(x.mu.machine.Accepts(), "partition %v", key)
}

// Stalled returns why rows of a partition that is led here would wait for a placement that is away, or nil. Errors are Unavailable.
func (c *Chains) Stalled(key lease.Partition) error {
	x := c.find(key)
	if x == nil {
		return nil
	}
	x.listen()
	x.mu.Lock()
	defer x.mu.Unlock()
	return fault.Annotate(x.mu.machine.Stalled(c.deps.Clock()), "partition %v", key)
}

// Once reports whether a placement led, or its head answered it as a listed one, since this process started.
func (c *Chains) Once(key lease.Partition) bool {
	x := c.find(key)
	if x == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.machine.Once()
}

// Listed answers the Leases.Relist with the same ask.
func (c *Chains) Listed(key lease.Partition, ask uint64, ok bool, epoch point.Epoch, list []lease.Member) {
	if x := c.find(key); x != nil {
		x.post(event{in: chain.ListSet{Ask: ask, OK: ok, Epoch: epoch, List: list}})
	}
}

// Message handles a message from another server.
func (c *Chains) Message(key lease.Partition, from lease.Member, to point.PlacementID, m chain.Message) {
	if x := c.reach(key, from, to, m); x != nil {
		x.post(event{in: chain.Received{From: from, Message: m}})
	}
}

// Frame handles a log record from another server; done is called once it is not needed any more.
// rec is the link's memory, and its window shrinks until done is called. So frames that wait behind a slow event push
// back on the sender, and the queue of events is bounded by the window (I5).
func (c *Chains) Frame(key lease.Partition, from lease.Member, to point.PlacementID, m chain.Pass, rec []byte, done func()) {
	x := c.reach(key, from, to, m)
	if x == nil {
		done()
		return
	}
	x.post(event{in: chain.Received{From: from, Message: m}, rec: rec, release: done})
}

// reach finds the chain that a message is for. A message that begins an epoch makes a missing placement, if the map has it here, and is the first that it
// handles; other messages are lost until then.
func (c *Chains) reach(key lease.Partition, from lease.Member, to point.PlacementID, m chain.Message) *placement {
	x := c.find(key)
	if x != nil && x.self.Placement == to {
		return x
	}
	if _, begins := m.(chain.Begin); !begins {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.opening[key] || c.mu.over || len(c.mu.opening) >= openingMax {
		return nil
	}
	// Making a placement writes to the catalogue. The link's reader must not wait for that, so it runs beside it, once
	// for each partition; what arrives meanwhile is lost and sent again.
	c.mu.opening[key] = true
	c.work.Go(func() { c.open(key, to, chain.Received{From: from, Message: m}) })
	return nil
}

// openingMax bounds the placements that are made at a time.
const openingMax = 64

// open makes a placement for the message that needs it. Were that message lost, its head would send it again only with its next ping.
func (c *Chains) open(key lease.Partition, to point.PlacementID, first chain.Received) {
	var p *partition.Partition
	err := fault.Errorf(fault.Unavailable, "the server starts")
	if here := c.here.Load(); here != nil {
		p, err = (*here).Copy(key, to)
	}
	if err == nil {
		if x := c.of(key, p); x != nil && x.self.Placement == to {
			x.post(event{in: first})
		}
	} else {
		c.deps.Log.Debug("no copy of a partition is kept here yet", "partition", key.String(), "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.opening, key)
}
