package process

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/oklog/run"

	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/keeper"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/chain/runner"
	"github.com/spillwaydb/spillway/storage/lead/rules"
	replicas "github.com/spillwaydb/spillway/storage/replica/runner"
	"github.com/spillwaydb/spillway/storage/server"
)

// copies keeps the rows of tables of several replicas in sync on all placements: the chains of the partitions, the copier
// of their segments, and the links to the other storage servers. The zero value keeps none: storage.copies is off.
type copies struct {
	chains   *runner.Chains
	wire     *runner.LinkWire
	segments *replicas.Copier
	links    *rpc.Links
	dialed   map[topology.ServerID]dialedServer
	refused  map[topology.ServerID]string // why a server could not be dialled, as it was logged
}

type dialedServer struct {
	addr string
	peer *rpc.Peer
}

func (c *copies) open(p *storage) (err error) {
	if !p.cfg.Storage.Copies {
		return nil
	}
	c.wire = &runner.LinkWire{}
	c.dialed, c.refused = map[topology.ServerID]dialedServer{}, map[topology.ServerID]string{}
	self := peer.LinkHello{Server: string(p.id), Boot: newRand().Uint64(), Store: p.brick.ID(), Capabilities: peer.CanFreeze | peer.CanLeave | peer.CanRest | peer.CanCompare}
	handler := &replicas.Handler{Next: runner.Handler{Wire: c.wire}}
	c.links, err = rpc.NewLinks(rpc.LinkSettings{Self: self, RoomBytes: p.cfg.LinkBytes(), Log: p.log, Registerer: p.registerer}, handler)
	if err != nil {
		return err
	}
	c.chains = runner.New(runner.Deps{Server: string(p.id), Store: lease.StoreID(p.brick.ID().String()), Leases: p.lead, Wire: c.wire,
		Clock: keeper.Boottime, Epoch: p.brick.HighestEpoch, Watch: p.brick.Watch, RecentBytes: p.cfg.RecentBytes(), ReadBytes: p.cfg.LogReadBytes(), Log: p.log, Registerer: p.registerer}, chain.Settings{})
	c.segments = replicas.New(replicas.Deps{Brick: p.brick, Chains: c.chains, Clock: keeper.Boottime, Log: p.log, Registerer: p.registerer},
		p.cfg.ForReplicas())
	handler.Join(c.segments)
	return nil
}

// registered is the report of copies in the server's row.
func (c *copies) registered() string {
	if c.chains == nil {
		return registry.CopiesOff
	}
	return registry.CopiesOn
}

// noRoom are the partitions of which segments did not fit on the disk.
func (c *copies) noRoom() []lease.Partition {
	if c.segments == nil {
		return nil
	}
	return c.segments.NoRoom()
}

// differs says which copies of a partition that is led here hold something else, and what; "": none.
func (c *copies) differs(table string, p point.PartitionID) string {
	if c.segments == nil {
		return ""
	}
	return c.segments.Differs(lease.Partition{Table: table, ID: p})
}

// transfers says how far the copies are that lack segments of a partition that is led here.
func (c *copies) transfers(table string, p point.PartitionID) []peer.Transfer {
	if c.segments == nil {
		return nil
	}
	return c.segments.Transfers(lease.Partition{Table: table, ID: p})
}

// heldBytes is the memory of segments that are being copied.
func (c *copies) heldBytes() int64 {
	if c.segments == nil {
		return 0
	}
	return c.segments.HeldBytes()
}

// linkBytes is the memory of frames and pieces of segments on their way between this server and others.
func (c *copies) linkBytes() int64 {
	if c.links == nil {
		return 0
	}
	return c.links.HeldBytes()
}

// onLinkGrowth registers grown, which is called before linkBytes grows.
func (c *copies) onLinkGrowth(grown func(to int64)) {
	if c.links != nil {
		c.links.OnHeldGrowth(grown)
	}
}

// recentBytes is the memory of the newest frames of the logs.
func (c *copies) recentBytes() int64 {
	if c.chains == nil {
		return 0
	}
	return c.chains.RecentBytes()
}

// onRecentGrowth registers grown, which is called before recentBytes grows.
func (c *copies) onRecentGrowth(grown func(to int64)) {
	if c.chains != nil {
		c.chains.OnRecentGrowth(grown)
	}
}

// readingBytes is the memory in which the log is read for copies that are behind.
func (c *copies) readingBytes() int64 {
	if c.chains == nil {
		return 0
	}
	return c.chains.ReadingBytes()
}

// onReadingGrowth registers grown, which is called before readingBytes grows.
func (c *copies) onReadingGrowth(grown func(to int64)) {
	if c.chains != nil {
		c.chains.OnReadingGrowth(grown)
	}
}

// asChains returns the chains for the server, or nil.
func (c *copies) asChains() server.Chains {
	if c.chains == nil {
		return nil
	}
	return c.chains
}

// serve gives the chains access to the server's placements.
func (c *copies) serve(p *storage) {
	if c.chains != nil {
		c.chains.Serve(p.server)
		c.wire.Join(c.chains, c.links.Link)
	}
}

func (c *copies) listed(p lease.Partition, ask uint64, ok bool, epoch point.Epoch, list []lease.Member) {
	if c.chains != nil {
		c.chains.Listed(p, ask, ok, epoch, list)
	}
}

// leave removes the copies of a process that ends from their chains. A fenced store's are left to the silence: its process ends at once.
func (c *copies) leave(ctx context.Context, p *storage) {
	if c.chains == nil || p.brick.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, CopiesTimeout)
	defer cancel()
	began := time.Now()
	left, all := c.chains.Leave(ctx)
	p.log.Info("copies left their chains", "left", left, "copies", all, "took", time.Since(began).Round(time.Millisecond))
}

// follow keeps a link to every registered storage server.
func (c *copies) follow(ctx context.Context, p *storage) error {
	dial := rpc.DialSettings{TLS: p.cfg.Peer.TLS(rpc.Identity{Role: rpc.RoleStorage, Name: string(p.id)}), Log: p.log}
	return followServers(ctx, p.view.Registry, func(all []registry.Server) bool {
		p.lead.Servers(placeable(all))
		return c.connect(all, p.id, dial, p.log)
	})
}

// Pauses before servers that could not be dialled are dialled again; each is twice the one before.
const (
	redialFirst = 500 * time.Millisecond
	redialMost  = 30 * time.Second
)

// followServers calls connect with the registered servers whenever they change, and again after a pause where it reports that it could not dial all. It returns
// when ctx has ended.
func followServers(ctx context.Context, servers peers.Registry, connect func(all []registry.Server) bool) error {
	pause := redialFirst
	for {
		changed := servers.Changed() // fetched before looking
		var again <-chan time.Time
		if !connect(servers.All()) {
			again = time.After(pause/2 + rand.N(pause))
			pause = min(2*pause, redialMost)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			pause = redialFirst
		case <-again:
		}
	}
}

// placeable is the registered servers as the rules see them. One that no process ever reached counts as one that leaves: nothing was ever there. One that moved out of reach counts as a silent
// one does: the others accept no row with fewer copies for that.
func placeable(all []registry.Server) (out []rules.Server) {
	for _, s := range all {
		out = append(out, rules.Server{ID: s.ID, Host: s.Host, Copies: s.Copies == registry.CopiesOn, Leaves: s.Drain != nil || s.Unreached != "" && !s.WasReached})
	}
	return out
}

// connect makes the links match the registered servers; false if one could not be dialled, as its certificate or address cannot be used now.
func (c *copies) connect(all []registry.Server, self topology.ServerID, dial rpc.DialSettings, log *slog.Logger) (whole bool) {
	wanted := map[topology.ServerID]string{}
	for _, s := range all {
		if s.ID != self {
			wanted[s.ID] = s.Addr
		}
	}
	for id, d := range c.dialed {
		if wanted[id] != d.addr {
			c.links.Disconnect(string(id))
			_ = d.peer.Close()
			delete(c.dialed, id)
		}
	}
	maps.DeleteFunc(c.refused, func(id topology.ServerID, _ string) bool { return wanted[id] == "" })
	whole = true
	for id, addr := range wanted {
		if _, ok := c.dialed[id]; ok {
			continue
		}
		dial.Server = string(id)
		to, err := rpc.Dial(addr, dial)
		if err != nil {
			whole = false
			if c.refused[id] != err.Error() {
				c.refused[id] = err.Error()
				log.Warn("a storage server cannot be linked to; it is tried again", "server", id, "error", err)
			}
			continue
		}
		delete(c.refused, id)
		c.dialed[id] = dialedServer{addr, to}
		c.links.Connect(string(id), to)
	}
	return whole
}

// actors adds the actors that run the copies.
func (c *copies) actors(ctx context.Context, p *storage, g *run.Group) {
	if c.chains != nil {
		g.Add(actor(ctx, c.chains.Run))
		g.Add(actor(ctx, c.segments.Run))
		g.Add(actor(ctx, func(ctx context.Context) error { return c.follow(ctx, p) }))
	}
}

func (c *copies) close() error {
	var errs []error
	if c.links != nil {
		c.links.Close()
	}
	for _, d := range c.dialed {
		errs = append(errs, d.peer.Close())
	}
	return errors.Join(errs...)
}
