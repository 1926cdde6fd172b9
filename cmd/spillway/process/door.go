package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/figures"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/follow/runner"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/ha/tracker"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/gateway/relabel"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/handshake"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/trace"
	"github.com/spillwaydb/spillway/storage/backup/cluster"
)

// door is the part of any gateway's process that faces users: writes, queries, pages. A standalone process has one and
// keeps the rows itself; a gateway of a cluster has one and keeps nothing. Fields are in the order in which they are
// opened.
type door struct {
	role     string // for the status page
	cfg      *config
	log      *slog.Logger
	registry *prometheus.Registry

	guard    *access.Guard
	listener net.Listener
	admin    net.Listener
	tracer   *trace.Tracer // nil: there are no spans
	accounts *accounts
	behind   gatewayDeps
	limits   *limits.Registry
	relabel  *relabel.Registry
	replicas *tracker.Tracker
	reader   *query.Reader
	queries  *recent.Queries
	refusals *recent.Refusals
	senders  *recent.Senders
	forward  *forward.Forwarder
	front    *intake.Front
	lane     *lane.Lane      // of queries and, where rows are kept, compactions
	kafka    *kafka.Consumer // nil: no topics
	ready    atomic.Bool
	rates    rates
	growth   figures.Growth
	reloads  reloads

	backingUp atomic.Bool // one backup at a time
	restoring atomic.Bool // and one restore
	backups   *backupMetrics
}

// gatewayDeps are the parts behind a door.
type gatewayDeps struct {
	tables       *tables.Tables
	coord        coord.Store // where gateways agree about HA pairs; nil: this process is alone
	servers      forward.Servers
	leaders      runner.Leaders  // nil: this process alone
	staging      forward.Staging // nil: rows wait for their leader
	ping         func(context.Context, topology.ServerID) error
	lastReceived func(topology.ServerID) time.Time
	// ReadOnly is why a server that is up accepts no rows; "": it accepts them. Nil: this process alone.
	readOnly func(topology.ServerID) string
	live     func(topology.ServerID) bool // heartbeats of a server come. Nil: this process alone
	source   query.Source
	health   func() error // why this process must not be used; nil: nothing
	stalled  func() error // why writes wait, while reads are answered; nil: they do not. Nil where nothing is kept
	clock    *clock.Clock // by which the process goes; nil: the machine's
	// describe adds to the status page the servers and leaders, which the door lacks. Nil: nothing.
	describe func(context.Context, *ui.Status)
	// unreached counts the live storage servers that this process does not reach. Nil: this process alone.
	unreached func() int
	// snapshot makes the snapshot for a backup. Nil: this process keeps nothing.
	snapshot snapshotFunc
	// cluster is read by a backup of all servers. Nil: this process is alone.
	cluster cluster.Source
	// place chooses servers for a partition that a restore makes, fit gives the settings of its table as they can be here.
	place func(table string, id point.PartitionID) []topology.ServerID
	fit   func(topology.Config) topology.Config
	// administer carries out the orders of administrators, on admin.listen.
	administer administration.Orders
}

// listen opens the listeners. It comes first: a port in use is the likeliest mistake, and the cheapest to find out.
func (d *door) listen() (err error) {
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(d.cfg.Build))
	d.backups = newBackupMetrics(d.registry)
	if d.guard, err = access.Open(access.Deps{Log: d.log, Registerer: d.registry}, access.Settings{WebFile: d.cfg.HTTP.WebConfigFile, TokensFile: d.cfg.HTTP.TokensFile}); err != nil {
		return terminal.UsageError{Err: err}
	}
	if d.listener, err = net.Listen("tcp", d.cfg.HTTP.Listen); err != nil {
		return fault.Wrap(err, fault.Unavailable, "cannot listen at --http.listen %s; if another program does, give another address", d.cfg.HTTP.Listen)
	}
	gate := handshake.New(handshake.Deps{Processors: d.cfg.processors, Registerer: d.registry})
	d.listener = d.secured(d.listener, gate, "http")
	if d.cfg.Admin.Listen != "" {
		if d.admin, err = net.Listen("tcp", d.cfg.Admin.Listen); err != nil {
			return fault.Wrap(err, fault.Unavailable, "cannot listen at --admin.listen %s; if another program does, give another address", d.cfg.Admin.Listen)
		}
		if !isLoopback(d.admin.Addr()) {
			d.admin = d.secured(d.admin, gate, "admin")
		}
	}
	return nil
}

// secured adds TLS to a listener if the settings require it. The port's name keeps its handshakes apart from those of other ports.
func (d *door) secured(ln net.Listener, gate *handshake.Gate, port string) net.Listener {
	if c := d.guard.TLS(); c != nil {
		return &tlsListener{gate.Listener(ln, port, c), ln}
	}
	return ln
}

// buildInfo is the metric that identifies the version.
func buildInfo(b api.Build) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_build_info", Help: "1, labelled with what the binary was built from.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision},
	}, func() float64 { return 1 })
}

// makeLane makes the lane, before the first part that uses turns.
func (d *door) makeLane() {
	if d.lane == nil {
		d.lane = lane.New(func() bool { return d.front != nil && d.front.Writing() || d.kafka != nil && d.kafka.Writing() }, cmp.Or(d.cfg.processors, runtime.GOMAXPROCS(0)))
	}
}

// open assembles the parts of a gateway.
func (d *door) open(ctx context.Context, behind gatewayDeps) error {
	d.behind = behind
	behind.clock.Register(d.registry)
	d.reloads.begin(d.registry)
	d.makeLane()
	var err error
	if d.accounts, err = openAccounts(int64(d.cfg.Storage.MemoryBytes), d.registry); err != nil {
		return err
	}
	if d.tracer, err = trace.Open(ctx, d.cfg.ForTraces(d.role, d.listener.Addr().String()), d.log, d.registry); err != nil {
		return err
	}
	if d.limits, err = limits.New(limits.Deps{Log: d.log, Registerer: d.registry, Exists: d.exists, Held: func(table string) bool { return d.forward != nil && d.forward.Holds(table) }}, d.cfg.Limits); err != nil {
		return err
	}
	if d.relabel, err = relabel.New(d.cfg.Relabel); err != nil {
		return err
	}
	if d.replicas, err = tracker.Open(ctx, tracker.Deps{Store: behind.coord, Log: d.log, Registerer: d.registry, Rand: newRand()}, d.cfg.HA); err != nil {
		return err
	}
	seriesLimits := func(table string) forward.Limits { return d.limits.Table(table) }
	d.forward = forward.New(forward.Deps{Limits: seriesLimits, Relabel: d.relabel.Of, Replicas: d.replicas.Labels, Tables: behind.tables, Servers: behind.servers, Leaders: behind.leaders, ReadOnly: behind.readOnly, Live: behind.live, Staging: behind.staging, Ping: behind.ping, LastReceived: behind.lastReceived,
		Clock: forward.NewClock(newRand().Uint64(), behind.clock.Nanos), Log: d.log, Registerer: d.registry}, d.cfg.ForForward())
	d.queries, d.refusals, d.senders = recent.NewQueries(), recent.NewRefusals(), recent.NewSenders()
	d.reader, err = query.New(query.Deps{Source: query.Guarded(behind.source), Recent: d.queries, Log: d.log, Registerer: d.registry, Memory: d.accounts.queries, Processors: d.cfg.processors, Lane: d.lane}, d.cfg.Query)
	if err != nil {
		return err
	}
	promAPI, err := api.New(api.Deps{Clock: behind.clock, Query: d.reader, Limits: d.limits, Log: d.log, Registerer: d.registry, Checked: true, Build: d.cfg.Build, Config: d.settings, Flags: d.flagValues, Reloaded: d.reloads.last}, d.cfg.API)
	if err != nil {
		return err
	}
	forHTTP, forKafka := d.cfg.ForIntake(), d.cfg.ForKafka()
	d.front, err = intake.New(intake.Deps{Clock: behind.clock, Writer: writer{d}, Replicas: d.replicas, Tables: behind.administer, Limits: d.limits, Fallback: d.pages(traced(d.tracer, promAPI)), Tracer: d.tracer, Access: d.guard, Recent: d.refusals, Senders: d.senders, Processors: d.cfg.processors, Log: d.log, Registerer: d.registry}, forHTTP)
	if err != nil || len(d.cfg.Kafka) == 0 {
		return err
	}
	records, err := d.accounts.forKafka(forKafka.InFlightBytesMax)
	if err != nil {
		return err
	}
	d.kafka, err = kafka.New(kafka.Deps{Clock: behind.clock, Writer: writer{d}, Limits: d.limits, Replicas: d.replicas, Senders: d.senders, Memory: records, Log: d.log, Registerer: d.registry}, forKafka)
	return err
}

// actors adds the door, with others that are in front of what g has besides, as an actor of g. Those of g that stand behind it are added later: they
// go on until the door's last requests and records are answered.
func (d *door) actors(ctx context.Context, g *run.Group, others ...func(context.Context) error) {
	var front run.Group
	if d.kafka != nil { // drains beside the front
		front.Add(actor(ctx, d.kafka.Run))
	}
	front.Add(func() error { return d.front.Serve(d.listener) }, func(error) { d.drain() })
	if d.admin != nil {
		srv := administration.PortServer(d.adminPages())
		front.Add(func() error { return administration.ServePort(srv, d.admin) }, func(error) { _ = srv.Close() })
	}
	front.Add(actor(ctx, d.limits.Run))
	front.Add(actor(ctx, d.replicas.Run))
	front.Add(actor(ctx, func(ctx context.Context) error {
		return follow(ctx, ahead(d.accounts.series, settings.SeriesBytes, d.forward.Series, d.forward.OnSeriesGrowth), ahead(d.accounts.bodies, 1, d.front.InFlightBytes, d.front.OnInFlightGrowth),
			ahead(d.accounts.series, 1, d.front.DeltaBytes, d.front.OnDeltaGrowth))
	}))
	front.Add(actor(ctx, d.guard.Run))
	front.Add(actor(ctx, d.reloader().onHangup))
	for _, f := range others {
		front.Add(actor(ctx, f))
	}
	g.Add(nested(&front))
}

// nested makes an actor of a group. Its interrupt returns when all of the group have ended.
func nested(g *run.Group) (func() error, func(error)) {
	stop, ended := make(chan struct{}), make(chan struct{})
	end := sync.OnceFunc(func() { close(stop) })
	g.Add(func() error { <-stop; return nil }, func(error) { end() })
	execute := func() error {
		defer close(ended)
		return g.Run()
	}
	return execute, func(error) {
		end()
		<-ended
	}
}

// actor makes an actor of a function that runs until its context ends.
func actor(ctx context.Context, f func(context.Context) error) (func() error, func(error)) {
	ctx, cancel := context.WithCancel(ctx)
	return func() error { return f(ctx) }, func(error) { cancel() }
}

// newRand returns a new source for each caller.
func newRand() *rand.Rand { return rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) }

// wait runs the group until a signal comes, which is no error, or a part fails.
func (d *door) wait(g *run.Group) error {
	err := g.Run()
	if errors.Is(err, run.ErrSignal) {
		d.log.Info("stopping", "reason", err)
		return nil
	}
	return err
}

// drain lets requests under way finish and refuses new ones.
func (d *door) drain() {
	d.ready.Store(false)
	patience := time.Duration(d.cfg.HTTP.ShutdownTimeout)
	if d.behind.health != nil && d.behind.health() != nil {
		patience = fencedDrain
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := d.front.Shutdown(ctx); err != nil {
		d.log.Warn("not every request could finish", "error", err)
	}
}

// close closes everything that was opened.
func (d *door) close() error {
	if d.listener != nil {
		_ = d.listener.Close() // the front has closed it, if it was passed on
	}
	if d.admin != nil {
		_ = d.admin.Close()
	}
	d.tracer.Close()
	if d.forward != nil {
		return d.forward.Close()
	}
	return nil
}

// announce prints the next steps for a person. Programs that read the log as JSON get one of its lines.
func (d *door) announce(what string) {
	reportReady(what)
	at := "http://" + d.listener.Addr().String()
	if d.guard.TLS() != nil {
		at = "https://" + d.listener.Addr().String()
	}
	if d.cfg.LogFormat == "json" {
		d.log.Info("ready", "version", d.cfg.Build.Version, "is", what, "url", at)
		return
	}
	fmt.Fprintf(os.Stderr, `
Spillway %s is ready; %s

  write   Prometheus remote_write   %s/api/v1/write
          Influx v1, Telegraf       %s            (/write, /query)
          Influx v2, v3             %s            (/api/v2/write, /api/v3/write_lp)
          OpenTelemetry             %s/v1/metrics
  query   Prometheus API, Grafana   %s            (/api/v1/query, …)
  watch   metrics                   %s/metrics

`, d.cfg.Build.Version, what, at, at, at, at, at, at)
}
