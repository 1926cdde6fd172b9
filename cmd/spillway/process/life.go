package process

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/lead"
)

const (
	// lifeEvery is how often a storage server begins another life of its directory: a copy of it that is older is refused (registry.Begin).
	lifeEvery = time.Minute
	// lifeTimeout bounds the one that is begun at the end.
	lifeTimeout = 2 * time.Second
)

// life is how a storage server holds its name.
type life struct {
	mu  sync.Mutex
	dir registry.Directory // guarded by mu; changed by one goroutine alone: register, then followLife
}

// register registers the server when the coordination store answers: it is asked several times, and a busy one may be late.
// starts gets the reason why it waits.
func (p *storage) register(ctx context.Context, replace bool, starts *starting) error {
	for said := ""; ; {
		err := p.registerOnce(ctx, replace)
		if !fault.Is(err, fault.Unavailable) || errors.Is(err, registry.ErrRuns) {
			return err
		}
		if text := err.Error(); text != said { // once each: an address that is wrong stays wrong for hours
			p.log.Warn("the server is not registered; tried again", "error", err)
			said = text
		}
		starts.at("it is not registered yet (" + err.Error() + ")")
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// registerOnce registers the address of this server in the cluster, unless another process runs as this server, or ran on a newer copy of its directory.
func (p *storage) registerOnce(ctx context.Context, replace bool) error {
	addr, err := p.cfg.Peer.Advertised(p.listener.Addr())
	if err != nil {
		return err
	}
	self := registry.Server{ID: p.id, Addr: addr, Host: p.cfg.Server.Host, Zone: p.cfg.Server.Zone,
		Store: lease.StoreID(p.brick.ID().String()), Version: p.cfg.Build.Version, Copies: p.copies.registered(), Slices: true, Since: time.Now().UTC().Truncate(time.Second)}
	if err := p.askAccepted(ctx); err != nil {
		return err
	}
	p.serveSelf()
	if self.Unreached, err = p.proveAddress(ctx, self); err != nil {
		return err
	}
	lives, err := lead.LoadLives(p.brick)
	if err != nil {
		return err
	}
	d := &p.life.dir
	*d = registry.Directory{Server: p.id, Store: self.Store, Lives: lives, Older: replace, Save: p.saveLives,
		Name: func() string { return fmt.Sprintf("%016x", newRand().Uint64()) }}
	if replace && p.frozen != "" {
		return forGood(fault.Errorf(fault.Invalid, "--replace-store stores which life of the directory begins, and the disk is full (%s): make room first", p.frozen))
	}
	if err := registry.Newest(ctx, p.view.Coord, d); err != nil {
		return forGood(err)
	}
	if replace {
		if err := p.takeOver(ctx, self); err != nil {
			return err
		}
	}
	if err := p.awaitPredecessor(ctx, self); err != nil {
		return err
	}
	// First, so that of two processes with copies of a directory one is refused before it changes the address.
	begun, err := p.beginLife(ctx)
	if err != nil {
		return err
	}
	if err := registry.Register(ctx, p.view.Coord, self, replace, p.stagedLost); err != nil || begun {
		return err
	}
	_, err = p.beginLife(ctx)
	return err
}

// takeOver notes, before a directory is registered in another's place or although it is an older copy, that it is to go on from the row's life: a process that ends before its own
// first life has begun would leave a directory that the next start regards as an older copy.
func (p *storage) takeOver(ctx context.Context, self registry.Server) error {
	row, there, err := p.view.Coord.Get(ctx, registry.Key(p.id))
	if err != nil || !there {
		return err
	}
	was, err := registry.Decode(row)
	if err != nil {
		return err
	}
	lives, newest := p.life.dir.Lives.After(was.Life)
	if newest && (was.Store == self.Store || was.Life.N <= lives.Known.N) {
		return nil
	}
	p.log.Warn("this directory takes the place of the one that ran last as this server (--replace-store): rows that were acked there alone are not in it",
		"server", string(p.id), "ran_at", was.Addr, "its_store", string(was.Store), "this_store", string(self.Store))
	return p.saveLives(registry.Lives{Known: was.Life})
}

// awaitPredecessor waits until the process that was registered with this directory at another address is silent. At the same address it has ended, since this process listens there;
// only a host name that two machines have does not prove that.
func (p *storage) awaitPredecessor(ctx context.Context, self registry.Server) error {
	row, there, err := p.view.Coord.Get(ctx, registry.Key(p.id))
	if err != nil || !there {
		return err
	}
	was, err := registry.Decode(row)
	if err != nil || was.Store != self.Store || was.Addr == self.Addr && was.Host == self.Host {
		return err
	}
	return registry.AwaitSilence(ctx, p.view.Coord, was, lease.TakeAfterDefault)
}

// saveLives stores lives in the directory. From then on a row with the newest of them is no other process's.
func (p *storage) saveLives(l registry.Lives) error {
	if err := lead.SaveLives(p.brick, l); err != nil {
		return err
	}
	p.life.mu.Lock()
	defer p.life.mu.Unlock()
	p.life.dir.Lives = l
	return nil
}

// beginLife begins the next life of the directory. On an overlay, which keeps nothing, it only looks whether the directory is the newest.
func (p *storage) beginLife(ctx context.Context) (begun bool, err error) {
	d := p.life.dir
	if p.frozen != "" {
		err = registry.Newest(ctx, p.view.Coord, &d)
	} else {
		begun, err = registry.Begin(ctx, p.view.Coord, &d)
	}
	p.life.mu.Lock()
	defer p.life.mu.Unlock()
	p.life.dir = d
	return begun, forGood(err)
}

// forGood gives the error of a directory that is not the newest the exit code at which systemd starts no process again.
func forGood(err error) error {
	if fault.Is(err, fault.Invalid) {
		return terminal.UsageError{Err: err}
	}
	return err
}

// superseded returns an Invalid error if another process was started in the place of this one, else nil.
func (p *storage) superseded() error {
	row, ok := p.view.Registry.Get(p.id)
	if !ok {
		return nil
	}
	p.life.mu.Lock()
	defer p.life.mu.Unlock()
	return forGood(p.life.dir.Superseded(row))
}

// followLife begins lives until ctx ends, which is after the leases were let go, or another process has begun one.
func (p *storage) followLife(ctx context.Context) error {
	tick := time.NewTicker(lifeEvery)
	defer tick.Stop()
	failing := false
	for {
		changed := p.view.Registry.Changed() // fetched before looking
		if err := p.superseded(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			p.endLife()
			return nil
		case <-changed:
		case <-tick.C:
			_, err := p.beginLife(ctx)
			switch {
			case fault.Is(err, fault.Invalid):
				return err
			case err != nil && !failing:
				p.log.Warn("no life of the store directory was begun: a copy of it that is made now is not told from it; it is tried again each minute", "error", err)
			}
			failing = err != nil
		}
	}
}

// endLife begins a life that this directory alone has: copies that were made while the process ran lack rows that it acked.
func (p *storage) endLife() {
	if p.brick.Err() != nil || p.frozen != "" {
		return // nothing can be stored
	}
	ctx, cancel := context.WithTimeout(context.Background(), lifeTimeout)
	defer cancel()
	if _, err := p.beginLife(ctx); err != nil {
		p.log.Warn("no life of the store directory was begun at the end: a copy that was made within the last minute is not told from it", "error", err)
	}
}
