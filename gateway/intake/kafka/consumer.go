package kafka

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Deps are a Consumer's dependencies.
type Deps struct {
	Writer     intake.Writer
	Limits     *limits.Registry      // default: tables have none
	Replicas   intake.Replicas       // default: all rows are kept
	Senders    *recent.Senders       // default: topics are not listed as senders
	Clock      *clock.Clock          // by which rows are judged; default: the machine's
	Memory     *budget.Account       // of records; where it has no room, less is read. Default: they are not counted
	Log        *slog.Logger          // default: none
	Registerer prometheus.Registerer // default: none
	// Dial opens connections to brokers, where it is not the usual way.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Consumer reads the topics of all clusters. Its methods may be called from many goroutines, Run once.
type Consumer struct {
	// Constant after New.
	deps     Deps
	settings Settings
	base     time.Time // dues are whole ticks later
	log      *slog.Logger
	metrics  *metrics
	members  []*member
	booking  *budget.Ahead // of records, in deps.Memory; nil: they are not counted
	unpacked unpacked
	answers  *answers
	long     sync.Mutex   // of the worker that unpacks a long record
	decoding atomic.Int64 // bytes of records that workers unpack and of the rows in them

	inFlightMax atomic.Int64 // as shares.max
	polled      atomic.Int64 // bytes of records in flight and waiting in their topics, when that was last computed

	jobs atomic.Int64 // as many as running has

	// turning is held while pauses and sizes of fetches are computed and passed to a client, so that an older decision never
	// follows a newer one. It is acquired before mu.
	turning sync.Mutex

	mu      sync.Mutex
	tracker *tracker          // guarded by mu
	queue   *queue            // guarded by mu
	shares  *shares           // guarded by mu
	running map[*job]struct{} // guarded by mu
	changed chan struct{}     // guarded by mu; closed and replaced when there may be work
}

// Writing reports whether records are being decoded and written, or wait for a disk.
func (c *Consumer) Writing() bool { return c.jobs.Load() > 0 }

// job is the work of one worker.
type job struct {
	*work
	cancel context.CancelFunc
	done   chan struct{}
}

// New makes a Consumer; it connects when it runs. The error is Invalid.
func New(d Deps, s Settings) (*Consumer, error) {
	s.SetDefaults()
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	c := &Consumer{
		deps: d, settings: s, base: time.Now(), log: d.Log,
		tracker: newTracker(), queue: newQueue(s.InFlightBytesMax), shares: newShares(s.InFlightBytesMax),
		running: map[*job]struct{}{}, changed: make(chan struct{}),
	}
	c.inFlightMax.Store(s.InFlightBytesMax)
	c.answers = newAnswers(c.inFlightMax.Load, func() { c.cover(c.raw() + c.polled.Load() + c.unpacked.held()) })
	c.booking = newBooking(d.Memory, s.InFlightBytesMax)
	c.metrics = newMetrics(c)
	if d.Registerer != nil {
		if err := d.Registerer.Register(c.metrics); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "kafka metrics")
		}
	}
	for i := range s.Clusters {
		c.members = append(c.members, newMember(c, i))
	}
	return c, nil
}

// Run consumes until ctx ends; then it finishes the work under way, commits, leaves the groups, and returns nil. It waits
// for brokers that are away and does not report them; the error is for settings that fail only in use, such as a
// dead-letter file that cannot be opened.
func (c *Consumer) Run(ctx context.Context) error {
	for _, m := range c.members {
		if err := m.open(); err != nil {
			for _, m := range c.members {
				m.close()
			}
			return err
		}
	}
	// Workers outlive ctx: leaving a group revokes its partitions, and that waits for the work under way and commits it.
	working, stop := context.WithCancel(context.Background())
	defer stop()
	var workers, members sync.WaitGroup
	for range c.settings.Workers {
		w := newWorker(c)
		workers.Go(func() { w.loop(working) })
	}
	if c.booking != nil {
		workers.Go(func() { c.followMemory(working) })
	}
	for _, m := range c.members {
		members.Go(func() { m.run(ctx) })
	}
	members.Wait()
	stop()
	workers.Wait()
	if c.booking != nil {
		c.booking.Trim(0)
	}
	return nil
}

func newWorker(c *Consumer) *worker {
	w := &worker{c: c}
	if err := w.renew(); err != nil {
		fault.Bug("settings that were checked: %v", err)
	}
	return w
}

// loop does work until ctx ends.
func (w *worker) loop(ctx context.Context) {
	defer func() { w.decoder.Close(); w.book(0) }()
	for {
		ctx, j := w.c.take(ctx)
		if j == nil {
			return
		}
		m := w.c.members[j.topic.member]
		err := w.process(ctx, m, j.work)
		w.c.finish(j, err)
	}
}

// take waits for work; nil: ctx has ended.
func (c *Consumer) take(ctx context.Context) (context.Context, *job) {
	for ctx.Err() == nil {
		c.mu.Lock()
		w, next := c.queue.take(time.Now(), c.settings.WriteBytesMax)
		if w != nil {
			ctx, cancel := context.WithCancel(ctx)
			j := &job{work: w, cancel: cancel, done: make(chan struct{})}
			c.running[j] = struct{}{}
			c.jobs.Store(int64(len(c.running)))
			c.mu.Unlock()
			return ctx, j
		}
		changed := c.changed
		c.mu.Unlock()
		wait(ctx, changed, next)
	}
	return ctx, nil
}

// wait returns at the end of ctx, at a change, or at a time unless it is zero.
func wait(ctx context.Context, changed <-chan struct{}, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
	case <-changed:
	case <-due:
	}
}

// wakeLocked makes idle workers look again.
func (c *Consumer) wakeLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// finish returns a job: its settled records move the tracker, the others wait for their next try.
func (c *Consumer) finish(j *job, err error) {
	m := c.members[j.topic.member]
	retryAt := time.Now()
	if err != nil {
		pause := max(m.pause(j.attempts), min(limits.RetryAfter(err, 0), time.Duration(m.cluster.RetryMax)))
		retryAt = retryAt.Add(pause)
		m.failed(j, err, pause)
	}
	c.mu.Lock()
	c.queue.giveBack(j.work, retryAt,
		func(b *batch) { c.tracker.finish(b.ticket) },
		func(b *batch) { c.shares.add(b.ticket.partition, -b.bytes) })
	delete(c.running, j)
	c.jobs.Store(int64(len(c.running)))
	c.wakeLocked()
	held := c.heldLocked()
	c.mu.Unlock()
	c.cover(held)
	j.cancel()
	close(j.done)
	c.turn()
}

// pause is the wait of work that has failed so many times before.
func (m *member) pause(attempts int) time.Duration {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier, b.MaxInterval = 100*time.Millisecond, 2, time.Duration(m.cluster.RetryMax)
	b.Reset()
	d := b.NextBackOff()
	for range min(attempts, 30) {
		d = b.NextBackOff()
	}
	return d
}
