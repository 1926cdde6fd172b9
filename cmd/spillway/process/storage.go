package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/cmd/spillway/view"
	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/remote"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/trace"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/lead"
	"github.com/spillwaydb/spillway/storage/lead/rules"
	"github.com/spillwaydb/spillway/storage/metafile"
	"github.com/spillwaydb/spillway/storage/overlay"
	"github.com/spillwaydb/spillway/storage/server"
	staging "github.com/spillwaydb/spillway/storage/staging/runner"
	"github.com/spillwaydb/spillway/storage/surplus"
	unloads "github.com/spillwaydb/spillway/storage/unload/runner"
)

// Storage is a storage server of a cluster: it keeps rows and METADATA files, and is a candidate for master.
type Storage struct {
	settings.Flags

	ReplaceStore bool `name:"replace-store" help:"Take over the name of a server whose directory is gone for good."`
	NoMaster     bool `name:"no-master" help:"Do not be a candidate for master."`
}

func (s *Storage) config() (settings.Config, error) {
	c, err := s.Flags.Config()
	if err != nil {
		return c, err
	}
	c.Again = s.config
	for _, name := range []*string{&c.Server.ID, &c.Server.Host} {
		if *name == "" {
			if *name, err = os.Hostname(); err != nil {
				return c, fault.Wrap(err, fault.Invalid, "this host's name; set --id and --host")
			}
		}
	}
	return c, c.Complete()
}

// Run is the life of a storage server: it returns when a signal or a failure has ended it and everything is closed.
func (s *Storage) Run() error {
	set, err := s.config()
	if err != nil {
		return terminal.UsageError{Err: err}
	}
	if err := checkWays(&set, rpc.Identity{Role: rpc.RoleStorage, Name: set.Server.ID}); err != nil { // before a store is made
		return err
	}
	cfg := config{Config: set}
	cfg.limitHeap(cfg.Storage.HeadBytesMax)
	cfg.spread()
	defer cfg.catchHangups()()
	defer runtime.KeepAlive(cfg.ballast())
	for err = errRoom; errors.Is(err, errRoom); {
		err = s.live(&cfg)
	}
	return err
}

// live is one life of the store in the process.
func (s *Storage) live(cfg *config) error {
	registerer := prometheus.NewRegistry()
	log := newLog(os.Stderr, cfg.LogFormat, cfg.Level, registerer)
	cfg.NoteDescriptors(log)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	p := &storage{cfg: cfg, log: log, registerer: registerer, id: topology.ServerID(cfg.Server.ID)}
	if err := p.open(ctx, s.ReplaceStore, !s.NoMaster); err != nil {
		return errors.Join(err, p.close())
	}
	defer cfg.catchEnds()()
	defer endsWithin(LeaveTimeout+CopiesTimeout+UnstageTimeout+time.Duration(cfg.HTTP.ShutdownTimeout)+EndMax, log)()
	return live(func() error { return p.run(ctx) }, p.close, fence{p.brick.Fenced(), p.brick.Err})
}

// storage is a storage server's process. Fields are in the order in which they are opened.
type storage struct {
	// Constant after open.
	cfg        *config
	log        *slog.Logger
	registerer *prometheus.Registry
	id         topology.ServerID

	listener net.Listener
	admin    net.Listener
	accounts *accounts
	brick    *brick.Brick
	files    *mapstore.Server
	view     view.Cluster
	copies   copies
	lead     *lead.Lead
	server   *server.Server
	staging  *staging.Store    // nil: storage.staging is off, and nothing is left
	surplus  *surplus.Handover // nil: no copies are kept
	unloads  *unloads.Unloads  // nil: rows of partitions that were split stay where they are
	rpc      *rpc.Server
	master   *master.Runner // nil: no candidate
	self     selfWriter
	life     life
	reach    reach
	reloads  reloads
	writes   lane.Writes   // that use a processor
	tracer   *trace.Tracer // nil: there are no spans
	frozen   string        // why the store is on an overlay and accepts no writes; "": it is not
}

func (p *storage) open(ctx context.Context, replace, candidate bool) (err error) {
	p.registerer.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(p.cfg.Build))
	p.reloads.begin(p.registerer)
	if p.listener, err = net.Listen("tcp", p.cfg.Peer.Listen); err != nil {
		return fault.Wrap(err, fault.Unavailable, "cannot listen at --peer.listen %s; if another program does, give another address", p.cfg.Peer.Listen)
	}
	if p.cfg.Admin.Listen != "" {
		if p.admin, err = net.Listen("tcp", p.cfg.Admin.Listen); err != nil {
			return fault.Wrap(err, fault.Unavailable, "cannot listen at --admin.listen %s; if another program does, give another address", p.cfg.Admin.Listen)
		}
	}
	starts := answerStarting("the store is opened, and what is only in the log is read again", p.admin)
	defer starts.end()
	if err := p.openBrick(ctx); err != nil {
		return err
	}
	starts.at("it waits for the coordination store")
	if p.view.Coord, err = p.cfg.Coord.Connect(ctx, true); err != nil {
		return err
	}
	if err := view.AwaitStore(ctx, p.view.Coord, p.cfg.Coord.Refusal, p.log); err != nil {
		return err
	}
	starts.at("it joins the cluster, and opens its partitions")
	p.files, err = mapstore.New(mapstore.Deps{Store: p.view.Coord, Log: p.log, Registerer: p.registerer, Rand: newRand(), Self: p.id, Disk: metafile.New(p.brick),
		Peers: func(id topology.ServerID) (peer.Metadata, bool) { return p.view.Peers.Metadata(id) },
		Acted: func(table string) peer.Acted { return lead.Acted(p.brick, table) }}, mapstore.Settings{})
	if err != nil {
		return err
	}
	if err := p.view.Open(ctx, &p.cfg.Config, p.log, p.registerer, p.id, peers.Local{Metadata: p.files}); err != nil {
		return err
	}
	if err := p.openServer(ctx); err != nil {
		return err
	}
	if p.frozen != "" {
		p.log.Error("the disk is full: the store is opened for reading only", "reason", p.frozen)
		p.brick.Freeze(p.frozen)
	}
	p.self.open(p)
	if err := p.register(ctx, replace, starts); err != nil || !candidate || p.frozen != "" {
		return err
	}
	settings := p.cfg.ForMaster()
	if p.unloads == nil {
		settings.MergeFrom = -1 // the rows of merged partitions would stay where they are
	}
	p.master, err = master.New(master.Deps{Store: p.view.Coord, Tables: p.view.Tables, Servers: p.view.Registry.All, Storage: p.storageOf, MapServers: p.files,
		Log: p.log, Registerer: p.registerer, Rand: newRand(), Server: p.id, Boot: lease.Boot(fmt.Sprintf("%016x", newRand().Uint64()))}, settings)
	return err
}

// openBrick opens the brick on the disk, or on an overlay if the disk has no room for the writes of opening it (room.go).
func (p *storage) openBrick(ctx context.Context) (err error) {
	fs := disk()
	if err := p.cfg.notBackups(fs); err != nil {
		return err
	}
	if p.frozen = p.cfg.shortOfRoom(startRoom, startFiles); p.frozen != "" {
		if there, err := brick.Exists(fs, p.cfg.DataDir); err != nil {
			return err
		} else if !there {
			p.frozen = "" // there is nothing to read yet
			if err := p.cfg.awaitRoom(ctx, p.log); err != nil {
				return err
			}
		} else {
			fs = overlaid{overlay.New(vfs.Default)}
		}
	}
	if p.brick, err = brick.Open(brick.Deps{FS: fs, Log: p.log, Registerer: p.registerer, Files: brick.FilesOf}, p.cfg.ForBrick()); err != nil {
		return err
	}
	if err := notOfStandalone(p.brick, p.cfg.DataDir, p.id); err != nil {
		return err
	}
	if p.frozen == "" {
		noteSettings(p.cfg, p.log)
	}
	return nil
}

func (p *storage) openServer(ctx context.Context) (err error) {
	p.lead, err = lead.New(lead.Deps{Store: p.view.Coord, Maps: p.view.Tables, Brick: p.brick, Log: p.log, Registerer: p.registerer, Rand: newRand(), Listed: p.copies.listed, NoRoom: p.copies.noRoom, Unload: p.openUnloads()},
		lead.Settings{Server: p.id, Rules: rules.Settings{Copies: p.cfg.Storage.Copies}})
	if err != nil {
		return err
	}
	if err := p.copies.open(p); err != nil {
		return err
	}
	if err := p.openStaging(); err != nil {
		return err
	}
	set := p.cfg.ForServer()
	set.Server, set.SeriesMax = p.id, p.cfg.Intake.SeriesMax
	set.StreamSeriesMax = 0 // a gateway's numbers go as far as its own memory does
	p.server, err = server.Open(ctx, server.Deps{Staging: p.asStaging(), Unloads: p.asUnloads(), Brick: p.brick, Maps: p.view.Tables, Newest: p.view.Tables.Newest, Leadership: p.lead, Parents: parents{p}, Chains: p.copies.asChains(), Differs: p.copies.differs, Transfers: p.copies.transfers, Now: p.lead.Now, Latest: p.lead.Latest, ClocksKnown: p.lead.ClocksKnown, Weight: p.weight, Lane: p.lane(), Writes: &p.writes, CPU: cputime.Used, Processors: p.cfg.processors, Log: p.log, Registerer: p.registerer}, set)
	if err != nil {
		return err
	}
	p.copies.serve(p)
	p.surplus = p.openSurplus()
	if p.accounts, err = openAccounts(int64(p.cfg.Storage.MemoryBytes), p.registerer); err != nil {
		return err
	}
	if p.tracer, err = trace.Open(ctx, p.cfg.ForTraces("storage", string(p.id)), p.log, p.registerer); err != nil {
		return err
	}
	p.reach.self = peer.Self{Server: string(p.id), Store: p.brick.ID().String(), Process: fmt.Sprintf("%016x", newRand().Uint64())}
	p.rpc, err = rpc.NewServer(rpc.Deps{Tracer: p.tracer,
		Storage: describing{lending{p.server, p.accounts.queries}, &p.view, p.brick}, Self: p.reach.self, Metadata: p.files, Rows: remote.Serve(p.view.Coord, byHand), Links: p.copies.links, Processors: p.cfg.processors, Log: p.log, Registerer: p.registerer,
	}, p.cfg.ForPeers(rpc.Identity{Role: rpc.RoleStorage, Name: string(p.id)}))
	return err
}

// lane leaves processors to inserts and to the frames of leaders, as in a standalone process: evaluations and compactions run by turns.
func (p *storage) lane() *lane.Lane {
	return lane.New(p.writes.Busy, cmp.Or(p.cfg.processors, runtime.GOMAXPROCS(0)))
}

// weight returns the weight in a table's limits.
func (p *storage) weight(table string) int64 { return p.cfg.Weights.Load().Weight(table) }

// follows lists memory that other parts bound and that is booked here. Segments in transit, staged rows and series report no growth, so they are booked every followPeriod.
// The server bounds the series that gateways offer (intake.series_max).
func (p *storage) follows() []followed {
	later := func(func(int64)) {}
	return []followed{
		p.cfg.heads(p.accounts.heads, p.server), ahead(p.accounts.compactions, 1, p.server.CompactingBytes, p.server.OnCompactingGrowth),
		ahead(p.accounts.bodies, 1, p.rpc.RequestBytes, p.rpc.OnRequestGrowth), ahead(p.accounts.bodies, 1, p.rpc.InsertBytes, p.rpc.OnInsertGrowth), ahead(p.accounts.bodies, 1, p.rpc.ArrivingBytes, p.rpc.OnArrivingGrowth), ahead(p.accounts.bodies, 1, p.rpc.UnreadBytes, p.rpc.OnUnreadGrowth), ahead(p.accounts.bodies, 1, p.copies.linkBytes, p.copies.onLinkGrowth), ahead(p.accounts.bodies, 1, p.copies.recentBytes, p.copies.onRecentGrowth),
		ahead(p.accounts.bodies, 1, p.copies.readingBytes, p.copies.onReadingGrowth),
		ahead(p.accounts.queries, 1, p.rpc.AnswerBytes, p.rpc.OnAnswerGrowth), ahead(p.accounts.compactions, 1, p.copies.heldBytes, later), ahead(p.accounts.heads, 1, p.stagedBytes, later), ahead(p.accounts.series, settings.KeptBytes, p.server.Series, later),
	}
}

// byHand reports whether administrators may write a row. The other rows keep the cluster running: heartbeats, and the
// master's. In the place of a heartbeat that is missing they write a row that says so, which a server that lives replaces.
func byHand(w coord.Write, conditions []coord.Condition) bool {
	if strings.HasPrefix(w.Key, lease.BeatPrefix) {
		b, err := lease.DecodeBeat(w.Value)
		return err == nil && b.Missing && !w.Delete && slices.Contains(conditions, coord.Condition{Key: w.Key})
	}
	for _, prefix := range []string{mapstore.Prefix, registry.Prefix, administration.AuditPrefix, lease.Prefix} {
		if strings.HasPrefix(w.Key, prefix) {
			return true
		}
	}
	return false
}

// storageOf returns a storage server; this one is called directly.
func (p *storage) storageOf(id topology.ServerID) (peer.Storage, bool) {
	if id == p.id {
		return p.server, true
	}
	return p.view.Peers.Server(id)
}

const (
	// LeaveTimeout bounds how long the release of a stopping server's leases may last; after that they expire.
	LeaveTimeout = 5 * time.Second
	// CopiesTimeout bounds how long leaving the chains of its copies may last then; after that their leaders notice its silence.
	CopiesTimeout = 5 * time.Second
)

// run serves until a signal comes or a part fails.
func (p *storage) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g run.Group
	// Actors are stopped in this order: leases are released first, while everything needed for that still runs.
	g.Add(p.leaving(ctx))
	g.Add(p.unstaging())
	g.Add(actor(ctx, p.cfg.untilSignal))
	g.Add(actor(ctx, p.reloader().onHangup))
	if p.master != nil {
		g.Add(actor(ctx, p.master.Run))
	}
	g.Add(func() error {
		p.rpc.Withhold(nil)
		return <-p.reach.served
	}, func(error) { p.hangUp() })
	g.Add(actor(ctx, p.followReach))
	g.Add(actor(ctx, func(ctx context.Context) error { return p.lead.Run(ctx, p.server) }))
	p.copies.actors(ctx, p, &g)
	if p.staging != nil {
		g.Add(actor(ctx, p.staging.Run))
	}
	g.Add(actor(ctx, p.followLife))
	g.Add(actor(ctx, func(ctx context.Context) error { return p.drain(ctx, p.lead.Drain) }))
	if p.frozen != "" {
		g.Add(actor(ctx, p.cfg.untilRoom))
	}
	if p.surplus != nil {
		g.Add(actor(ctx, p.surplus.Run))
	}
	g.Add(actor(ctx, p.files.Run))
	p.view.Actors(ctx, &g)
	g.Add(actor(ctx, p.server.Run))
	g.Add(actor(ctx, func(ctx context.Context) error {
		return follow(ctx, p.follows()...)
	}))
	p.self.actors(ctx, &g)
	if p.admin != nil {
		srv := administration.PortServer(p.pages())
		g.Add(func() error { return administration.ServePort(srv, p.admin) }, func(error) { _ = srv.Close() })
	}
	p.announce()
	err := g.Run()
	switch {
	case errors.Is(err, run.ErrSignal):
		p.log.Info("stopping", "reason", err)
		return nil
	case errors.Is(err, errRoom):
		p.log.Info("there is room again: the store is opened for writing")
	}
	return err
}

// announce says that the server serves, as door.announce does.
func (p *storage) announce() {
	reportReady("data in " + p.cfg.DataDir)
	if p.cfg.LogFormat == "json" {
		p.log.Info("ready", "version", p.cfg.Build.Version, "server", p.id, "peers", p.listener.Addr().String(), "data_dir", p.cfg.DataDir)
		return
	}
	fmt.Fprintf(os.Stderr, "\nSpillway %s is ready: storage server %s for peers at %s; data in %s\n\n", p.cfg.Build.Version, p.id, p.listener.Addr(), p.cfg.DataDir)
}

// leaving is an actor that only releases the leases at the end, and then leaves the chains of its copies.
func (p *storage) leaving(ctx context.Context) (func() error, func(error)) {
	done := make(chan struct{})
	return func() error { <-done; return nil }, func(why error) {
		defer close(done)
		if errors.Is(why, coord.ErrSetBack) {
			return // no lease is kept any more, and the heads of the copies end as well
		}
		leases, cancel := context.WithTimeout(ctx, p.patience(LeaveTimeout))
		defer cancel()
		if err := p.lead.Leave(leases); err != nil {
			p.log.Warn("not every lease was released; others acquire them when they have expired", "error", err)
		}
		p.copies.leave(ctx, p)
	}
}

// patience returns how long something may last while the process stops: longest, or less on a fenced store.
func (p *storage) patience(longest time.Duration) time.Duration {
	if p.brick.Err() != nil {
		return fencedDrain
	}
	return longest
}

// hangUp lets calls under way finish and accepts no new ones.
func (p *storage) hangUp() {
	ctx, cancel := context.WithTimeout(context.Background(), p.patience(time.Duration(p.cfg.HTTP.ShutdownTimeout)))
	defer cancel()
	if err := p.rpc.Shutdown(ctx); err != nil {
		p.log.Warn("not every call of a peer could finish", "error", err)
	}
}

// drain follows the drain mark that people set in this server's row. A server that no process reaches leads nothing either that others can lead. It returns when ctx has ended.
func (p *storage) drain(ctx context.Context, tell func(ctx context.Context, on bool) error) error {
	on := false
	for {
		changed := p.view.Registry.Changed() // fetched before looking
		if row, ok := p.view.Registry.Get(p.id); ok && !row.Takes() != on {
			on = !on
			p.log.Info("draining", "on", on, "unreached", row.Unreached)
			if err := tell(ctx, on); err != nil {
				<-ctx.Done() // if leases are kept no more, the actor that kept them says why: the first to return decides how the process ends
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// close closes everything that was opened, in the opposite order.
func (p *storage) close() error {
	var errs []error
	p.tracer.Close()
	if p.reach.served != nil {
		p.hangUp() // it served before it ran
	}
	if p.listener != nil {
		_ = p.listener.Close() // rpc has closed it, if it was passed on
	}
	if p.admin != nil {
		_ = p.admin.Close()
	}
	errs = append(errs, p.self.close(), p.copies.close())
	if p.staging != nil {
		errs = append(errs, p.staging.Close())
	}
	if p.unloads != nil {
		errs = append(errs, p.unloads.Close())
	}
	if p.server != nil {
		errs = append(errs, p.server.Close())
	}
	if p.files != nil {
		p.files.Close()
	}
	errs = append(errs, p.view.Close())
	if p.brick != nil {
		errs = append(errs, p.brick.Close())
	}
	return errors.Join(errs...)
}

// pages serves admin.listen. A storage server knows no tokens: what needs a right is for its own host alone.
func (p *storage) pages() http.Handler {
	loopback := isLoopback(p.admin.Addr())
	mux := http.NewServeMux()
	for _, page := range p.adminPages() {
		if !loopback && page.need != access.NeedNothing {
			page.handler = hostOnly(p.admin.Addr(), page.handler)
		}
		mux.Handle(page.pattern, page.handler)
	}
	return localOnly(loopback, p.cfg.Admin.Hosts, pointTo(onGateways, mux))
}

// adminPages are health, metrics, profiles and the reload. All that reach the port may use those that need nothing.
func (p *storage) adminPages() []page {
	return append(append(profilePages(), reloadPages(p.reloader())...),
		page{"GET /metrics", access.NeedNothing, promhttp.HandlerFor(p.registerer, promhttp.HandlerOpts{Registry: p.registerer})},
		page{"GET /-/healthy", access.NeedNothing, http.HandlerFunc(healthy)},
		page{"GET /-/ready", access.NeedNothing, http.HandlerFunc(p.readiness)},
	)
}

// hostOnly serves the server's own host, where others reach the port at the given address too: it asks by 127.0.0.1, or from that address where it is one. Proxies of a
// service mesh have other addresses of 127.0.0.0/8, and pass on the requests of all, as those of HTTP on the host may: those that say so are refused.
func hostOnly(listen net.Addr, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ofOwnHost(listen, r) {
			http.Error(w, "A storage server knows no tokens, and others reach its admin.listen: ask from its own host and not through a proxy, by the address of admin.listen, or by 127.0.0.1 if that is a wildcard or a loopback address. SIGHUP reloads it, too.", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func ofOwnHost(listen net.Addr, r *http.Request) bool {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || len(r.Header.Values("X-Forwarded-For"))+len(r.Header.Values("Forwarded")) > 0 {
		return false
	}
	from := at.Addr().Unmap()
	if from == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || from == netip.IPv6Loopback() {
		return true
	}
	to, ok := listen.(*net.TCPAddr)
	return ok && !to.IP.IsUnspecified() && to.AddrPort().Addr().Unmap() == from
}

// readiness answers 200 while the store accepts writes, 503 with the reason otherwise.
func (p *storage) readiness(w http.ResponseWriter, _ *http.Request) {
	if err := p.brick.Err(); err != nil {
		http.Error(w, "The store is fenced: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	if err := stalled(p.brick); err != nil {
		http.Error(w, "Writes wait: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	s := p.lead.Status()
	fmt.Fprintf(w, "Spillway is ready. heartbeat good: %t, leases held: %d\n", s.Good, s.Held)
	if text := fencedBefore(p.brick); text != "" {
		fmt.Fprintln(w, text)
	}
	if row, ok := p.view.Registry.Get(p.id); ok && row.Unreached != "" { // ready all the same: what reaches it first may wait for that
		fmt.Fprintf(w, "No process has reached it at its address %s (peer.advertise) yet, so that it gets no partitions: %s\n", row.Addr, row.Unreached)
	}
}
