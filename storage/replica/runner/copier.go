package runner

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	chains "github.com/spillwaydb/spillway/storage/chain/runner"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/replica"
	"github.com/spillwaydb/spillway/storage/segment"
)

// Chains are the placements with their chains; storage/chain/runner implements it.
type Chains interface {
	// Leading returns the placements that lead here.
	Leading() []chains.Copy
	// Copy returns a placement that is here.
	Copy(p lease.Partition, id point.PlacementID) (chains.Copy, bool)
	// Adopt makes a verified file a segment of a placement that follows, or a damaged one of a placement that leads whole again.
	Adopt(ctx context.Context, p lease.Partition, id point.PlacementID, sender point.Epoch, info segment.Info, path string) error
	// ReadFrames reads frames of a placement's log when there is memory for it. f must wait for nothing.
	ReadFrames(ctx context.Context, at *partition.Partition, after, upto point.Serial, f func(s point.Serial, rec []byte) error) error
}

var _ Chains = (*chains.Chains)(nil)

// Deps are the dependencies that the code passes in.
type Deps struct {
	Brick      *brick.Brick
	Chains     Chains
	Clock      func() replica.Time // never goes back and counts suspends
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: none
}

// Settings are numbers a user sets.
type Settings struct {
	// BytesPerSecond bounds the bytes of segments that the server sends, to all others together, and those that it receives, from all others
	// together. Default 64 MiB/s, 1 TiB in 5 hours. Larger: an emptied server is refilled sooner, and disks and network have less time for
	// other work. It copies slower while its log is slow (replica.Rate).
	BytesPerSecond int64
	// BrokenEvery is how often placements are looked at for damaged segments, which others are asked for. Default 2 s.
	BrokenEvery time.Duration
	// CompareAfter is how long no frame may have come before a partition is compared with its copies. Default 5 s.
	CompareAfter time.Duration
	// Machine and Compare are the settings of the machines.
	Machine replica.Settings
	Compare replica.CompareSettings
}

// SetDefaults gives fields that are zero their defaults.
func (s *Settings) SetDefaults() {
	s.BytesPerSecond = cmp.Or(s.BytesPerSecond, 64<<20)
	s.BrokenEvery = cmp.Or(s.BrokenEvery, 2*time.Second)
	s.CompareAfter = cmp.Or(s.CompareAfter, 5*time.Second)
	s.Compare.SetDefaults()
}

// lookEvery is how often the placements that lead are compared with the copier's state.
const lookEvery = 250 * time.Millisecond

// pieceBytes is how much of a file is read and sent at a time.
// It is also the burst of the limiters: WaitN refuses more than that at once.
const pieceBytes = peer.LinkPieceBytesMax

// Copier copies the segments of a server's placements. Messages come by Handler.
//
// Goroutines: the loop (Run), which owns all machines and runs for microseconds at a time; one for each transfer that
// is sent, received or adopted, for a flush or compaction that a machine requested, and for a digest or a check of a
// segment. Those are in work, end with ctx, and report to the loop by post; Run returns when all have ended.
type Copier struct {
	// Constant after New.
	deps     Deps
	settings Settings
	sends    *rate.Limiter // bytes sent, or read for a check
	receives *rate.Limiter // bytes received
	metrics  *metrics
	ctx      context.Context // ends with Run
	cancel   context.CancelFunc
	work     sync.WaitGroup
	wake     chan struct{} // 1 when there are events
	held     atomic.Int64  // bytes of buffers
	copied   atomic.Uint64 // bytes of segments sent, received, and read for a check
	syncing  sync.Mutex    // held while a part of an unfinished file is passed to the disk
	// noRoom, differs and transfers are written by the loop as whole values, and read by requests for the state of the
	// server: a lock would make those wait for the loop.
	noRoom  atomic.Pointer[[]lease.Partition]
	differs atomic.Pointer[map[lease.Partition]string] // for people
	// transfers are those of partitions that are led here, for people.
	transfers atomic.Pointer[map[lease.Partition][]peer.Transfer]

	mu struct {
		sync.Mutex
		// Functions for the loop, in the order in which they were posted. The results of this server's own goroutines
		// are never dropped (post), those of others are above messagesMax (offer).
		events []func()
		// Here and not with the loop: pieces come on the links' readers, which go straight to the file's goroutine; by
		// way of the loop each piece would cost it a wake-up.
		incoming map[slotOf]*incoming // of the offers accepted
	}

	// Owned by the loop.
	// Of two links to a server the newest is kept; Unlinked of the older one then changes nothing.
	links    map[string]peer.Link // by server
	senders  map[lease.Partition]*sending
	menders  map[lease.Partition]*sending // of followers, for leaders with damaged files
	receiver *replica.Receiver
	rate     *replica.Rate
	files    map[fileOf]*incoming     // unfinished files
	removing map[fileOf]chan struct{} // closed once the file of a discarded transfer is removed: the next one of the segment has the same path
	leaders  map[replica.Key]leader
	looked   replica.Time // for broken segments

	// One digest is read at a time for this server's own partitions, and one for leaders elsewhere: each reads a log.
	comparing struct {
		busy    bool            // the digest of a partition that is led here is read
		telling bool            // one for a leader is
		at      replica.Time    // when the last one began
		of      lease.Partition // the last one
	}
}

// New makes a server's copier; Run runs it.
func New(d Deps, s Settings) *Copier {
	s.SetDefaults()
	c := &Copier{deps: d, settings: s, wake: make(chan struct{}, 1), links: map[string]peer.Link{}, senders: map[lease.Partition]*sending{}, menders: map[lease.Partition]*sending{},
		receiver: replica.NewReceiver(s.Machine), files: map[fileOf]*incoming{}, removing: map[fileOf]chan struct{}{}, leaders: map[replica.Key]leader{}}
	c.rate = replica.NewRate(s.BytesPerSecond)
	first := rate.Limit(c.rate.Step(replica.Work{}))
	c.sends, c.receives = rate.NewLimiter(first, pieceBytes), rate.NewLimiter(first, pieceBytes)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.incoming = map[slotOf]*incoming{}
	c.metrics = newMetrics(d.Registerer)
	c.metrics.rate.Set(float64(first))
	return c
}

// NoRoom returns the partitions of which segments that were offered found no room on this server's disk, at most 64. The caller does not change it.
func (c *Copier) NoRoom() []lease.Partition {
	if all := c.noRoom.Load(); all != nil {
		return *all
	}
	return nil
}

// Differs says which placements of a partition that is led here hold something else than it, and what; "": the last comparison found none.
func (c *Copier) Differs(p lease.Partition) string {
	if all := c.differs.Load(); all != nil {
		return (*all)[p]
	}
	return ""
}

// Transfers returns how far the placements are that lack segments of a partition that is led here, for each of them. The caller does not change it.
func (c *Copier) Transfers(p lease.Partition) []peer.Transfer {
	if all := c.transfers.Load(); all != nil {
		return (*all)[p]
	}
	return nil
}

// HeldBytes is the memory of the buffers of transfers under way.
func (c *Copier) HeldBytes() int64 { return c.held.Load() }

// Run copies until ctx ends.
func (c *Copier) Run(ctx context.Context) error {
	defer c.work.Wait()
	defer c.cancel()
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			c.look()
		case <-c.wake:
			for _, f := range c.take() {
				f()
			}
		}
	}
}

// messagesMax bounds the messages that wait for the loop. Those beyond it are lost: offers and answers are repeated.
const messagesMax = 1 << 14

// post has the loop call f.
func (c *Copier) post(f func()) {
	c.mu.Lock()
	c.mu.events = append(c.mu.events, f)
	c.mu.Unlock()
	c.poke()
}

// offer is post for a message of another server.
func (c *Copier) offer(f func()) {
	c.mu.Lock()
	full := len(c.mu.events) >= messagesMax
	if !full {
		c.mu.events = append(c.mu.events, f)
	}
	c.mu.Unlock()
	if full {
		c.metrics.lost.Inc()
		return
	}
	c.poke()
}

func (c *Copier) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Copier) take() []func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	fs := c.mu.events
	c.mu.events = nil
	return fs
}

// look compares the machines with the placements as they are now, and lets time go by.
func (c *Copier) look() {
	c.lookAtRate()
	c.lookAtLeading()
	c.lookAtMending()
	c.lookAtFiles()
	c.lookAtBroken()
	c.lookAtComparing()
}

// lookAtRate copies slower or faster, by how long fsyncs of the log last.
func (c *Copier) lookAtRate() {
	begun, took := c.deps.Brick.Fsyncs()
	next := rate.Limit(c.rate.Step(replica.Work{Copied: c.copied.Load(), Fsyncs: begun, Fsyncing: took}))
	if next == c.sends.Limit() {
		return
	}
	c.sends.SetLimit(next)
	c.receives.SetLimit(next)
	c.metrics.rate.Set(float64(next))
}

// send sends a message. One that cannot be sent is lost: its machine repeats it.
func (c *Copier) send(to lease.Member, r *peer.Route, m peer.LinkMessage) {
	l, ok := c.links[string(to.Server)]
	if !ok || chains.StoreOf(l.Peer().Store) != to.Store {
		return
	}
	if err := l.Send(r, m); err != nil {
		c.deps.Log.Debug("a message about a segment is not sent", "server", string(to.Server), "error", err)
	}
}

// free is the number of bytes that may be written for segments.
// The reserve of the disk is not part of it: the log needs that.
func (c *Copier) free() uint64 {
	if bytes, ok := c.deps.Brick.Room(); ok {
		return bytes
	}
	return math.MaxUint64
}

func keyOf(p lease.Partition, id point.PlacementID) replica.Key {
	return replica.Key{Table: p.Table, Partition: p.ID, Placement: id}
}

func partitionOf(k replica.Key) lease.Partition {
	return lease.Partition{Table: k.Table, ID: k.Partition}
}

// reasonOf is why a file was not adopted.
// The sender acts on it: Invalid has it send the same bytes again and in the end verify its own (Suspect); OutOfOrder
// has it begin again from the ends that the answer names; StaleEpoch and NoSpace, which stands for all other errors
// here, have it try again after a pause.
func reasonOf(err error, follows bool) replica.Reason {
	switch {
	case err == nil:
		return 0
	case fault.Is(err, fault.Corrupt):
		return replica.Invalid
	case fault.Is(err, fault.Stale) && follows:
		return replica.OutOfOrder
	case fault.Is(err, fault.Stale):
		return replica.StaleEpoch
	}
	return replica.NoSpace
}
