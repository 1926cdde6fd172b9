package peers

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Peer is a connection to a storage server.
type Peer interface {
	peer.Storage
	peer.Metadata
	// Close ends calls under way.
	Close() error
}

// Registry returns the addresses of servers; registry.View implements it.
type Registry interface {
	All() []registry.Server
	Changed() <-chan struct{}
}

// Deps are the dependencies of Peers.
type Deps struct {
	Servers Registry
	// Dial makes a connection to a server at an address. It does not wait for the other side: a connection to a server that
	// is away comes up when the server does. An error is one of configuration, and dialling is retried.
	Dial func(id topology.ServerID, addr string) (Peer, error)
	// Local are servers in this process. They are called directly and need no row.
	Local map[topology.ServerID]Local

	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: metrics are counted and shown nowhere
}

// Local is a server in this process.
type Local struct {
	Storage  peer.Storage
	Metadata peer.Metadata
}

// Settings are numbers a user sets.
type Settings struct {
	// ServersMax bounds the connections; servers beyond are not reached, and this is logged. Default 1,000.
	ServersMax int
}

// Peers are the connections to all storage servers. All methods are safe for concurrent use.
type Peers struct {
	// Constant after Open.
	deps     Deps
	settings Settings
	metrics  *metrics

	mu struct {
		sync.RWMutex
		conns  map[topology.ServerID]*conn
		closed bool
	}
}

// Open connects to the servers there are. Call Run to follow changes, and Close at the end.
func Open(d Deps, s Settings) *Peers {
	if s.ServersMax == 0 {
		s.ServersMax = 1000
	}
	p := &Peers{deps: d, settings: s}
	p.mu.conns = map[topology.ServerID]*conn{}
	p.metrics = newMetrics(d.Registerer, p)
	p.follow()
	return p
}

// redialEvery is how often a connection is tried again that could not be made.
const redialEvery = 5 * time.Second

// Run follows the registry until ctx ends.
func (p *Peers) Run(ctx context.Context) error {
	for {
		changed := p.deps.Servers.Changed() // fetched before looking
		var again <-chan time.Time
		if !p.follow() {
			again = time.After(redialEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// follow makes the connections match the registry; false if one could not be made.
func (p *Peers) follow() (all bool) {
	wanted := map[topology.ServerID]string{}
	for _, s := range p.deps.Servers.All() {
		if _, local := p.deps.Local[s.ID]; local {
			continue
		}
		if len(wanted) == p.settings.ServersMax {
			p.deps.Log.Error("there are more storage servers than connections are allowed; some are not reached", "servers_max", p.settings.ServersMax)
			break
		}
		wanted[s.ID] = s.Addr
	}
	all = true
	for id, addr := range wanted {
		all = p.connect(id, addr) && all
	}
	for _, c := range p.strike(wanted) {
		p.deps.Log.Info("storage server is no longer registered", "server", c.id, "addr", c.addr)
		p.closeConn(c)
	}
	return all
}

// connect makes a connection to addr the server's.
func (p *Peers) connect(id topology.ServerID, addr string) bool {
	p.mu.RLock()
	have := p.mu.conns[id]
	p.mu.RUnlock()
	if have != nil && have.addr == addr {
		return true
	}
	made, err := p.deps.Dial(id, addr)
	if err != nil {
		p.metrics.dials.WithLabelValues("error").Inc()
		p.deps.Log.Warn("no connection to a storage server; trying again", "server", id, "addr", addr, "error", err)
		return false
	}
	p.metrics.dials.WithLabelValues("ok").Inc()
	c := &conn{id: id, addr: addr, peer: made, metrics: p.metrics}
	if !p.put(c) {
		p.closeConn(c)
		return true
	}
	p.deps.Log.Info("storage server connected", "server", id, "addr", addr)
	if have != nil {
		p.closeConn(have)
	}
	return true
}

func (p *Peers) put(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return false
	}
	p.mu.conns[c.id] = c
	return true
}

// strike removes the connections of servers that are not wanted.
func (p *Peers) strike(wanted map[topology.ServerID]string) (gone []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, c := range p.mu.conns {
		if _, ok := wanted[id]; !ok {
			delete(p.mu.conns, id)
			gone = append(gone, c)
		}
	}
	return gone
}

func (p *Peers) closeConn(c *conn) {
	if err := c.peer.Close(); err != nil {
		p.deps.Log.Warn("closing the connection to a storage server", "server", c.id, "error", err)
	}
}

// Server gives a storage server by its name in partition maps; false when it is not registered. A call to one that did
// not answer lately may fail at once, as Unavailable.
func (p *Peers) Server(id topology.ServerID) (peer.Storage, bool) {
	if l, ok := p.deps.Local[id]; ok {
		return l.Storage, l.Storage != nil
	}
	if c, ok := p.conn(id); ok {
		return c, true
	}
	return nil, false
}

// Ping asks a server for a sign of life, also one that did not answer lately. Errors are Unavailable, or those of ctx.
func (p *Peers) Ping(ctx context.Context, id topology.ServerID) error {
	c, ok := p.conn(id)
	if !ok {
		return nil // it is in this process, or not known
	}
	if at, ok := c.peer.(interface{ Ping(context.Context) error }); ok {
		return at.Ping(ctx)
	}
	return nil
}

// Self asks the process at addr, a server's address, which server it is, also where the server did not answer lately. The zero Self: it does not say. Errors are NotFound (no such server, it is in
// this process, or the connection is still that to its address before), Unavailable, or those of ctx.
func (p *Peers) Self(ctx context.Context, id topology.ServerID, addr string) (peer.Self, error) {
	if c, ok := p.conn(id); ok && c.addr == addr {
		if at, ok := c.peer.(interface {
			Self(context.Context) (peer.Self, error)
		}); ok {
			return at.Self(ctx)
		}
	}
	return peer.Self{}, fault.Errorf(fault.NotFound, "there is no connection to server %q at %s", id, addr)
}

// LastReceived returns when anything last came from a server, on whatever request's behalf; zero: nothing is known.
func (p *Peers) LastReceived(id topology.ServerID) time.Time {
	if c, ok := p.conn(id); ok {
		if at, ok := c.peer.(interface{ LastReceived() time.Time }); ok {
			return at.LastReceived()
		}
	}
	return time.Time{}
}

// Silence is for how long a server has owed a sign of life: it was asked for one, and sent nothing since. 0: it owes none, or nothing is known. One that works, however much, answers at once.
func (p *Peers) Silence(id topology.ServerID) time.Duration {
	if c, ok := p.conn(id); ok {
		if at, ok := c.peer.(interface{ Silence() time.Duration }); ok {
			return at.Silence()
		}
	}
	return 0
}

// Metadata gives a metadata server: every storage server is one.
func (p *Peers) Metadata(id topology.ServerID) (peer.Metadata, bool) {
	if l, ok := p.deps.Local[id]; ok {
		return l.Metadata, l.Metadata != nil
	}
	if c, ok := p.conn(id); ok {
		return c, true
	}
	return nil, false
}

func (p *Peers) conn(id topology.ServerID) (*conn, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	c, ok := p.mu.conns[id]
	return c, ok
}

// IDs lists the servers there are, sorted, except those that did not answer and are left alone for now.
func (p *Peers) IDs() []topology.ServerID {
	p.mu.RLock()
	defer p.mu.RUnlock()
	ids := slices.Collect(maps.Keys(p.deps.Local))
	now := time.Now()
	for id, c := range p.mu.conns {
		if !c.breaker.open(now) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// All lists all servers there are, sorted, also those that do not answer.
func (p *Peers) All() []topology.ServerID {
	p.mu.RLock()
	defer p.mu.RUnlock()
	ids := slices.AppendSeq(slices.Collect(maps.Keys(p.deps.Local)), maps.Keys(p.mu.conns))
	slices.Sort(ids)
	return ids
}

func (p *Peers) count() (known, resting int) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	now := time.Now()
	for _, c := range p.mu.conns {
		if c.breaker.open(now) {
			resting++
		}
	}
	return len(p.mu.conns) + len(p.deps.Local), resting
}

// Close closes all connections.
func (p *Peers) Close() error {
	p.mu.Lock()
	conns := p.mu.conns
	p.mu.conns, p.mu.closed = map[topology.ServerID]*conn{}, true
	p.mu.Unlock()
	var errs []error
	for _, c := range conns {
		errs = append(errs, c.peer.Close())
	}
	return errors.Join(errs...)
}
