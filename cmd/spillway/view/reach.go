package view

import (
	"context"
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

const (
	// VouchEvery is how often a process calls the servers that no process has reached yet.
	VouchEvery = time.Second
	// ReachTimeout bounds a call that looks whether a server is reached.
	ReachTimeout = 3 * time.Second
)

// Reach calls a server at its address. If that is the server of the row, and the first process that reaches it, the row says so from then on. Errors are Unavailable: it does not answer, or
// another process does.
func (v *Cluster) Reach(ctx context.Context, row registry.Server) error {
	ctx, cancel := context.WithTimeout(ctx, ReachTimeout)
	defer cancel()
	who, err := v.ask(ctx, row)
	if err != nil || who == (peer.Self{}) || row.Unreached == "" {
		return err
	}
	return registry.Reached(ctx, v.Coord, row.ID, row.Addr, row.Store)
}

// ask asks a server at its address which one it is. The zero Self: it does not say, as those of older builds do not, or the connection has no room for a further call. Errors are those of Reach.
func (v *Cluster) ask(ctx context.Context, row registry.Server) (peer.Self, error) {
	ctx, cancel := context.WithTimeout(ctx, ReachTimeout)
	defer cancel()
	who, err := v.Peers.Self(ctx, row.ID, row.Addr)
	switch {
	case fault.Is(err, fault.Throttled): // calls are under way, or the server answered that it is busy; calls to one that sends nothing end within seconds
		return peer.Self{}, nil
	case err != nil:
		return peer.Self{}, fault.Wrap(err, fault.Unavailable, "server %s", row.ID)
	case who == (peer.Self{}):
		return who, nil
	case who.Server != string(row.ID) || who.Store != string(row.Store):
		return who, fault.Errorf(fault.Unavailable, "%s answers at %s, and not server %s", Called(who), row.Addr, row.ID)
	}
	return who, nil
}

// Called names the process that answers at an address.
func Called(who peer.Self) string {
	if who == (peer.Self{}) {
		return "a process of an older build"
	}
	return fmt.Sprintf("server %s with the store directory %s", who.Server, who.Store)
}

// refusedTimeout bounds how long the status page waits for the processes that do not register.
const refusedTimeout = time.Second

// describeRefused adds to the status page the processes that do not register, as another server answers at their address.
func (v *Cluster) describeRefused(ctx context.Context, s *ui.Status) {
	ctx, cancel := context.WithTimeout(ctx, refusedTimeout)
	defer cancel()
	all, err := registry.AllRefused(ctx, v.Coord, time.Now())
	if err != nil {
		return // the age of the rows on the page says it, if that lasts
	}
	for _, r := range all {
		s.Problems = append(s.Problems, fmt.Sprintf("Storage server %s on host %s does not join: %s.", r.ID, r.Host, r.Why))
	}
}

// vouch has a gateway call the servers that no process has reached yet, until ctx ends.
func (v *Cluster) vouch(ctx context.Context) error {
	for {
		changed := v.Registry.Changed() // fetched before looking
		var again <-chan time.Time
		for _, row := range v.Registry.All() {
			if row.Unreached == "" {
				continue
			}
			_ = v.Reach(ctx, row) // the server's log and the doctor say why
			again = time.After(VouchEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}
