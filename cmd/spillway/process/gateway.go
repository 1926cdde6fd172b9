package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/cmd/spillway/view"
	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/gateway/query/fanout"
	"github.com/spillwaydb/spillway/gateway/scrape"
	"github.com/spillwaydb/spillway/gateway/staged"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// Gateway is a stateless process in front of a cluster's storage servers.
type Gateway struct {
	settings.Flags

	Kafka settings.KafkaFlags `embed:"" prefix:"kafka."`
}

func (g *Gateway) config() (settings.Config, error) {
	c, err := g.Flags.Config()
	if err != nil {
		return c, err
	}
	c.Again = g.config
	if err := g.Kafka.Add(&c); err != nil {
		return c, err
	}
	return c, c.Complete()
}

// Run is the life of a gateway: it returns when a signal or a failure has ended it and everything is closed.
func (g *Gateway) Run() error {
	set, err := g.config()
	if err != nil {
		return terminal.UsageError{Err: err}
	}
	if err := checkWays(&set, rpc.Identity{Role: rpc.RoleGateway}); err != nil {
		return err
	}
	cfg := config{Config: set}
	cfg.limitHeap(0)
	cfg.spread()
	defer cfg.catchHangups()()
	defer runtime.KeepAlive(cfg.ballast())
	registerer := prometheus.NewRegistry()
	log := newLog(os.Stderr, cfg.LogFormat, cfg.Level, registerer)
	cfg.NoteDescriptors(log)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	p, err := openGateway(ctx, &cfg, log, registerer)
	if err != nil {
		return err
	}
	defer cfg.catchEnds()()
	return errors.Join(p.run(ctx), p.close())
}

// gateway is a gateway's process.
type gateway struct {
	door
	view    view.Cluster
	scraper *scrape.Scraper // nil: the process does not write its own metrics
}

func openGateway(ctx context.Context, cfg *config, log *slog.Logger, registerer *prometheus.Registry) (_ *gateway, err error) {
	p := &gateway{door: door{role: "gateway", cfg: cfg, log: log, registry: registerer}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if err := p.view.Open(ctx, &cfg.Config, log, registerer, "", peers.Local{}); err != nil {
		return nil, err
	}
	// Only now, though a port in use is the likeliest mistake: without the coordination store all this lasts seconds, and
	// clients connected meanwhile would wait for an answer that another gateway has.
	if err := p.listen(); err != nil {
		return nil, err
	}
	waiting := staged.New(p.view.Registry, p.view.TakesRows, cfg.Intake.Staging)
	source := fanout.New(fanout.Deps{Staged: func(table string) []topology.ServerID { return waiting.Of(time.Now(), table) },
		Stagers: func(ctx context.Context, table string) ([]topology.ServerID, error) {
			return waiting.Stagers(ctx, time.Now(), table, func(ctx context.Context) ([]registry.Server, error) { return registry.List(ctx, p.view.Coord) })
		},
		Clock: p.view.Clock.Clock, Takers: waiting.Takers, Tables: p.view.Tables, Leaders: p.view.Leaders, Servers: p.view.Peers, Age: p.view.Age, NeverLed: p.view.Leaders.NeverLed, HadNoRows: p.view.Leaders.HadNoRows, HasNoRows: p.view.Leaders.HasNoRows,
		CaughtUp: p.view.Leaders.CaughtUp, Copies: p.view.Leaders.InSync, Silence: p.view.Peers.Silence, Log: log, Registerer: registerer},
		fanout.Settings{RefusePartial: cfg.Query.RefusePartial, LeaderOnly: cfg.Query.Consistency == "leader", HedgeAfter: time.Duration(cfg.Query.HedgeAfter)})
	behind := gatewayDeps{clock: p.view.Clock.Clock, tables: p.view.Tables, coord: p.view.Coord, servers: p.view.Peers, leaders: p.view.Leaders, source: source, describe: p.view.Describe, ping: p.view.Peers.Ping, lastReceived: p.view.Peers.LastReceived, readOnly: p.view.ReadOnly, live: p.view.Leaders.Live, unreached: func() int { return len(p.view.Unreached()) }, administer: p.administer(),
		cluster: backupSource{&p.view, source}, place: p.view.Placer.Place, fit: func(c topology.Config) topology.Config { return c }}
	if cfg.Intake.Staging {
		behind.staging = waiting
	}
	err = p.open(ctx, behind)
	if err != nil {
		return nil, err
	}
	cfg.noteRetention(p.view.Tables, log)
	p.scraper = p.own().inCluster(p.listener.Addr()).scraper()
	p.ready.Store(true)
	return p, nil
}

func (p *gateway) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g run.Group
	g.Add(actor(ctx, p.cfg.untilSignal))
	var own []func(context.Context) error
	if p.scraper != nil {
		own = append(own, p.scraper.Run)
	}
	p.actors(ctx, &g, own...)
	p.view.Actors(ctx, &g) // behind the door: a request that waits for its leader learns of the next one
	if p.cfg.Intake.Staging {
		g.Add(actor(ctx, func(ctx context.Context) error { return p.view.Registry.Prove(ctx, p.view.Coord) }))
	}
	p.announce(fmt.Sprintf("a gateway of the cluster at %s, which has %d storage servers", p.cfg.Coord.URL, len(p.view.Registry.All())))
	return p.wait(&g)
}

func (p *gateway) close() error { return errors.Join(p.door.close(), p.view.Close()) }
