package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/gateway/query/fanout"
)

// gatewayCmd is a stateless process in front of a cluster's storage servers.
type gatewayCmd struct {
	ConfigFile     string    `name:"config.file" help:"YAML file with settings." type:"path" env:"SPILLWAY_CONFIG_FILE"`
	DataDir        *string   `name:"data-dir" help:"Where copies of the partition maps are kept, to start without the coordination store (default ./spillway-data)." type:"path"`
	Listen         *string   `name:"http.listen" help:"Address for writes and queries (default 127.0.0.1:8428)."`
	WebConfigFile  *string   `name:"web.config.file" help:"YAML file with TLS, users and headers, as of Prometheus and its exporters." type:"path"`
	TokensFile     *string   `name:"tokens.file" help:"YAML file with the tokens that may come in, and for what; see spillway token create." type:"path"`
	AdminListen    *string   `name:"admin.listen" help:"Loopback address for pprof and reload; empty: none (default 127.0.0.1:8429)."`
	LogLevel       *string   `name:"log.level" help:"debug, info, warn or error (default info)."`
	Retention      *duration `name:"retention" help:"How long tables that writes bring into being keep rows (default 0: for ever)."`
	PartitionWidth *duration `name:"partition-width" help:"Time that a partition of such tables covers (default 1d)."`
	CreateOnWrite  *bool     `name:"create-on-write" negatable:"" help:"Make tables at the first write to them (default true)."`
	Memory         *size     `name:"memory" help:"What the process may use: 4GiB (default 60% of the machine or control group)."`
	EnableDelete   *bool     `name:"enable-delete" negatable:"" help:"Open /api/v1/admin/tsdb/delete_series (default false)."`

	Coord coordFlags `embed:""`
	Peer  peerFlags  `embed:""`
	Kafka kafkaFlags `embed:"" prefix:"kafka."`
}

func (g *gatewayCmd) config() (config, error) {
	c, err := loadConfig(g.ConfigFile)
	if err != nil {
		return c, err
	}
	over(&c.DataDir, g.DataDir)
	over(&c.HTTP.Listen, g.Listen)
	over(&c.HTTP.WebConfigFile, g.WebConfigFile)
	over(&c.HTTP.TokensFile, g.TokensFile)
	over(&c.Admin.Listen, g.AdminListen)
	over(&c.LogLevel, g.LogLevel)
	over(&c.Tables.Retention, g.Retention)
	over(&c.Tables.PartitionWidth, g.PartitionWidth)
	over(&c.Tables.CreateOnWrite, g.CreateOnWrite)
	over(&c.API.Admin, g.EnableDelete)
	over(&c.Storage.MemoryBytes, g.Memory)
	g.Coord.over(&c.Coord)
	g.Peer.over(&c.Peer)
	if err := g.Kafka.add(&c); err != nil {
		return c, err
	}
	return c, c.complete()
}

// Run is the life of a gateway: it returns when a signal or a failure ended it and everything is closed.
func (g *gatewayCmd) Run() error {
	cfg, err := g.config()
	if err != nil {
		return err
	}
	cfg.limitHeap()
	cfg.spread()
	level, _ := cfg.level()
	registerer := prometheus.NewRegistry()
	log := newLog(os.Stderr, level, registerer)
	cfg.noteDescriptors(log)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	p, err := openGateway(ctx, &cfg, log, registerer)
	if err != nil {
		return err
	}
	return errors.Join(p.run(ctx), p.close())
}

// gateway is a gateway's process.
type gateway struct {
	door
	view clusterView
}

func openGateway(ctx context.Context, cfg *config, log *slog.Logger, registerer *prometheus.Registry) (_ *gateway, err error) {
	p := &gateway{door: door{role: "gateway", cfg: cfg, log: log, registry: registerer}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if err := p.view.open(ctx, cfg, log, registerer, "", peers.Local{}); err != nil {
		return nil, err
	}
	// Only now, though a port in use is the likeliest mistake: without the coordination store all this takes seconds, and
	// whoever is connected meanwhile would wait for an answer that another gateway has.
	if err := p.listen(); err != nil {
		return nil, err
	}
	source := fanout.New(fanout.Deps{Tables: p.view.tables, Leaders: p.view.leaders, Servers: p.view.peers, Age: p.view.age, NeverLed: p.view.leaders.NeverLed,
		Log: log, Registerer: registerer},
		fanout.Settings{RefusePartial: cfg.Query.RefusePartial})
	err = p.open(gatewayDeps{tables: p.view.tables, servers: p.view.peers, leaders: p.view.leaders, source: source, describe: p.view.describe})
	if err != nil {
		return nil, err
	}
	p.ready.Store(true)
	return p, nil
}

func (p *gateway) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g run.Group
	g.Add(run.SignalHandler(ctx, os.Interrupt, syscall.SIGTERM))
	p.view.actors(ctx, &g)
	p.actors(ctx, &g)
	p.announce(fmt.Sprintf("a gateway of the cluster at %s, which has %d storage servers", p.cfg.Coord.URL, len(p.view.registry.All())))
	return p.wait(&g)
}

func (p *gateway) close() error { return errors.Join(p.door.close(), p.view.close()) }
