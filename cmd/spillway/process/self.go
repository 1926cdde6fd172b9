package process

import (
	"context"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/scrape"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// ownMetrics is how a process writes its own metrics into scrape.Table.
type ownMetrics struct {
	cfg      *config
	registry *prometheus.Registry
	tables   *tables.Tables
	forward  *forward.Forwarder
	memory   *budget.Account
	log      *slog.Logger
	made     topology.Config // of the table, when this process makes it
	instance string          // label of all rows; no other process of the cluster has it
	delay    time.Duration
	now      func() time.Time // by which the rows are stamped
}

// scraper makes the scraper; nil: it is switched off.
func (o ownMetrics) scraper() *scrape.Scraper {
	if o.cfg.Self.ScrapeInterval == 0 {
		return nil
	}
	return scrape.New(scrape.Deps{Gatherer: o.registry, Target: o.table, Memory: o.memory, Log: o.log, Registerer: o.registry, Now: o.now},
		scrape.Settings{Interval: time.Duration(o.cfg.Self.ScrapeInterval), Delay: o.delay, Instance: o.instance})
}

// table finds the table of processes' metrics. It is made here and not by its first write, which would give it the settings of users' tables.
func (o ownMetrics) table(ctx context.Context) (scrape.Target, error) {
	if _, err := o.tables.Create(ctx, scrape.Table, o.made); err != nil {
		return nil, err
	}
	return o.forward.Table(ctx, scrape.Table)
}

// own is how a process with a door writes its own metrics.
func (d *door) own() ownMetrics {
	return ownMetrics{cfg: d.cfg, registry: d.registry, tables: d.behind.tables, forward: d.forward, memory: d.accounts.scrape, log: d.log,
		made: d.cfg.OwnTable(), instance: d.listener.Addr().String(), now: d.behind.clock.Now}
}

// inCluster is for a process of a cluster. It waits before it first writes its metrics: processes that start together find each other first, so that the
// table is not made on the first of them alone.
func (o ownMetrics) inCluster(at net.Addr) ownMetrics {
	o.made.Replicas, o.instance, o.delay = o.cfg.Tables.Replicas, instanceOf(at), time.Duration(o.cfg.Self.ScrapeInterval)
	return o
}

// instanceOf is the address that identifies a process of a cluster: where it listens, with the name of its host if the address is the same
// on other hosts.
func instanceOf(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() && !tcp.IP.IsLoopback() {
		return addr.String()
	}
	host, err := os.Hostname()
	if err != nil {
		return addr.String()
	}
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return net.JoinHostPort(host, port)
}

// selfWriter is how a storage server writes its own metrics: as a gateway does, into whichever servers lead the partition.
type selfWriter struct {
	forward *forward.Forwarder
	scraper *scrape.Scraper
}

// open makes the writer, unless it is switched off.
func (w *selfWriter) open(p *storage) {
	if p.cfg.Self.ScrapeInterval == 0 {
		return
	}
	at := p.listener.Addr()
	if p.admin != nil {
		at = p.admin.Addr() // where a Prometheus would scrape it
	}
	w.forward = forward.New(forward.Deps{Tables: p.view.Tables, Servers: reachable{p}, Leaders: p.view.Leaders, ReadOnly: p.view.ReadOnly,
		Clock: forward.NewClock(newRand().Uint64(), p.lead.Now), Log: p.log}, forward.Settings{GenerationSeriesMax: 2 * scrape.RowsMax, NewPartitionsPerWrite: 1})
	own := ownMetrics{cfg: p.cfg, registry: p.registerer, tables: p.view.Tables, forward: w.forward, memory: p.accounts.scrape, log: p.log, made: p.cfg.OwnTable(), now: func() time.Time { return time.Unix(0, p.lead.Now()) }}
	w.scraper = own.inCluster(at).scraper()
}

// actors adds the scraper to those of the process.
func (w *selfWriter) actors(ctx context.Context, g *run.Group) {
	if w.scraper != nil {
		g.Add(actor(ctx, w.scraper.Run))
	}
}

func (w *selfWriter) close() error {
	if w.forward == nil {
		return nil
	}
	return w.forward.Close()
}

// reachable are the storage servers as one of them reaches them: itself directly.
type reachable struct{ p *storage }

// Server implements forward.Servers.
func (r reachable) Server(id topology.ServerID) (peer.Storage, bool) { return r.p.storageOf(id) }

// IDs implements forward.Servers.
func (r reachable) IDs() []topology.ServerID { return r.p.view.Peers.IDs() }
