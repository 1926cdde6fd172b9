package process

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/spillway/view"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

const (
	// reachPatience is how long a server that starts waits until it reaches itself at its address: the name of a new host is known after seconds, and that of one that moved is
	// the old host's until then. Then it registers as one that no process reaches, or says that another answers.
	reachPatience = 30 * time.Second
	// reachEvery is how often a server calls all others. One that is live and answered none of reachTries calls for reachPatience is not reached: those that stop or die are silent earlier.
	reachEvery = 5 * time.Second
	reachTries = 3
	// reachAtOnce bounds the calls at a time.
	reachAtOnce = 8
)

// reach is what a storage server knows of the way to itself and to the others.
type reach struct {
	self   peer.Self  // constant after open
	served chan error // of rpc, which serves before the server registers; nil: it does not yet

	// Owned by register, then by followReach.
	began   time.Time // when its own address was first tried
	said    string    // why it is refused, as it was logged
	refused time.Time // when that was
	failed  map[topology.ServerID]failures

	mu        sync.Mutex
	unreached []peer.Unreached // guarded by mu; by server
}

// failures are the calls of a server that failed one after the other.
type failures struct {
	n     int
	since time.Time
	said  bool // logged
}

// longEnough reports whether they are no restart and no slow moment.
func (f failures) longEnough(now time.Time) bool {
	return f.n >= reachTries && now.Sub(f.since) >= reachPatience
}

// serveSelf has the server answer which one it is, and nothing else, until it runs. Others must have accepted it: one with wrong certificates answers no process (ways.go).
func (p *storage) serveSelf() {
	if p.reach.served != nil {
		return
	}
	p.rpc.Withhold(fault.Errorf(fault.Unavailable, "server %s has not joined the cluster yet", p.id))
	p.reach.served, p.reach.began = make(chan error, 1), time.Now()
	go func() { p.reach.served <- p.rpc.Serve(p.listener) }()
}

// callSelf calls this server at an address, as its peers will. Errors are Invalid (the address is none), Unavailable.
func (p *storage) callSelf(ctx context.Context, addr string) (peer.Self, error) {
	to, err := rpc.Dial(addr, rpc.DialSettings{TLS: p.cfg.Peer.TLS(rpc.Identity{Role: rpc.RoleStorage, Name: string(p.id)}), Server: string(p.id), Log: p.log})
	if err != nil {
		return peer.Self{}, err
	}
	defer func() { _ = to.Close() }()
	ctx, cancel := context.WithTimeout(ctx, view.ReachTimeout)
	defer cancel()
	who, err := to.Self(ctx)
	if err != nil {
		return peer.Self{}, fault.Wrap(err, fault.Unavailable, "this server called itself")
	}
	return who, nil
}

// proveAddress looks whether this process answers at the address that it is to register, and returns why no process is known to reach it there; "": it does. Errors are Unavailable:
// it must not register the address now. Another process answers there or has registered it; or this one was just started and may reach itself soon.
func (p *storage) proveAddress(ctx context.Context, self registry.Server) (unreached string, err error) {
	who, err := p.callSelf(ctx, self.Addr)
	switch {
	case err == nil && who.Server == string(p.id): // this process, or one of the same name: the registry refuses that
		return "", registry.Accepted(ctx, p.view.Coord, p.id)
	case err == nil:
		return "", p.refuse(ctx, self, fault.Errorf(fault.Unavailable, "at this server's address %s %s answers: set peer.advertise to an address at which others reach this server", self.Addr, view.Called(who)))
	case fault.Is(err, fault.Invalid):
		return "", err
	}
	same, other, failed := p.registered(ctx, self)
	switch {
	case failed != nil:
		return "", failed
	case same: // its peers reached it there, or a build from before registered it
		p.log.Warn("this server does not reach itself at its address; it was registered with it before, and goes on", "peer_advertise", self.Addr, "error", err)
		return "", registry.Accepted(ctx, p.view.Coord, p.id)
	case other != "":
		return "", p.refuse(ctx, self, fault.Errorf(fault.Unavailable, "server %s is registered at this server's address %s, where this one does not reach itself (%v): set peer.advertise to an address of this server's own, or remove server %s if it is gone", other, self.Addr, err, other))
	case time.Since(p.reach.began) < reachPatience:
		return "", fault.Wrap(err, fault.Unavailable, "this server does not reach itself at its address %s (peer.advertise); it registers as one that no process reaches after %v", self.Addr, reachPatience)
	}
	p.log.Error("this server does not reach itself at its address: it gets no partitions and no copies until it or a peer has reached it there; see that peer.advertise is right", "peer_advertise", self.Addr, "error", err)
	return err.Error(), registry.Accepted(ctx, p.view.Coord, p.id)
}

// registered returns whether the server is registered with this directory at its address and was reached there, and which other server is registered at it. Errors are the store's.
func (p *storage) registered(ctx context.Context, self registry.Server) (same bool, other topology.ServerID, err error) {
	rows, _, err := p.view.Coord.List(ctx, registry.Prefix)
	for _, row := range rows {
		switch r, bad := registry.Decode(row); {
		case bad != nil || r.Addr != self.Addr:
		case r.ID != self.ID:
			other = r.ID
		default:
			same = r.Store == self.Store && r.Unreached == ""
		}
	}
	return same, other, err
}

// refuse returns why this server does not register. Once that is so for reachPatience it logs it, and writes it for the doctor.
func (p *storage) refuse(ctx context.Context, self registry.Server, why error) error {
	now := time.Now()
	if now.Sub(p.reach.began) < reachPatience || now.Sub(p.reach.refused) < registry.RefusedEvery && p.reach.said == why.Error() {
		return why
	}
	if p.reach.said != why.Error() {
		p.log.Error("this server does not register, and is tried again", "error", why)
	}
	p.reach.refused, p.reach.said = now, why.Error()
	if err := registry.Refuse(ctx, p.view.Coord, registry.Refused{ID: p.id, Addr: self.Addr, Host: self.Host, Why: why.Error(), Time: now.UTC().Truncate(time.Second)}); err != nil {
		p.log.Warn("the doctor does not hear of it", "error", err)
	}
	return why
}

// followReach calls the servers that no process has reached yet each view.VouchEvery, and all others each reachEvery, until ctx ends.
func (p *storage) followReach(ctx context.Context) error {
	rng := newRand()
	p.reach.failed = map[topology.ServerID]failures{}
	next := time.Now().Add(time.Duration(rng.Int64N(int64(reachEvery)))) // those that start together do not call together
	for {
		all := p.view.Registry.All()
		p.vouch(ctx, all)
		if now := time.Now(); !now.Before(next) {
			p.callOthers(ctx, all)
			next = now.Add(reachEvery/2 + time.Duration(rng.Int64N(int64(reachEvery))))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(view.VouchEvery):
		}
	}
}

// vouch calls the servers of all that no process has reached yet, this one too.
func (p *storage) vouch(ctx context.Context, all []registry.Server) {
	var g errgroup.Group
	g.SetLimit(reachAtOnce)
	for _, row := range all {
		if row.Unreached == "" {
			continue
		}
		g.Go(func() error {
			if row.ID != p.id {
				_ = p.view.Reach(ctx, row) // its log and the doctor say why
				return nil
			}
			if who, err := p.callSelf(ctx, row.Addr); err != nil || who != p.reach.self {
				return nil
			}
			if err := registry.Reached(ctx, p.view.Coord, row.ID, row.Addr, row.Store); err != nil {
				p.log.Warn("this server reaches itself, and its row does not say so yet", "error", err)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// callOthers calls the live servers of all once, and notes which it does not reach. Those that no process has reached yet are reported as that.
func (p *storage) callOthers(ctx context.Context, all []registry.Server) {
	errs := make([]error, len(all))
	var g errgroup.Group
	g.SetLimit(reachAtOnce)
	for i, row := range all {
		if row.ID != p.id && row.Unreached == "" && p.view.Leaders.Live(row.ID) {
			g.Go(func() error {
				errs[i] = p.view.Reach(ctx, row)
				return nil
			})
		}
	}
	_ = g.Wait()
	if ctx.Err() == nil {
		p.noteReach(time.Now(), all, errs)
	}
}

// noteReach notes which servers were not reached for long, and logs each once.
func (p *storage) noteReach(at time.Time, all []registry.Server, errs []error) {
	failed := map[topology.ServerID]failures{}
	var now []peer.Unreached
	for i, row := range all {
		f := p.reach.failed[row.ID]
		if errs[i] == nil || !p.view.Leaders.Live(row.ID) { // it may have died meanwhile
			if f.said {
				p.log.Info("a storage server is reached again, or silent", "server", row.ID, "addr", row.Addr)
			}
			continue
		}
		if f.n++; f.n == 1 {
			f.since = at
		}
		if f.longEnough(at) {
			if !f.said {
				p.log.Warn("a storage server sends heartbeats to the coordination store, and is not reached at its address", "server", row.ID, "addr", row.Addr, "error", errs[i])
				f.said = true
			}
			now = append(now, peer.Unreached{Server: string(row.ID), Why: errs[i].Error()})
		}
		failed[row.ID] = f
	}
	p.reach.failed = failed
	p.reach.mu.Lock()
	defer p.reach.mu.Unlock()
	p.reach.unreached = now
}

// Unreached lists the servers that this one does not reach.
func (r *reach) Unreached() []peer.Unreached {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.unreached)
}

// describing adds to the description of a server what its process knows.
type describing struct {
	lending
	reach *reach
}

// Stats implements peer.Storage.
func (d describing) Stats(ctx context.Context, table string, topN int) (*peer.Stats, error) {
	st, err := d.lending.Stats(ctx, table, topN)
	if err == nil && table == "" {
		st.Unreached = d.reach.Unreached()
	}
	return st, err
}
