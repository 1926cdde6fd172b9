package runner

import (
	"context"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/unload"
)

// mover moves the rows of one partition under one epoch.
type mover struct {
	u     *Unloads
	p     lease.Partition
	epoch point.Epoch
	begin unload.Begin
	ctx   context.Context
	stop  context.CancelFunc

	// Without a buffer: an input is either handled by run, or its sender sees by ctx that run has ended, and frees what
	// it carries (read closes its slice).
	inputs  chan input
	working sync.WaitGroup

	// run's alone.
	machine *unload.Machine
	slices  map[uint64]*slice
	asked   map[uint64]chan struct{} // deletions that wait

	mu struct {
		sync.Mutex
		progress     Progress
		first        time.Time // when the first slice was acked
		firstRows    int64     // of it
		lastDeletion uint64
		width        point.Nanos // of the next slice; 0: not known yet
		owed         int64       // bytes read, not yet paid at the limit
	}
}

// input is one for the machine. Of a deletion, permitted is closed when it may begin; of a slice that was read, slice has its rows.
type input struct {
	unload.Input
	permitted chan struct{}
	slice     *slice
}

func newMover(u *Unloads, p lease.Partition, epoch point.Epoch, begin unload.Begin) *mover {
	m := &mover{u: u, p: p, epoch: epoch, begin: begin, inputs: make(chan input), slices: map[uint64]*slice{}, asked: map[uint64]chan struct{}{}}
	m.ctx, m.stop = context.WithCancel(u.ctx)
	m.mu.progress = Progress{Partition: p, Since: time.Now()}
	return m
}

// settlePause is the time between tries to settle.
const settlePause = 500 * time.Millisecond

func (m *mover) run() {
	defer m.end()
	at, err := m.settle()
	if err != nil {
		return
	}
	m.machine = unload.New(m.u.settings.Machine, at.TimeLo, at.TimeHi)
	m.u.deps.Log.Info("the rows of a partition move to those that took over from it", "partition", m.p.String(), "to", at.Into)
	m.step(input{Input: m.begin})
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case in := <-m.inputs:
			m.step(in)
		case <-timer.C:
			m.step(input{Input: unload.Tick{}})
		}
		if wake := m.machine.Wake(); wake.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(wake))
		}
	}
}

// end lets go of all slices once no goroutine uses them.
// working first: a delivery reads the frames of its slice until it returns.
func (m *mover) end() {
	m.stop()
	m.working.Wait()
	for _, s := range m.slices {
		s.close()
	}
}

// settle returns the partition, of which no row is accepted any more.
func (m *mover) settle() (*topology.Partition, error) {
	for {
		tm, _ := m.u.deps.Ways.Map(m.p.Table)
		if tm != nil {
			if at, ok := tm.ByID(m.p.ID); ok && at.State == topology.Unload {
				err := m.u.deps.Partitions.EndWrites(m.ctx, m.p, m.epoch)
				if err == nil {
					return at, nil
				}
				m.u.deps.Log.Debug("a partition whose rows are to move is not settled yet", "partition", m.p.String(), "error", err)
			}
		}
		select {
		case <-m.ctx.Done():
			return nil, m.ctx.Err()
		case <-time.After(settlePause):
		}
	}
}

// send gives run an input; false: it has ended.
func (m *mover) send(in input) bool {
	select {
	case m.inputs <- in:
		return true
	case <-m.ctx.Done():
		return false
	}
}

// step gives the machine an input and performs its effects.
// Only run calls it, so the machine and the maps need no lock. Read, delivery and the caller's deletion run beside it
// and come back as inputs.
func (m *mover) step(in input) {
	switch x := in.Input.(type) {
	case unload.Read:
		m.slices[x.ID] = in.slice
	case unload.Delete:
		m.asked[x.ID] = in.permitted
	case unload.Deleted:
		delete(m.asked, x.ID)
	case unload.Sent:
		m.count(x)
	}
	for _, e := range m.machine.Step(time.Now(), in.Input) {
		switch e := e.(type) {
		case unload.ReadSlice:
			m.working.Go(func() { m.read(e) })
		case unload.Send:
			s := m.slices[e.ID]
			m.working.Go(func() { m.send(input{Input: unload.Sent{ID: e.ID, OK: m.deliver(s)}}) })
		case unload.Drop:
			m.slices[e.ID].close()
			delete(m.slices, e.ID)
		case unload.Permit:
			close(m.asked[e.ID])
		case unload.FindLeaders:
			m.working.Go(func() {
				servers, known := m.u.deps.Ways.Holders(m.ctx, m.p, m.epoch, m.mayInherit())
				m.send(input{Input: unload.Leaders{ID: e.ID, Known: known, Servers: servers}})
			})
		case unload.EndSlices:
			m.working.Go(func() {
				m.send(input{Input: unload.Answered{ID: e.ID, Server: e.Server, OK: m.endSlices(e.Server)}})
			})
		case unload.Finish:
			m.u.deps.Log.Info("the rows of a partition are all in those that took over from it", "partition", m.p.String())
			m.u.deps.Finished(m.p, m.epoch)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.progress.UpTo, m.mu.progress.Finished = m.machine.Progress()
}

// mayInherit reports whether rows of the partition may go to another one: by the map they share times, or the map does not have it.
func (m *mover) mayInherit() func(point.PartitionID) bool {
	tm, _ := m.u.deps.Ways.Map(m.p.Table)
	if tm == nil {
		return func(point.PartitionID) bool { return true }
	}
	at, ok := tm.ByID(m.p.ID)
	return func(id point.PartitionID) bool {
		o, known := tm.ByID(id)
		return id != m.p.ID && (!ok || !known || o.TimeLo < at.TimeHi && at.TimeLo < o.TimeHi)
	}
}

// endSlices has a server refuse slices of earlier leaders, and reports whether it does.
func (m *mover) endSlices(at topology.ServerID) bool {
	ctx, cancel := context.WithTimeout(m.ctx, m.u.settings.Machine.SendWithin)
	defer cancel()
	storage, _ := m.u.deps.Ways.Server(at)
	ender, ok := storage.(peer.SliceEnder)
	if !ok {
		return false
	}
	err := ender.EndSlices(ctx, m.p.Table, m.p.ID, m.epoch)
	if err != nil {
		m.u.deps.Log.Debug("a server does not refuse rows of an earlier leader of a partition that unloads; deletions wait for their time", "partition", m.p.String(), "server", at, "error", err)
	}
	return err == nil
}

// count counts the rows of a slice that is acked.
func (m *mover) count(in unload.Sent) {
	s := m.slices[in.ID]
	if !in.OK || s == nil {
		m.u.metrics.failed.Inc()
		return
	}
	m.u.metrics.rows.Add(float64(s.rows))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.progress.Rows += int64(s.rows)
	m.mu.progress.Moved = time.Now()
	if m.mu.first.IsZero() {
		m.mu.first, m.mu.firstRows = m.mu.progress.Moved, m.mu.progress.Rows
	}
}

// Deleted is sent however f ends, also by a panic or a caller that gave up before it was permitted: without it the
// machine would send no slice any more.
func (m *mover) delete(ctx context.Context, f func() error) error {
	m.mu.Lock()
	m.mu.lastDeletion++
	id := m.mu.lastDeletion
	m.mu.Unlock()
	permitted := make(chan struct{})
	select {
	case m.inputs <- input{Input: unload.Delete{ID: id}, permitted: permitted}:
	case <-m.ctx.Done():
		return fault.Wrap(errEnded, fault.Unavailable, "delete from partition %v", m.p)
	case <-ctx.Done(): // it is not settled
		return fault.Wrap(ctx.Err(), fault.Canceled, "delete from partition %v", m.p)
	}
	defer m.send(input{Input: unload.Deleted{ID: id}})
	select {
	case <-permitted:
		return f()
	case <-m.ctx.Done():
		return fault.Wrap(errEnded, fault.Unavailable, "delete from partition %v", m.p)
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.Canceled, "delete from partition %v, whose rows move to others", m.p)
	}
}
