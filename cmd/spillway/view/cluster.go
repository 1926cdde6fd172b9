package view

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/figures"
	"github.com/spillwaydb/spillway/cmd/spillway/findings"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	following "github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/mapcache"
	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Cluster is a process's view of its cluster: the store, the servers, the connections to them, the leaders, the
// tables. Fields are in the order in which they are opened.
type Cluster struct {
	Coord    coord.Store
	rows     *mapcache.Store // caches coord; nil in a storage server
	Registry *registry.View
	Peers    *peers.Peers
	Clock    *clock.Servers // nil in a storage server, which judges its own (metadata/lease)
	Leaders  *leaders.View
	Placer   *master.Placer
	Tables   *tables.Tables
	reaching *reaching
}

// Open connects to the coordination store and reads its rows. own and local are the name of the storage server in this
// very process and the way to call it, if there is one.
func (v *Cluster) Open(ctx context.Context, cfg *settings.Config, log *slog.Logger, registerer prometheus.Registerer, own topology.ServerID, local peers.Local) (err error) {
	is := rpc.Identity{Role: rpc.RoleGateway}
	if own != "" {
		is = rpc.Identity{Role: rpc.RoleStorage, Name: string(own)}
	}
	dial := rpc.DialSettings{TLS: cfg.Peer.TLS(is), Metrics: rpc.NewDialMetrics(registerer), Log: log}
	if err := dial.Validate(); err != nil {
		return terminal.UsageError{Err: err}
	}
	rpc.RegisterExpiry(registerer, dial.TLS)
	if v.Coord == nil {
		if v.Coord, err = cfg.Coord.Connect(ctx, own == ""); err != nil {
			return err
		}
	}
	store := v.Coord
	var cache tables.Cache
	if own == "" { // only a gateway may act on cached state: a storage server acts on rows that it reads
		kept, err := v.remember(cfg, log, registerer)
		if err != nil {
			return err
		}
		store, cache = v.rows, kept
	}
	v.Registry, err = openWaiting(ctx, v.Coord, cfg.Coord.Refusal, log, func() (*registry.View, error) { return registry.Open(ctx, store, log, newRand()) })
	if err != nil {
		return err
	}
	here := map[topology.ServerID]peers.Local{}
	if own != "" {
		here[own] = local
	}
	v.Peers = peers.Open(peers.Deps{Servers: v.Registry, Log: log, Registerer: registerer, Local: here,
		Dial: func(id topology.ServerID, addr string) (peers.Peer, error) {
			to := dial
			to.Server = string(id)
			return rpc.Dial(addr, to)
		}}, peers.Settings{})
	if own == "" {
		v.Clock = clock.NewServers()
	}
	v.Leaders, err = openWaiting(ctx, v.Coord, cfg.Coord.Refusal, log, func() (*leaders.View, error) {
		return leaders.Open(ctx, leaders.Deps{Clock: v.Clock, Store: store, Log: log, Rand: newRand(), Registerer: registerer}, leaders.Settings{})
	})
	if err != nil {
		return err
	}
	v.reaching = newReaching(log, registerer)
	v.Placer = master.NewPlacer(v.look, func(table string) int { return v.Tables.Replicas(table) }, master.Settings{})
	of := cfg.ForTables()
	of.New.Replicas = cfg.Tables.Replicas
	of.Prove = own == "" // only a gateway answers by its maps
	v.Tables, err = openWaiting(ctx, v.Coord, cfg.Coord.Refusal, log, func() (*tables.Tables, error) {
		return tables.Open(ctx, tables.Deps{Store: v.Coord, Log: log, Rand: newRand(), Own: own, Cache: cache,
			Metadata: v.Peers.Metadata, Servers: v.metadataServers, Place: v.Placer.Place}, of)
	})
	return err
}

// openWaiting calls open until its error is another than Unavailable. Between two calls it waits for the coordination store to answer: a process may start before
// that store, and a store that is slow for a moment must not end the start.
func openWaiting[T any](ctx context.Context, store coord.Store, refusal func(context.Context) error, log *slog.Logger, open func() (T, error)) (T, error) {
	for {
		v, err := open()
		if !fault.Is(err, fault.Unavailable) || errors.Is(err, coord.ErrSetBack) {
			return v, err
		}
		if err := AwaitStore(ctx, store, refusal, log); err != nil {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(100 * time.Millisecond): // the store answers: open only met a slow moment, and must not be repeated without a pause
		}
	}
}

// remember keeps a gateway's view of its cluster on disk, so that it starts and reads without the store (C127).
func (v *Cluster) remember(cfg *settings.Config, log *slog.Logger, registerer prometheus.Registerer) (*mapcache.Cache, error) {
	cache, err := mapcache.Open(filepath.Join(cfg.DataDir, "cluster"), mapcache.Settings{})
	if err != nil {
		return nil, err
	}
	v.rows = mapcache.NewStore(mapcache.StoreDeps{Inner: v.Coord, Cache: cache, Log: log, Registerer: registerer,
		Prefixes: []string{registry.Prefix, lease.Prefix}, Volatile: []string{lease.BeatPrefix}})
	return cache, nil
}

// Actors adds the actors that follow the cluster while the process runs. They end with coord.ErrSetBack where the coordination store is restored from a
// backup meanwhile.
func (v *Cluster) Actors(ctx context.Context, g *run.Group) {
	probe := func(ctx context.Context) error { return coord.Probe(ctx, v.Coord) }
	loops := []func(context.Context) error{v.Registry.Run, v.Peers.Run, v.Leaders.Run, v.Tables.Run, probe}
	if v.rows != nil {
		loops = append(slices.Insert(loops, 0, v.rows.Run), v.vouch, v.callServers)
	}
	for _, loop := range loops {
		ctx, cancel := context.WithCancel(ctx)
		g.Add(func() error { return loop(ctx) }, func(error) { cancel() })
	}
}

// Close closes everything that was opened.
func (v *Cluster) Close() error {
	var errs []error
	if v.Tables != nil {
		v.Tables.Close()
	}
	if v.Peers != nil {
		errs = append(errs, v.Peers.Close())
	}
	if v.Coord != nil {
		errs = append(errs, v.Coord.Close())
	}
	return errors.Join(errs...)
}

// look is the state for placing: the tables and servers, without leases.
func (v *Cluster) look() master.State {
	s := master.State{Now: time.Now().UnixNano()}
	for _, name := range v.Tables.Names() {
		if m, ok := v.Tables.Get(name); ok {
			s.Tables = append(s.Tables, m)
		}
	}
	for _, r := range v.Registry.All() {
		s.Servers = append(s.Servers, master.Server{Server: r, Live: v.Leaders.Live(r.ID), For: time.Hour, Beat: lease.Beat{ReadOnly: v.Leaders.ReadOnly(r.ID)}})
	}
	return s
}

// TakesRows reports whether a storage server is live and accepts writes.
func (v *Cluster) TakesRows(s topology.ServerID) bool {
	return v.Leaders.Live(s) && v.Leaders.ReadOnly(s) == ""
}

// ReadOnly is why a server that is up accepts no rows; "": it accepts them, or is away, and another may lead soon.
func (v *Cluster) ReadOnly(s topology.ServerID) string {
	if !v.Leaders.Live(s) {
		return ""
	}
	return v.Leaders.ReadOnly(s)
}

// metadataServers are the servers that may keep the files of a new table.
func (v *Cluster) metadataServers() []topology.ServerID {
	var live, silent []topology.ServerID
	for _, r := range v.Registry.All() {
		switch {
		case !r.Takes():
		case v.Leaders.Live(r.ID):
			live = append(live, r.ID)
		default:
			silent = append(silent, r.ID)
		}
	}
	return tables.MetadataCandidates(live, silent, master.MetadataServers)
}

// Age is how long newer maps of a table, or new servers, may have been missed. Receiving leases proves nothing about
// maps: each prefix has its own watch, and after a cut one may lag behind the other.
func (v *Cluster) Age(table string) time.Duration {
	return max(v.Tables.Age(table), v.Leaders.Age())
}

// storeOld is the storeAge from which the coordination store counts as one that does not answer.
const storeOld = 10 * time.Second

// storeAge is the time since the coordination store last answered. Rows read from disk keep the age they had then.
func (v *Cluster) storeAge() time.Duration {
	age := v.Leaders.Age()
	if v.rows != nil {
		age = max(age, v.rows.Age())
	}
	return age
}

// Describe adds servers and leaders to the status page.
func (v *Cluster) Describe(ctx context.Context, s *ui.Status) {
	s.CoordinationAge = v.storeAge()
	if s.CoordinationAge > storeOld {
		s.Problems = append(s.Problems, fmt.Sprintf("The coordination store has not answered for %v: what is shown may be that old.", s.CoordinationAge.Round(time.Second)))
	} else {
		v.describeRefused(ctx, s)
	}
	led := figures.Led{}
	for i := range s.Tables {
		for j := range s.Tables[i].Partitions {
			p := &s.Tables[i].Partitions[j]
			key := lease.Partition{Table: s.Tables[i].Name, ID: point.PartitionID(p.ID)}
			switch server, epoch, ok := v.Leaders.Leader(key); {
			case ok:
				p.Leader, p.Epoch, p.LeaseAge = string(server), uint64(epoch), v.Leaders.LeadAge(key)
				led.Add(p)
			case following.MayBeUnled(&topology.Partition{TimeLo: p.From.UnixNano()}, time.Now().UnixNano()) && v.Leaders.NeverLed(key):
				p.Ahead, p.Rows, p.Bytes = true, new(uint64), new(uint64)
			}
			if l, ok := v.Leaders.Lease(key); ok {
				if l.Offline != nil {
					p.Offline = l.Offline.Reason
				}
				v.describeCopies(key, l, p)
			}
			v.describeTransfers(key, p)
		}
	}
	for _, r := range v.Registry.All() {
		one := ui.Server{ID: string(r.ID), Addr: r.Addr, Host: r.Host, Zone: r.Zone, Draining: r.Drain != nil,
			Live: v.Leaders.Live(r.ID)}
		led.AddTo(&one)
		if one.Live && r.Unreached != "" {
			s.Problems = append(s.Problems, fmt.Sprintf("Storage server %s is reached by no process at %s, and gets no partitions: %s.", r.ID, r.Addr, r.Unreached))
		}
		if one.Live {
			load := v.Leaders.Load(r.ID)
			one.Load = &load
			if room := v.Leaders.Room(r.ID); room > 0 {
				one.Room = &room
			}
			if why := v.Leaders.ReadOnly(r.ID); why != "" {
				s.Problems = append(s.Problems, fmt.Sprintf("Storage server %s at %s takes no rows: %s.", r.ID, r.Addr, why))
			}
		} else {
			one.Bytes, one.Damaged = nil, nil
			// Problems that follow from this one are not listed a second time.
			s.Problems = slices.DeleteFunc(s.Problems, func(text string) bool {
				return findings.IsOfSilent(text, string(r.ID))
			})
			s.Problems = append(s.Problems, findings.SilentServer(string(r.ID))+fmt.Sprintf("at %s %s.", r.Addr, findings.NoHeartbeat("shows", s.Tables)))
		}
		s.Servers = append(s.Servers, one)
	}
	v.describeUnreached(s)
}

// describeCopies adds which placements of a partition have all of its rows, by its lease row.
func (v *Cluster) describeCopies(key lease.Partition, l lease.Lease, p *ui.Partition) {
	p.Epoch = uint64(l.Epoch)
	m, ok := v.Tables.Get(key.Table)
	if !ok {
		return
	}
	if at, ok := m.ByID(key.ID); ok {
		p.Empty = l.Empty
		p.InSync, p.Behind = inSyncOf(l, at)
	}
}

// inSyncOf returns the servers that a lease row lists in sync, and those with a placement that it does not list: a server that left and came back has another
// placement. Nil, nil: no server has led the partition yet, so that nothing is known.
func inSyncOf(l lease.Lease, p *topology.Partition) (inSync, behind []string) {
	if l.State == "" || l.Epoch == 0 {
		return nil, nil
	}
	inSync, behind = []string{}, []string{}
	for _, m := range l.InSync {
		inSync = append(inSync, string(m.Server))
	}
	for _, pl := range p.Placements {
		if !slices.ContainsFunc(l.InSync, func(m lease.Member) bool { return m.Placement == pl.ID }) {
			behind = append(behind, string(pl.Server))
		}
	}
	return inSync, behind
}

// describeTransfers adds to a partition's transfers where they come from.
func (v *Cluster) describeTransfers(key lease.Partition, p *ui.Partition) {
	if len(p.Transfers) == 0 {
		return
	}
	for i := range p.Transfers {
		p.Transfers[i].From = p.Leader
	}
	m, ok := v.Tables.Get(key.Table)
	if !ok {
		return
	}
	if at, ok := m.ByID(key.ID); ok {
		figures.SetLeaving(p.Transfers, at, figures.Leaves(at, key.Table, v.Registry.Get))
	}
}

// newRand returns a new source for each caller.
func newRand() *rand.Rand {
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // it never fails
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])))
}

// AwaitStore waits for the coordination store: a process cannot work without it, and may well start first. refusal asks whether the store refuses the
// certificates of this process, which its client reports as a time-out (connect.Coord); the log then has its error.
func AwaitStore(ctx context.Context, store coord.Store, refusal func(context.Context) error, log *slog.Logger) error {
	for tries := 0; ; tries++ {
		_, _, err := store.Get(ctx, master.Key)
		if !fault.Is(err, fault.Unavailable) || errors.Is(err, coord.ErrSetBack) {
			return err
		}
		if tries%10 == 0 {
			if why := refusal(ctx); why != nil {
				err = why
			}
			log.Warn("the coordination store does not answer; waiting for it", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}
