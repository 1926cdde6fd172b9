package runner

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/partition"
)

// placement runs a chain's machine at one placement, and the work that its effects need.
//
//	link, writer, fsync, tick ──post──▶ events ──▶ drain: one goroutine at a time, that of the first that posted
//	                                     └─ news: two of each kind and member
//	                                                 └─ a slow event: in a goroutine of its own, and all later ones
//
// An event seldom costs more than a goroutine's wake-up, so the goroutine that brings it handles it, unless another is at work.
//
// The life of a frame at the head, and at a member:
//
//	head     partition appends, under its lock: Pass ─▶ Appended ─▶ machine ─▶ PassOn ─▶ TryFrame, or Frame beside ─▶ Passed
//	                                                └─▶ unsynced ─▶ fsync ─▶ Synced ─┐
//	                                  Report of the members, over the chain ─────────┴─▶ Acked ─▶ Await returns
//	member   link: Frame ─▶ Received ─▶ machine ─▶ LogIt ─▶ Follow (append) ─▶ unsynced ─▶ fsync ─▶ Synced ─▶ Report, PassOn
//
// Lock order: the partition's lock (Pass), then mu, then Chains.unsynced or recents.mu. Chains.mu is acquired before mu, never within
// it. mu is held for a step of the machine, some microseconds; effects are performed without it, in order, as only one
// goroutine drains.
type placement struct {
	// Constant.
	c      *Chains
	key    lease.Partition
	self   lease.Member
	p      *partition.Partition
	ctx    context.Context
	cancel context.CancelFunc
	idle   *sync.Cond    // of mu: no goroutine drains
	sooner chan struct{} // a tick is due earlier than it was: the chain woke

	mu struct {
		sync.Mutex // acquired under the partition's lock by Pass: no other is acquired while it is held
		machine    *chain.Machine
		events     []event
		news       []*news // those of events
		draining   bool    // a goroutine handles events
		ended      bool    // no event is handled any more
		recent     recent
		unsynced   []appended  // frames in the log that are not known to be fsynced
		enlisted   bool        // in Chains.unsynced
		epoch      point.Epoch // epoch led here; 0: none
		acked      point.Serial
		waiting    []waiting
		others     []lease.Member  // placements on live servers of a partition that is led here
		armed      chain.Time      // when the next tick is due
		sure       []chan struct{} // closed once the machine is sure
		awake      bool            // counted in Chains.awake
	}

	// Owned by the goroutine that drains.
	// It may be another goroutine each time; draining, set and cleared under mu, orders them.
	// The record of current is needed by logIt; the machine sees serials and lengths alone.
	current  event // while its effects are performed
	cutting  bool
	adopting bool
	leads    []event // wait for the cut and the adoption
	looked   time.Time
}

var _ partition.Followers = (*placement)(nil)

// event is an input, a request to lead or to adopt a segment, the end of an adoption, or that time went by.
type event struct {
	in      chain.Input
	news    *news  // those of the same subject in the queue, nil: each counts
	rec     []byte // of a Pass
	release func()
	lead    *Led
	done    chan error
	adopt   *adoption
	adopted bool
	tick    bool
}

// appended is a frame in the log and the promise of its fsync.
type appended struct {
	serial point.Serial
	wait   brick.Wait
}

// waiting is a row's writer.
type waiting struct {
	upto point.Serial
	// soon: a Stall ends the wait with Unavailable, and the writer stages its rows on other servers. Without it the writer waits for Acked, Over or awaitMax.
	soon bool
	done chan error
}

func comparePartitions(a, b lease.Partition) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.ID, b.ID))
}

func newPlacement(c *Chains, key lease.Partition, p *partition.Partition) *placement {
	id := p.Identity().Placement
	x := &placement{c: c, key: key, p: p,
		self: lease.Member{Placement: id, Server: topology.ServerID(c.deps.Server), Store: c.deps.Store}}
	x.idle, x.sooner = sync.NewCond(&x.mu.Mutex), make(chan struct{}, 1)
	x.ctx, x.cancel = context.WithCancel(c.ctx)
	x.mu.recent.of = &c.recents
	x.mu.machine = chain.New(c.deps.Clock(), x.self, c.deps.Epoch(id), p.Ends(), c.settings)
	c.work.Go(x.loop)
	return x
}

// post has an event handled, by this goroutine unless another is at work. It does not wait; slow events get a goroutine of their own.
func (x *placement) post(e event) {
	x.mu.Lock()
	if x.mu.ended {
		x.mu.Unlock()
		x.refuse(e)
		return
	}
	x.queueLocked(e)
	x.mu.Unlock()
	x.drain()
}

// drain handles the events that wait, unless another goroutine does.
// A goroutine that finds another one at work leaves its event to that one and returns at once; no event is left behind,
// since handleAll looks for more and clears draining under one lock.
func (x *placement) drain() {
	x.mu.Lock()
	if x.mu.draining || x.mu.ended || len(x.mu.events) == 0 {
		x.mu.Unlock()
		return
	}
	x.mu.draining = true
	x.mu.Unlock()
	x.handleAll(false)
}

// handleAll handles events until none is left. A goroutine that must not be slow stops at the first slow event, and another one goes on from there.
func (x *placement) handleAll(maySlow bool) {
	for {
		x.mu.Lock()
		if len(x.mu.events) == 0 || x.mu.ended {
			x.mu.draining = false
			x.idle.Broadcast()
			x.mu.Unlock()
			return
		}
		e := x.mu.events[0]
		// draining stays set: the event and all behind it belong to the new goroutine, so their order is kept.
		if !maySlow && x.isSlow(&e) {
			x.mu.Unlock()
			x.c.work.Go(func() { x.handleAll(true) })
			return
		}
		// The slot is cleared, or the slice would keep the record's memory; a queue that runs empty begins at its front
		// again.
		if x.mu.events[0] = (event{}); len(x.mu.events) == 1 {
			x.mu.events = x.mu.events[:0]
		} else {
			x.mu.events = x.mu.events[1:]
		}
		x.unqueuedLocked(&e)
		x.mu.Unlock()
		x.handle(e)
	}
}

// isSlow reports whether an event may wait for a disk or for other work.
func (x *placement) isSlow(e *event) bool {
	if e.rec != nil {
		h, err := frame.Header(e.rec)
		return err == nil && !x.p.LogsOnly(&h)
	}
	return e.lead != nil || e.adopted
}

// loop posts the ticks that the machine asks for.
func (x *placement) loop() {
	defer x.end()
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-x.ctx.Done():
			return
		case <-tick.C:
			x.post(event{tick: true})
		case <-x.sooner:
		}
		x.mu.Lock()
		x.mu.armed = x.mu.machine.Wake()
		next := x.mu.armed - x.c.deps.Clock()
		x.mu.Unlock()
		// At least a millisecond: a machine that is due in the past, on a busy host, must not make this loop spin.
		tick.Reset(max(next, time.Millisecond))
	}
}

func (x *placement) handle(e event) {
	switch {
	case e.tick:
		x.tick()
	case e.lead != nil && (x.cutting || x.adopting):
		x.leads = append(x.leads, e)
	case e.lead != nil:
		e.done <- x.lead(e.lead)
	case e.adopt != nil:
		x.adopt(e.adopt)
	case e.adopted:
		x.adopted()
		x.leadNow()
	default:
		x.current = e
		if _, ok := e.in.(chain.WasCut); ok {
			x.cutting = false
		}
		x.step(e.in)
		x.current = event{}
		if e.release != nil {
			e.release()
		}
		x.leadNow()
	}
}

// leadNow continues with the requests that waited for a cut or an adoption.
func (x *placement) leadNow() {
	if !x.cutting && !x.adopting {
		for _, e := range x.leads {
			e.done <- x.lead(e.lead)
		}
		x.leads = nil
	}
}

// led is the epoch that is led here, or about to be; 0: none.
func (x *placement) led() point.Epoch {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.epoch
}

// tick gives the machine the time, and the state of the lease.
func (x *placement) tick() {
	if _, leads := x.leading(); leads {
		led, goesOn := x.c.deps.Leases.Led(x.key)
		x.step(chain.Lease{Epoch: led, GoesOn: goesOn})
		// The map's placements change rarely, and to copy them at each tick of a thousand chains costs too much.
		if now := time.Now(); now.Sub(x.looked) >= time.Second {
			x.looked = now
			x.place()
		}
	}
	x.step(chain.Tick{Awake: int(x.c.awake.Load())})
}

func (x *placement) leading() (point.Epoch, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.machine.Epoch()
}

func (x *placement) place() {
	in := x.c.deps.Leases.Placed(x.key)
	others := slices.DeleteFunc(slices.Clone(in.All), func(m lease.Member) bool { return m == x.self })
	x.mu.Lock()
	x.mu.others = others
	x.mu.Unlock()
	x.step(in)
}

// lead begins an epoch. The log is not cut meanwhile, and frames that the partition accepts from now on are inputs behind this one.
func (x *placement) lead(l *Led) error {
	if epoch, leads := x.leading(); leads && epoch == l.Epoch {
		return nil
	}
	x.mu.Lock()
	// Before LeadChain: the partition may accept and Pass a frame as soon as that returns, and its writer's Await must
	// find the epoch. acked begins at zero: what an earlier epoch acked says nothing of this one's frames.
	x.mu.epoch, x.mu.acked = l.Epoch, point.Serial{}
	x.mu.Unlock()
	if err := x.p.LeadChain(l.Epoch, x); err != nil {
		x.over(l.Epoch, err)
		return err
	}
	x.catchUp(l.Epoch)
	x.place()
	x.step(chain.Lead{Epoch: l.Epoch, List: l.List, Dropped: l.Dropped})
	x.c.deps.Log.Info("copies are led", "partition", x.key.String(), "epoch", l.Epoch, "in_sync", len(l.List), "dropped", len(l.Dropped))
	return nil
}

// catchUp reports frames of earlier epochs led here that the machine does not know: those accepted while this epoch began, whose events wait behind the
// request, and those of an epoch without a chain, which have no events. Without it the machine's end would lie before the predecessor that the first frame of
// this epoch names, and members would refuse that frame for ever.
func (x *placement) catchUp(epoch point.Epoch) {
	var earlier []chain.Appended
	x.mu.Lock()
	x.mu.events = slices.DeleteFunc(x.mu.events, func(e event) bool {
		a, ok := e.in.(chain.Appended)
		if ok = ok && a.Serial.Epoch < epoch; ok {
			earlier = append(earlier, a)
		}
		return ok
	})
	x.mu.Unlock()
	for _, a := range earlier {
		x.step(a)
	}
	ends := slices.DeleteFunc(slices.Clone(x.p.Ends()), func(e point.EpochEnd) bool { return e.Epoch >= epoch })
	x.mu.Lock()
	end, _ := x.mu.machine.End()
	x.mu.Unlock()
	if n := len(ends); n > 0 && end.Less(point.Serial(ends[n-1])) {
		x.step(chain.Adopted{Ends: ends})
	}
}

// listen reports to the machine whether anything at all came from the servers of members that have sent no message for a while. Mostly there are none.
func (x *placement) listen() {
	now := x.c.deps.Clock()
	x.mu.Lock()
	doubted := x.mu.machine.Doubted(now)
	x.mu.Unlock()
	for _, other := range doubted {
		if ago, ok := x.c.deps.Wire.LastReceived(other); ok {
			x.mu.Lock()
			x.mu.machine.Alive(other, now-ago)
			x.mu.Unlock()
		}
	}
}

// step gives the machine an input, and performs its effects.
func (x *placement) step(in chain.Input) {
	x.listen()
	x.mu.Lock()
	effects := x.mu.machine.Step(x.c.deps.Clock(), in, nil)
	x.woke()
	x.countLocked(x.mu.machine.Awake())
	x.mu.Unlock()
	for _, e := range effects {
		x.perform(e)
	}
}

// It runs without mu and may post events; they are handled after the effects of this input. What waits for a disk, a
// link or the lease store runs beside it or returns at once.
func (x *placement) perform(e chain.Effect) {
	switch e := e.(type) {
	case chain.Send:
		x.c.deps.Wire.Send(x.key, x.self, e.To, e.Message)
	case chain.PassOn:
		x.passOn(e)
	case chain.LogIt:
		x.logIt(e)
	case chain.Raise:
		x.c.work.Go(func() { x.raise(e) })
	case chain.Cut:
		x.cutting = true
		x.c.work.Go(func() { x.cut(e) })
	case chain.SetList:
		epoch, _ := x.leading()
		x.c.deps.Leases.Relist(x.key, epoch, e.Ask, e.Members)
	case chain.Acked:
		x.acked(e)
	case chain.Stall:
		x.stalled(e)
	case chain.Over:
		x.c.deps.Log.Warn("this server does not lead a partition's copies any more", "partition", x.key.String(), "epoch", e.Epoch, "reason", e.Why)
		x.over(e.Epoch, fault.Errorf(fault.Stale, "partition %v: %s; the row may be kept and is not acked", x.key, e.Why))
	case chain.Behind:
		x.c.deps.Log.Warn("a copy of a partition is so far behind that the log does not reach back to it; it stays out of the in-sync list until it has fetched segments",
			"partition", x.key.String(), "server", string(e.Member.Server), "ends", e.End.String())
	case chain.Note:
		x.c.deps.Log.Info("a partition's copies changed", "partition", x.key.String(), "server", string(e.Member.Server), "what", e.What.String())
	}
}

const (
	// againMax is the longest pause between two tries of a step that a copy needs to go on.
	againMax = 5 * time.Second
	// againDamagedMax is the same where a person has to act first. Such a try reads the whole log.
	againDamagedMax = time.Minute
)

// again calls f until it succeeds, is Stale, or the placement ends.
func (x *placement) again(what string, f func() error) bool {
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		err := f()
		level, most := slog.LevelWarn, againMax
		switch {
		case err == nil:
			return true
		case fault.Is(err, fault.Stale):
			return false
		case fault.Is(err, fault.Corrupt):
			level, most = slog.LevelError, againDamagedMax
		}
		pause = min(pause, most)
		x.c.deps.Log.Log(x.ctx, level, "a copy of a partition makes no progress; it is tried again", "partition", x.key.String(), "what", what, "error", err)
		select {
		case <-x.ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

// raise makes an epoch durable before the machine counts as promised (I3). A crash before that leaves the older
// promise, and the head asks again; a member that answered first could after a crash accept frames of the deposed head.
func (x *placement) raise(e chain.Raise) {
	if !x.again("begin an epoch", func() error { return x.p.FollowLeader(e.Epoch) }) {
		return
	}
	// From here on only this chain adds to the log. Frames added before without it are waited for, and reported to the machine.
	ends := x.p.Ends()
	x.mu.Lock()
	end, _ := x.mu.machine.End()
	x.mu.Unlock()
	if n := len(ends); n > 0 && point.Serial(ends[n-1]) != end {
		newest := point.Serial(ends[n-1])
		before := point.Serial{Epoch: newest.Epoch, Seq: newest.Seq - 1}
		if !x.again("await the log", func() error { return x.p.AwaitFramesUpTo(before, newest) }) {
			return
		}
		x.post(event{in: chain.Adopted{Ends: ends}})
	}
	x.post(event{in: chain.Raised(e)})
}

// cut makes the partition set surplus rows aside. If a higher epoch began meanwhile the same cut is requested again. The machine joins after WasCut, which
// comes once the cut is durable: a member that joined first would report the surplus as if the head had it. The recent frames are dropped, since some may have
// been cut.
func (x *placement) cut(e chain.Cut) {
	done := x.again("set surplus frames aside", func() error {
		_, err := x.p.Cut(e.After)
		return err
	})
	x.mu.Lock()
	x.mu.recent.clear()
	x.mu.Unlock()
	if done {
		x.post(event{in: chain.WasCut{After: e.After}})
	}
}

// logIt logs and applies the frame that just arrived.
func (x *placement) logIt(e chain.LogIt) {
	rec := x.current.rec
	wait, err := x.p.Follow(e.Epoch, rec)
	if last := x.p.Last(); err != nil && !last.Less(e.Serial) { // a segment that holds the frame was adopted a moment ago
		x.step(chain.Adopted{Ends: x.p.Ends()})
		return
	}
	if err != nil {
		x.c.deps.Log.Warn("a frame is not taken", "partition", x.key.String(), "serial", e.Serial.String(), "error", err)
		x.mu.Lock()
		x.mu.recent.clear()
		x.mu.Unlock()
		// The recent frames are dropped, and the machine gets the true end: the head sends again from there. No frame behind one that failed may be logged.
		x.step(chain.Failed{End: x.p.Last()})
		return
	}
	prev := x.current.in.(chain.Received).Message.(chain.Pass).Prev
	x.mu.Lock()
	x.logged(e.Serial, prev, rec, wait)
	x.mu.Unlock()
}

// logged records a frame that is in the log; the lock is held.
func (x *placement) logged(s, prev point.Serial, rec []byte, wait brick.Wait) {
	if !x.mu.ended { // else they are never cleared
		x.mu.recent.add(s, prev, rec)
	}
	x.mu.unsynced = append(x.mu.unsynced, appended{s, wait})
	if !x.mu.enlisted {
		x.mu.enlisted = true
		x.c.enlist(x)
		// noteSynced only appends an event; the caller drains later.
		x.noteSynced() // or it was fsynced before it was enlisted
	}
}

// noteSynced queues an input for the frames that were fsynced since the last one; the lock is held. It reports whether frames without an fsync are left. One
// input is enough: frames are fsynced in the order of the log, so the last one stands for those before it.
func (x *placement) noteSynced() (more bool) {
	n := 0
	for n < len(x.mu.unsynced) && x.mu.unsynced[n].wait.Done() {
		n++
	}
	if n > 0 {
		x.mu.events = append(x.mu.events, event{in: chain.Synced{Upto: x.mu.unsynced[n-1].serial}})
		left := copy(x.mu.unsynced, x.mu.unsynced[n:])
		clear(x.mu.unsynced[left:])
		x.mu.unsynced = x.mu.unsynced[:left]
	}
	return len(x.mu.unsynced) > 0
}

// Pass implements partition.Followers.
// The partition's lock is held, so that events have the order of the log. Pass only queues; HandOn drains once that lock is released.
func (x *placement) Pass(s, prev point.Serial, rec []byte, own brick.Wait) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.events = append(x.mu.events, event{in: chain.Appended{Serial: s, Prev: prev, Bytes: len(rec)}})
	x.logged(s, prev, rec, own)
}

// HandOn implements partition.Followers.
func (x *placement) HandOn() { x.drain() }

// passOn sends frames behind a serial: at once if they are in memory and the link has room, else beside the other work.
// BytesMax bounds the bytes, except that one frame always goes, whatever its size. After a partial success the machine
// asks for the rest by another PassOn.
func (x *placement) passOn(e chain.PassOn) {
	x.mu.Lock()
	epoch, _ := x.mu.machine.Epoch()
	frames, found := x.mu.recent.after(e.After, e.BytesMax)
	x.mu.Unlock()
	upto, bytes := e.After, 0
	for _, f := range frames {
		if bytes > 0 && bytes+len(f.rec) > e.BytesMax {
			break
		}
		if !found || f.prev != upto || !x.c.deps.Wire.TryFrame(x.key, epoch, x.self, e.To, f.rec) {
			break
		}
		upto, bytes = f.serial, bytes+len(f.rec)
	}
	if bytes == 0 {
		x.c.work.Go(func() { x.passOnLater(e, epoch) })
		return
	}
	x.post(event{in: chain.Passed{To: e.To, After: e.After, Upto: upto, Bytes: bytes}})
}

// passOnLater sends frames behind a serial, from memory or else from the log, some at a time, and waits for room on the link. They are read when there is room for them: a server that
// accepts few frames delays those of many partitions, and what waits must not fill the memory. Some may be gone by then, into segments: then the log is looked at again.
// Missing means that the log begins behind e.After: frames there went into segments, and the member needs those first
// (storage/replica/runner). An error of the link is not that; the machine tries again at the next ping.
func (x *placement) passOnLater(e chain.PassOn, epoch point.Epoch) {
	upto, bytes := e.After, 0
	missing, err := false, error(nil)
	for err == nil && (bytes == 0 || bytes < e.BytesMax) {
		last, n, size := x.framesBehind(upto, min(groupBytes, e.BytesMax-bytes))
		if missing = n == 0 && bytes == 0; n == 0 || bytes > 0 && bytes+size > e.BytesMax {
			break
		}
		err = x.c.deps.Wire.Frames(x.ctx, x.key, epoch, x.self, e.To, n, size, func(frame func([]byte) error) error {
			return x.eachFrame(upto, last, func(s, prev point.Serial, rec []byte) error {
				if prev != upto {
					missing = bytes == 0
					return errEnough
				}
				if err := frame(rec); err != nil {
					return err
				}
				upto, bytes = s, bytes+len(rec)
				return nil
			})
		})
	}
	if err != nil && !errors.Is(err, errEnough) && x.ctx.Err() == nil {
		x.c.deps.Log.Debug("frames are not passed on", "partition", x.key.String(), "server", string(e.To.Server), "error", err)
		missing = false
	}
	x.post(event{in: chain.Passed{To: e.To, After: e.After, Upto: upto, Bytes: bytes, Missing: missing && bytes == 0}})
}

// groupBytes is about how many bytes of frames are sent at once: few beside the first bytes of a link, which others share, also where each frame is one row, for which a link counts
// 256 bytes more; and many for each read of the log.
const groupBytes = 128 << 10

// framesBehind describes the frames behind a serial, in memory or in the log: the first one, and those that follow it within bytesMax. n is 0 where there are none.
func (x *placement) framesBehind(after point.Serial, bytesMax int) (upto point.Serial, n, bytes int) {
	x.mu.Lock()
	frames, found := x.mu.recent.after(after, bytesMax)
	x.mu.Unlock()
	if found {
		for _, f := range frames {
			if n > 0 && bytes+len(f.rec) > bytesMax {
				break
			}
			upto, n, bytes = f.serial, n+1, bytes+len(f.rec)
		}
	}
	if n == 0 {
		upto, n, bytes = x.p.FramesBehind(after, bytesMax)
	}
	if n == 1 {
		bytes = min(bytes, peer.LinkFrameBytesMax) // the log has some bytes more for a record than it is long
	}
	return upto, n, bytes
}

// eachFrame calls f with the frames behind a serial and up to another, from memory if they are there, else from the log.
func (x *placement) eachFrame(after, upto point.Serial, f func(s, prev point.Serial, rec []byte) error) error {
	x.mu.Lock()
	frames, found := x.mu.recent.after(after, groupBytes)
	x.mu.Unlock()
	if !found || len(frames) == 0 {
		return x.c.reads.do(x.ctx, func() error { return x.p.AwaitFramesUpTo(after, upto) }, func() error {
			return x.p.EachFrameUpTo(after, upto, func(s point.Serial, rec []byte) error {
				h, err := frame.Header(rec)
				if err != nil {
					return err
				}
				return f(s, h.Prev, rec)
			})
		})
	}
	for _, k := range frames {
		if upto.Less(k.serial) {
			break
		}
		if err := f(k.serial, k.prev, k.rec); err != nil {
			return err
		}
	}
	return nil
}

var errEnough = errors.New("enough")

// Await implements partition.Followers.
func (x *placement) Await(ctx context.Context, s point.Serial) error { return x.await(ctx, s, false) }

// AwaitSoon implements partition.Followers.
func (x *placement) AwaitSoon(ctx context.Context, s point.Serial) error {
	return x.await(ctx, s, true)
}

// await returns nil only for frames that all listed placements have (I1). Any error leaves the row in the log, where it
// may still be acked by all later: the caller answers that it is not acked, never that it is not there. Errors are
// Stale, Unavailable and Canceled.
func (x *placement) await(ctx context.Context, s point.Serial, soon bool) error {
	x.drain()
	x.mu.Lock()
	switch led := x.mu.epoch; {
	case led == 0, s.Epoch < led && !x.keptLocked(s):
		x.mu.Unlock()
		return fault.Errorf(fault.Stale, "partition %v is not led here any more: the row may be kept and is not acked", x.key)
	case !x.mu.acked.Less(s):
		x.mu.Unlock()
		return nil
	}
	w := waiting{s, soon, make(chan error, 1)}
	x.mu.waiting = append(x.mu.waiting, w)
	x.mu.Unlock()
	limit := time.NewTimer(awaitMax)
	defer limit.Stop()
	select {
	case err := <-w.done:
		return err
	case <-limit.C:
		return fault.Errorf(fault.Unavailable, "partition %v: not all placements had the row within %v; it is kept and not acked", x.key, awaitMax)
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.Canceled, "wait for the copies of partition %v", x.key)
	case <-x.ctx.Done():
		return fault.Errorf(fault.Unavailable, "the server stops; the row may be kept and is not acked")
	}
}

// keptLocked reports whether the log still has a frame of an earlier epoch than the one that is led: another server may have led in between, and cut it off. An ack of a later
// frame says nothing of it then. The lock is released meanwhile, since the log has its own; false if another epoch has begun by then.
func (x *placement) keptLocked(s point.Serial) bool {
	led := x.mu.epoch
	x.mu.Unlock()
	kept := slices.ContainsFunc(x.p.Ends(), func(e point.EpochEnd) bool { return e.Epoch == s.Epoch && e.Seq >= s.Seq })
	x.mu.Lock()
	return kept && x.mu.epoch == led
}

// awaitMax bounds how long a row's writer waits for the copies: longer than a failover lasts.
const awaitMax = 10 * time.Second

func (x *placement) acked(e chain.Acked) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.epoch != e.Epoch {
		return
	}
	x.mu.acked = e.Upto
	x.settle(func(w waiting) (bool, error) { return !e.Upto.Less(w.upto), nil })
}

// stalled ends the waits of writers that can keep their rows elsewhere.
func (x *placement) stalled(e chain.Stall) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.epoch == e.Epoch {
		why := fault.Annotate(e.Why, "partition %v: the row is kept here and not acked", x.key)
		x.settle(func(w waiting) (bool, error) { return w.soon, why })
	}
}

// over ends the waits for an epoch.
func (x *placement) over(epoch point.Epoch, why error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.epoch == epoch {
		x.mu.epoch = 0
		x.c.again.Store(true)
		x.settle(func(waiting) (bool, error) { return true, why })
	}
}

// settle answers the waiters for which f returns true; the lock is held.
// Each done has a slot of one and is sent to once, as the waiter leaves the list: the send never waits under the lock.
func (x *placement) settle(f func(waiting) (bool, error)) {
	left := x.mu.waiting[:0]
	for _, w := range x.mu.waiting {
		if done, err := f(w); done {
			w.done <- err
		} else {
			left = append(left, w)
		}
	}
	clear(x.mu.waiting[len(left):])
	x.mu.waiting = left
}

// end releases and answers all events that wait.
func (x *placement) end() {
	x.cancel()
	x.mu.Lock()
	x.mu.ended = true
	for x.mu.draining {
		x.idle.Wait()
	}
	x.countLocked(false)
	left := x.mu.events
	x.mu.events, x.mu.news = nil, nil
	x.mu.recent.clear()
	x.mu.Unlock()
	for _, e := range left {
		x.refuse(e)
	}
}

// refuse answers an event that is not handled any more.
func (x *placement) refuse(e event) {
	if e.release != nil {
		e.release()
	}
	if e.adopt != nil {
		e.adopt.done <- fault.Errorf(fault.Stale, "partition %v is no longer here", x.key)
	}
	if e.done != nil {
		e.done <- fault.Errorf(fault.Stale, "partition %v is no longer here", x.key)
	}
}
