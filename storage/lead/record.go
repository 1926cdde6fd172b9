package lead

import (
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
)

// record is what is known of one partition's lease.
type record struct {
	placement point.PlacementID // as assigned; 0: it is not
	epoch     point.Epoch       // of the newest Leads
	leading   bool              // between Leads and Stops
	lapsed    bool              // it stopped because the heartbeat was not renewed, and nothing was heard since
	alone     bool              // by the row as last known this placement is the only one in sync, of rows that there may be
	members   int               // in sync, by that row
	holding   bool              // a SetInSync is under way
	why       string            // of the last Stops
	changed   chan struct{}     // closed at the next change; nil: nobody waits for it
}

func (r *record) wait() <-chan struct{} {
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

func (r *record) wake() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *record) see(l *lease.Lease, self lease.Member) {
	r.members = len(l.InSync)
	r.alone = r.members == 1 && l.InSync[0] == self && !l.Empty
}

func (l *Lead) self(p point.PlacementID) lease.Member {
	return lease.Member{Placement: p, Server: l.settings.Server, Store: l.store}
}

// Leads implements keeper.Handler.
func (l *Lead) Leads(e lease.Leads) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.recordLocked(e.Partition)
	r.epoch, r.leading, r.lapsed, r.why = e.Epoch, true, false, ""
	r.see(&e.Lease, l.self(r.placement))
	r.wake()
}

// Stops implements keeper.Handler. The answer comes from Run.
func (l *Lead) Stops(e lease.Stops) {
	l.mu.Lock()
	r := l.recordLocked(e.Partition)
	r.leading, r.lapsed, r.why = false, e.Lapsed, e.Why
	r.wake()
	l.mu.stops = append(l.mu.stops, e)
	l.mu.Unlock()
	select {
	case l.stopped <- struct{}{}:
	default:
	}
}

// InSyncSet implements keeper.Handler.
func (l *Lead) InSyncSet(e lease.InSyncSet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.recordLocked(e.Partition)
	r.holding = false
	if e.OK && e.Lease.Epoch == r.epoch {
		r.see(&e.Lease, l.self(r.placement))
	}
	r.wake()
}

func (l *Lead) recordLocked(p lease.Partition) *record {
	r := l.mu.records[p]
	if r == nil {
		r = &record{}
		l.mu.records[p] = r
	}
	return r
}
