package process

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/spillway/view"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/storage/brick"
)

const (
	// reachPatience is how long a server that starts waits until it reaches itself at its address: the name of a new host is known after seconds, and that of one that moved is
	// the old host's until then. Then it registers as one that no process reaches, or says that another answers.
	reachPatience = 30 * time.Second
	// vouchAtOnce bounds the calls at a time of servers that no process has reached yet.
	vouchAtOnce = 8
)

// reach is what a storage server knows of the way to itself and to the others.
type reach struct {
	self   peer.Self  // constant after open
	served chan error // of rpc, which serves before the server registers; nil: it does not yet

	// Owned by register.
	began   time.Time // when its own address was first tried
	said    string    // why it is refused, as it was logged
	refused time.Time // when that was
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

// followReach calls the servers that no process has reached yet each view.VouchEvery, and all others in rounds, until ctx ends.
func (p *storage) followReach(ctx context.Context) error {
	rounds := view.NewRounds()
	for {
		all := p.view.Registry.All()
		p.vouch(ctx, all)
		if rounds.Due(time.Now()) {
			p.view.CallAll(ctx, all, p.id)
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
	g.SetLimit(vouchAtOnce)
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

// describing adds to the description of a server what its process knows.
type describing struct {
	lending
	view  *view.Cluster
	brick *brick.Brick
}

// Stats implements peer.Storage.
func (d describing) Stats(ctx context.Context, table string, topN int) (*peer.Stats, error) {
	st, err := d.lending.Stats(ctx, table, topN)
	if err == nil && table == "" {
		for _, u := range d.view.Unreached() {
			if !u.Never { // its row says that
				st.Unreached = append(st.Unreached, peer.Unreached{Server: string(u.ID), Why: u.Why.Error()})
			}
		}
		if f := d.brick.LastFence(); !f.At.IsZero() {
			st.Fence = peer.PastFence{At: f.At.UnixNano(), Why: f.Why}
		}
	}
	return st, err
}
