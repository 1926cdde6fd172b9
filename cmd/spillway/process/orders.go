package process

import (
	"context"
	"net/http"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// administer carries out orders in a process that is alone.
func (p *standalone) administer() administration.Orders {
	return administration.OrdersAlone(p.coord, p.tables, p.log, p.dropTable, p.noteConfirmed)
}

// administer carries out orders about the cluster in a gateway.
func (p *gateway) administer() administration.Orders {
	d := administration.Cluster{Store: p.view.Coord, Servers: p.view.Registry, Tables: p.view.Tables, Peers: p.view.Peers, Log: p.log}
	return administration.OrdersOfCluster(d, func() error {
		if p.guard.Open() && !p.cfg.Peer.Insecure {
			return fault.Errorf(fault.Denied, "peers of this cluster show certificates, and this gateway knows no administrators: start it with --tokens.file (http.tokens_file) and send a token that has admin on \"*\"; all but backup and restore can also ask a storage server, named by --servers, with an administrator's certificate")
		}
		return nil
	})
}

// orderPages are the pages for administrators.
func (d *door) orderPages() (out []page) {
	d.behind.administer.Pages(d.guard, func(pattern string, h http.Handler) {
		out = append(out, page{pattern, access.NeedAdminAll, h})
	})
	return out
}

// dropTable deletes a table with its rows: first it accepts no more writes, then the rows are deleted, then the table.
// finishDrops finishes a drop after a crash.
func (p *standalone) dropTable(ctx context.Context, name string) error {
	p.dropping.Lock()
	defer p.dropping.Unlock()
	if err := ctx.Err(); err != nil { // while another table was dropped
		return fault.Wrap(err, fault.Canceled, "drop table %s", name)
	}
	return p.dropTableLocked(ctx, name)
}

func (p *standalone) dropTableLocked(ctx context.Context, name string) error {
	if err := p.tables.BeginDrop(ctx, name); err != nil {
		return err
	}
	for _, h := range p.server.Held() {
		if h.Table == name {
			if err := p.server.DropPartition(name, h.Partition); err != nil {
				return err
			}
		}
	}
	if err := p.forgetConfirmed(ctx, name); err != nil {
		return err
	}
	return p.tables.DropTable(ctx, name)
}

// finishDrops finishes drops that an earlier process, or an order that was given up, began.
func (p *standalone) finishDrops(ctx context.Context) {
	for _, name := range p.tables.Names() {
		if !p.tables.Dropping(name) {
			continue
		}
		if err := p.finishDrop(ctx, name); err != nil && ctx.Err() == nil {
			p.log.Error("a table whose drop began could not be dropped; it is tried again", "table", name, "error", err)
		}
	}
}

// finishDrop finishes the drop of a table, unless it has ended meanwhile: a sender may have made the table anew, with rows that are acknowledged.
func (p *standalone) finishDrop(ctx context.Context, name string) error {
	p.dropping.Lock()
	defer p.dropping.Unlock()
	if !p.tables.Dropping(name) {
		return nil
	}
	return p.dropTableLocked(ctx, name)
}
