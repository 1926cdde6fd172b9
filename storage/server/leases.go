package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/gate"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Leadership decides for which partitions this process acts, and under which epoch. Safe for concurrent use. All methods
// but Hold are called for every request and cost a look-up.
type Leadership interface {
	// MayAct reports whether the partition's lease is good at this moment (C105).
	MayAct(table string, id point.PartitionID) (point.Epoch, bool)
	// Alone reports whether the placement here led when the lease lapsed and is the only one in sync: then no other server
	// leads it, and a row kept here is kept by all.
	Alone(table string, id point.PartitionID) (point.Epoch, bool)
	// Hold returns when no other server can lead the partition any more; it is called before the first row of an epoch is acked. Errors are
	// Stale and Canceled.
	Hold(ctx context.Context, table string, id point.PartitionID, epoch point.Epoch) error
	// Wanted reports a request for a partition that this process does not lead. A partition that is not due yet is then led at once.
	Wanted(table string, id point.PartitionID)
	// Why returns, for the answer to a request, the reason why this process does not lead.
	Why(table string, id point.PartitionID) string
}

// always is the lease of a process that runs alone.
type always struct{ epoch point.Epoch }

func (a always) MayAct(string, point.PartitionID) (point.Epoch, bool) { return a.epoch, true }
func (a always) Alone(string, point.PartitionID) (point.Epoch, bool)  { return a.epoch, true }
func (a always) Hold(context.Context, string, point.PartitionID, point.Epoch) error {
	return nil
}
func (a always) Wanted(string, point.PartitionID)     {}
func (a always) Why(string, point.PartitionID) string { return "" }

// mayWrite returns the epoch under which a partition accepts rows that are to be acked at a level.
func (s *Server) mayWrite(table string, id point.PartitionID, level point.Level) (point.Epoch, bool) {
	epoch, ok := s.leadership.MayAct(table, id)
	if !ok && level == point.All {
		return s.leadership.Alone(table, id)
	}
	return epoch, ok
}

// mayRead reports whether this server has all rows of a partition.
func (s *Server) mayRead(table string, id point.PartitionID) bool {
	if _, ok := s.leadership.MayAct(table, id); ok {
		return true
	}
	_, ok := s.leadership.Alone(table, id)
	return ok && (!s.kept(table, id) || s.deps.Chains.Sure(lease.Partition{Table: table, ID: id}))
}

// notLed makes the Stale error that sends the caller to the leader.
func (s *Server) notLed(table string, id point.PartitionID) error {
	var seq uint64
	if m, ok := s.deps.Maps.Get(table); ok {
		seq = m.Seq
	}
	s.leadership.Wanted(table, id)
	return fault.Errorf(fault.Stale, "server %s does not lead partition %s/%d (map %d here): %s", s.settings.Server, table, id, seq, s.leadership.Why(table, id))
}

// door is a partition's gate for changes; callers can wait until it is idle.
//
//	enter ─▶ ask the lease ─▶ change, fsync ─▶ ask again ─▶ leave        a change that asks after the lease ended is refused,
//	                                              lease ends ─▶ wait     one that asked before is waited for
//
// mu is held for a few instructions. gate.Gate is the machine: it counts the changes under way and has the state open,
// sealed, handed over or doubtful. idle is made by the first that waits and closed by the last change that leaves, so
// an insert pays for no channel.
type door struct {
	rows atomic.Uint64 // accepted here as the leader since the process began

	mu   sync.Mutex
	gate gate.Gate
	idle chan struct{} // closed when no change is under way any more; nil: no goroutine waits for it
	over chan struct{} // closed when a hand-over is decided; nil: no goroutine waits for it
}

// do calls f with the gate under its lock.
func (d *door) do(f func(*gate.Gate)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.gate)
	if d.over != nil && !d.gate.Undecided() {
		close(d.over)
		d.over = nil
	}
}

// decision returns a channel that is closed when the hand-over under way is decided; nil: there is none.
func (d *door) decision() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over == nil && d.gate.Undecided() {
		d.over = make(chan struct{})
	}
	return d.over
}

// enter reports whether the gate is open; a caller that entered must leave.
func (d *door) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gate.Enter()
}

// join enters a gate that may be closed.
func (d *door) join() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gate.Join()
}

func (d *door) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate.Leave() && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
}

// quiet reports whether no change is under way, and none may begin.
func (d *door) quiet() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gate.Quiet()
}

func (d *door) doubtful(seq uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gate.Doubtful(seq)
}

// wait returns when no change is under way. Errors are Canceled.
func (d *door) wait(ctx context.Context) error {
	d.mu.Lock()
	if d.gate.Idle() {
		d.mu.Unlock()
		return nil
	}
	if d.idle == nil {
		d.idle = make(chan struct{})
	}
	idle := d.idle
	d.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pass is the right to change a partition, until leave.
type pass struct {
	gate  *door
	id    point.PartitionID
	epoch point.Epoch
	level point.Level
}

// enter grants the right to change a partition under the epoch that is led, once no hand-over is undecided. While it waits for that, the change is in q, the queue of the caller's
// stream, with its approximate size n in bytes. Errors are Stale and Canceled.
//
// The lease is asked again behind the gate. Were it asked only before, a lease could end, and Quiesce find the gate
// idle, between the question and the entry: the row would be written after this server reported the end of its log, and
// the next leader would not have it.
func (s *Server) enter(ctx context.Context, t *table, id point.PartitionID, level point.Level, q *gateQueue, n int) (pass, error) {
	if _, ok := s.mayWrite(t.name, id, level); !ok { // before a gate is made: a request may name any partition
		return pass{}, s.notLed(t.name, id)
	}
	g := t.gate(id)
	if !g.enter() {
		if err := s.enterLate(ctx, t, id, g, q, n); err != nil {
			return pass{}, err
		}
	}
	epoch, ok := s.mayWrite(t.name, id, level)
	if !ok {
		g.leave()
		return pass{}, s.notLed(t.name, id)
	}
	return pass{g, id, epoch, level}, nil
}

// enterLate enters a gate that is closed, once that is open again. Errors are Stale and Canceled.
func (s *Server) enterLate(ctx context.Context, t *table, id point.PartitionID, g *door, q *gateQueue, n int) error {
	waits := s.metrics.handOverWaits
	if decided := g.decision(); decided != nil {
		if !q.join(n) {
			waits.WithLabelValues(waitFull).Inc()
			return fault.Errorf(fault.Stale, "partition %s/%d is being handed over, and as many inserts of this stream wait for that as may: send this again", t.name, id)
		}
		err := s.awaitHandOver(ctx, decided)
		q.leave(n)
		if err != nil {
			waits.WithLabelValues(waitLeft).Inc()
			return err
		}
	}
	switch {
	case g.enter():
		waits.WithLabelValues(waitOpen).Inc()
		return nil
	case g.decision() != nil:
		waits.WithLabelValues(waitUndecided).Inc()
		return fault.Errorf(fault.Stale, "partition %s/%d is being handed over, and the outcome is not known yet: send this again", t.name, id)
	}
	waits.WithLabelValues(waitOver).Inc()
	return fault.Errorf(fault.Stale, "partition %s/%d takes no more rows: others have taken over its part of the keyspace", t.name, id)
}

// awaitHandOver returns when a hand-over is decided, or after HandOverMax. Errors are Canceled.
func (s *Server) awaitHandOver(ctx context.Context, decided <-chan struct{}) error {
	peer.Waiting(ctx)()
	limit := time.NewTimer(s.settings.HandOverMax)
	defer limit.Stop()
	select {
	case <-decided:
	case <-limit.C:
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.Canceled, "a partition is being handed over")
	}
	return nil
}

// confirm decides whether a change may be acked: the lease must have been good all the time (C105).
func (s *Server) confirm(t *table, p pass) error {
	if epoch, ok := s.mayWrite(t.name, p.id, p.level); !ok || epoch != p.epoch {
		s.metrics.unconfirmed.Inc()
		return fault.Errorf(fault.Stale, "the lease of partition %s/%d ended while this was being done: it may be kept and is not acked; do it again at the leader", t.name, p.id)
	}
	return nil
}

// led returns the partition of a pass, ready to accept rows under its epoch. The first row creates it, once no other
// server can lead it. Errors are Stale, Canceled and Unavailable.
func (s *Server) led(ctx context.Context, t *table, pa pass) (*partition.Partition, error) {
	p, ok := t.get(pa.id)
	kept := s.kept(t.name, pa.id)
	if ok && p.Leads(pa.epoch) {
		// A chain decides for each row whether enough placements keep it; a partition without one needs its lease
		// alone.
		if kept {
			return p, s.deps.Chains.Accepts(lease.Partition{Table: t.name, ID: pa.id})
		}
		return p, nil
	}
	at, pl, err := s.placed(t, pa.id)
	if err != nil {
		return nil, err
	}
	if ok && p.Identity().Placement != pl.ID {
		return nil, fault.Errorf(fault.Stale, "partition %s/%d: an older placement, %s, is still on server %s", t.name, pa.id, p.Identity().Placement, s.settings.Server)
	}
	if ro, why := s.deps.Brick.ReadOnly(); ro { // the list would bind a partition to this server that has no rows here and gets none
		return nil, fault.Errorf(fault.Unavailable, "%s", why)
	}
	peer.Waiting(ctx)()
	if err := s.leadership.Hold(ctx, t.name, pa.id, pa.epoch); err != nil {
		return nil, err
	}
	if !ok {
		// The epoch is raised durably by create before the first row, so that after a crash no row of a lower epoch is
		// accepted (I3).
		epoch := pa.epoch
		if kept {
			epoch = 0 // its chain begins the epoch
		}
		if p, err = s.create(t, at, pl, epoch); err != nil {
			return nil, err
		}
	}
	s.rankAbove(ctx, t, p, at, pa.epoch)
	if !kept {
		return p, p.Lead(pa.epoch)
	}
	key := lease.Partition{Table: t.name, ID: pa.id}
	if err := s.deps.Chains.Lead(ctx, key, p, pa.epoch); err != nil {
		return nil, err
	}
	return p, s.deps.Chains.Accepts(key) // the list of an epoch before may be shorter than the table demands by now
}

// placed looks up the placement on this server that the table's map gives a partition.
func (s *Server) placed(t *table, id point.PartitionID) (*topology.Partition, topology.Placement, error) {
	m, ok := s.deps.Maps.Get(t.name)
	if !ok {
		return nil, topology.Placement{}, fault.Errorf(fault.Stale, "table %q is not known here", t.name)
	}
	at, ok := m.ByID(id)
	if !ok {
		return nil, topology.Placement{}, fault.Errorf(fault.Stale, "partition %s/%d does not exist by map %d", t.name, id, m.Seq)
	}
	pl, ok := at.On(s.settings.Server)
	if !ok {
		return nil, topology.Placement{}, fault.Errorf(fault.Stale, "partition %s/%d is not placed here by map %d", t.name, id, m.Seq)
	}
	return at, pl, nil
}

// create makes a partition that leads in an epoch. Epoch 0: its chain decides whether it leads, and until then it follows no leader yet; if it led meanwhile, a
// deletion could begin an epoch that no copy learns of.
func (s *Server) create(t *table, at *topology.Partition, pl topology.Placement, epoch point.Epoch) (*partition.Partition, error) {
	return t.create(at.ID, func() (*partition.Partition, error) {
		ident := partition.Identity{Table: t.name, Partition: at.ID, Placement: pl.ID, TimeLo: at.TimeLo, TimeHi: at.TimeHi,
			PointLo: at.PointLo, PointHi: at.PointHi}
		// One that comes back: before its epoch and its entry are written, since the end of a drop forgets both, and removes all files.
		if err := s.deps.Brick.RemoveNow(pl.ID); err != nil {
			return nil, err
		}
		if err := s.deps.Brick.RaiseEpoch(pl.ID, epoch); err != nil {
			return nil, err
		}
		p, err := partition.Create(s.partitionDeps(t), s.settings.Partition, ident, epoch)
		if err == nil && epoch == 0 {
			err = p.FollowLeader(0)
		}
		if err == nil {
			s.deps.Log.Info("partition created", "table", t.name, "partition", at.ID, "placement", pl.ID, "epoch", epoch)
		}
		return p, err
	})
}

// The lease keeper's interface to the server.

// Damaged lists the partitions of which files are damaged here, by table and time.
func (s *Server) Damaged() (all []partition.Identity) {
	for _, t := range s.tables() {
		for _, p := range t.all() {
			if p.Damaged() != nil {
				all = append(all, p.Identity())
			}
		}
	}
	return all
}

// Held is a placement that this server has rows or files of.
type Held struct {
	partition.Identity
	Empty bool // it never accepted a row
}

// Held lists all placements here, those of a table by time.
func (s *Server) Held() []Held {
	var out []Held
	for _, t := range s.tables() {
		for _, p := range t.all() {
			out = append(out, Held{p.Identity(), p.Empty()})
		}
	}
	return out
}

// Empty reports whether a partition never accepted a row here.
func (s *Server) Empty(name string, id point.PartitionID) bool {
	if t, ok := s.table(name); ok {
		if p, ok := t.get(id); ok {
			return p.Empty()
		}
	}
	return true
}

// Quiesce waits until every change of a partition that entered before its lease ended is done, and returns the last
// frame of each epoch; nil if the partition was never written to. Errors are Canceled.
func (s *Server) Quiesce(ctx context.Context, name string, id point.PartitionID) ([]point.EpochEnd, error) {
	t, ok := s.table(name)
	if !ok {
		return nil, nil
	}
	if err := t.gate(id).wait(ctx); err != nil {
		return nil, err
	}
	if p, ok := t.get(id); ok {
		return p.Ends(), nil
	}
	return nil, nil
}

// Seal makes a partition refuse rows, because the map gives them to other partitions. The rows here stay readable.
func (s *Server) Seal(name string, id point.PartitionID) {
	s.tableOrNew(name).gate(id).do((*gate.Gate).Seal)
}

// Unseal undoes a Seal: the map gave the partition back. It does not end a HandOver.
func (s *Server) Unseal(name string, id point.PartitionID) { s.atGate(name, id, (*gate.Gate).Open) }

// HandOver makes a partition refuse rows while other partitions are about to own its part of the keyspace. Until
// this process has the outcome, it answers no read by a map without those: the transaction may be committed, and
// their rows acked, before this process learns of that.
// If the outcome of the transaction is not known in time the leader lets rows in again under Doubt: TakeBack needs the
// proof that it did not commit.
func (s *Server) HandOver(name string, id point.PartitionID) {
	s.tableOrNew(name).gate(id).do((*gate.Gate).HandOver)
}

// TakeBack ends a HandOver: the other partitions do not own its keys, and will not.
func (s *Server) TakeBack(name string, id point.PartitionID) {
	s.atGate(name, id, (*gate.Gate).TakeBack)
}

// Doubt lets rows in, although other partitions may own its keys by now. Readers wait until this process has a map newer
// than seq, which confirms or excludes it, or for Settle.
func (s *Server) Doubt(name string, id point.PartitionID, seq uint64) {
	s.tableOrNew(name).gate(id).do(func(g *gate.Gate) { g.Doubt(seq) })
}

// Settle ends a Doubt: no proposal on a map up to seq made other partitions own its keys, or will.
func (s *Server) Settle(name string, id point.PartitionID, seq uint64) {
	s.atGate(name, id, func(g *gate.Gate) { g.Settle(seq) })
}

// atGate calls f with a partition's gate, if there is one.
func (s *Server) atGate(name string, id point.PartitionID, f func(*gate.Gate)) {
	if d, ok := s.gateOf(name, id); ok {
		d.do(f)
	}
}

// gateOf returns a partition's gate, if there is one.
func (s *Server) gateOf(name string, id point.PartitionID) (*door, bool) {
	t, ok := s.table(name)
	if !ok {
		return nil, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	g, ok := t.mu.gates[id]
	return g, ok
}

// Forget drops the state of a partition that is not here and will not be led again.
func (s *Server) Forget(name string, id point.PartitionID) {
	if t, ok := s.table(name); ok {
		t.forget(id)
	}
}

// RemovePlacement removes a placement and all its rows but those that it alone has (surplus): these are put in lost+found. Another placement of the partition may come after it. A
// placement that is not here is no error. After an error it can be called again. IfEmpty: one with rows by now stays, and the error is Stale.
func (s *Server) RemovePlacement(name string, id point.PartitionID, placement point.PlacementID, ifEmpty bool) error {
	t, ok := s.table(name)
	if !ok {
		return nil
	}
	return t.remove(id, placement, ifEmpty, func(p *partition.Partition) bool { return s.livesOn(t, p) })
}

// livesOn reports whether the rows of a partition are to be kept somewhere: its map has a partition of the same time, or it is not known. Else the table was dropped, or the rows are
// older than it keeps.
func (s *Server) livesOn(t *table, p *partition.Partition) bool {
	m, ok := s.deps.Maps.Get(t.name)
	return !ok || len(m.Overlapping(p.Identity().TimeLo, p.Identity().TimeHi-1)) > 0
}
