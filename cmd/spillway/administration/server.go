package administration

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Server has the commands that show storage servers, drain and remove them.
type Server struct {
	List    serverListCmd    `cmd:"" help:"List the storage servers, which are live, and what they hold."`
	Show    serverShowCmd    `cmd:"" help:"Show all that is known of a server."`
	Drain   serverDrainCmd   `cmd:"" help:"Have everything moved away from a server."`
	Undrain serverUndrainCmd `cmd:"" help:"Let a server be used again."`
	Remove  serverRemoveCmd  `cmd:"" help:"Forget a server that is gone for good."`
}

// ServerRow is a server as shown.
type ServerRow struct {
	Server     string  `json:"server"`
	Addr       string  `json:"addr"`
	Host       string  `json:"host"`
	Zone       string  `json:"zone,omitempty"`
	Store      string  `json:"store"`
	Version    string  `json:"version,omitempty"`
	State      string  `json:"state"` // live, draining, silent
	SilentFor  float64 `json:"silent_seconds,omitempty"`
	Placements int     `json:"placements"`
	Empty      int     `json:"empty_placements"` // of partitions without any write yet
	Leads      int     `json:"leads"`
	Metadata   int     `json:"metadata_tables"` // tables with METADATA files there
	OnlyCopy   int     `json:"only_copy"`       // partitions with all rows in sync on this server alone
	Load       float64 `json:"load"`
	Drain      string  `json:"drain,omitempty"`
	// Rows are those that it accepts a second as a leader, and Busy its busiest partitions; nil: not known.
	Rows *int64      `json:"rows_per_second,omitempty"`
	Busy []lease.Hot `json:"busy,omitempty"`
}

func showServer(s *master.State, srv master.Server) ServerRow {
	r := ServerRow{Server: string(srv.ID), Addr: srv.Addr, Host: srv.Host, Zone: srv.Zone, Store: string(srv.Store), Version: srv.Version, State: "live", Load: srv.Beat.Load}
	if w := srv.Beat.Writes; w != nil && srv.Live {
		rows := w.All()
		r.Rows, r.Busy = &rows, w.Hot
	}
	if !srv.Live {
		r.State, r.SilentFor = "silent", srv.For.Seconds()
	}
	if srv.Live && srv.Unreached != "" {
		r.State = "live, unreached"
	}
	if srv.Drain != nil {
		r.State, r.Drain = strings.Replace(r.State, "live", "draining", 1), noted("drained", *srv.Drain)
	}
	for _, m := range s.Tables {
		for p := range m.All() {
			_, on := p.On(srv.ID)
			_, joins := p.JoiningOn(srv.ID)
			if !on && !joins {
				continue
			}
			r.Placements++
			if s.Empty(lease.Partition{Table: m.Table, ID: p.ID}) {
				r.Empty++
			}
		}
	}
	for _, mapServers := range s.Metadata {
		if slices.Contains(mapServers, srv.ID) {
			r.Metadata++
		}
	}
	for _, l := range s.Leases {
		if l.State == lease.Held && l.Holder == srv.ID {
			r.Leads++
		}
		if !l.Empty && len(l.InSync) == 1 && l.InSync[0].Server == srv.ID {
			r.OnlyCopy++
		}
	}
	return r
}

// rows is how many rows a second it accepts as a leader.
func (r *ServerRow) rows() string {
	if r.Rows == nil {
		return "-"
	}
	return strconv.FormatInt(*r.Rows, 10)
}

// busiest lists its busiest partitions.
func (r *ServerRow) busiest() string {
	var out []string
	for _, h := range r.Busy {
		out = append(out, fmt.Sprintf("%s %d", h.Partition, h.Rows))
	}
	return cmp.Or(strings.Join(out, ", "), "none")
}

type serverListCmd struct {
	Flags `embed:""`
}

// Run lists the servers.
func (c *serverListCmd) Run() error { return c.with(c.run) }

func (c *serverListCmd) run(ctx context.Context, a *admin) error {
	s, _, err := a.look(ctx)
	if err != nil {
		return err
	}
	rows := []ServerRow{}
	for _, srv := range s.Servers {
		rows = append(rows, showServer(&s, srv))
	}
	return a.print(rows, func(w io.Writer) {
		fmt.Fprintln(w, "SERVER\tADDRESS\tHOST\tZONE\tSTATE\tPLACEMENTS\tLEADS\tROWS/S\tONLY COPY OF\tMETADATA OF\tLOAD\tVERSION")
		for _, r := range rows {
			state := r.State
			if r.SilentFor > 0 {
				state += " for " + since(time.Duration(r.SilentFor*float64(time.Second)))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%d\t%d\t%.0f %%\t%s\n", r.Server, r.Addr, r.Host, cmp.Or(r.Zone, "-"), state, r.Placements, r.Leads, r.rows(), r.OnlyCopy, r.Metadata, r.Load*100, cmp.Or(r.Version, "-"))
		}
	})
}

type serverShowCmd struct {
	Flags  `embed:""`
	Server topology.ServerID `arg:"" help:"Server."`
}

// Run shows a server.
func (c *serverShowCmd) Run() error { return c.with(c.run) }

func (c *serverShowCmd) run(ctx context.Context, a *admin) error {
	s, _, err := a.look(ctx)
	if err != nil {
		return err
	}
	for _, srv := range s.Servers {
		if srv.ID != c.Server {
			continue
		}
		r := showServer(&s, srv)
		return a.print(r, func(w io.Writer) {
			fmt.Fprintf(w, "server\t%s\naddress\t%s\nhost\t%s\nzone\t%s\nstore directory\t%s, since %s\nversion\t%s\nstate\t%s\n", r.Server, r.Addr, r.Host, cmp.Or(r.Zone, "-"),
				r.Store, srv.Since.Format(time.RFC3339), cmp.Or(r.Version, "-"), r.State)
			if r.Drain != "" {
				fmt.Fprintf(w, "note\t%s\n", r.Drain)
			}
			if !srv.Live {
				fmt.Fprintf(w, "silent\tfor %s, by the clock in its last heartbeat\n", since(srv.For))
			}
			fmt.Fprintf(w, "boot\t%s\nload\t%.0f %%\nholds\t%d placements, %d of them of partitions without rows, leads %d partitions, is the only one in sync of %d, keeps the METADATA files of %d tables\n", cmp.Or(string(srv.Beat.Boot), "-"), r.Load*100, r.Placements, r.Empty, r.Leads, r.OnlyCopy, r.Metadata)
			if r.Rows != nil {
				fmt.Fprintf(w, "accepts\t%d rows/s as the leader; busy partitions: %s\n", *r.Rows, r.busiest())
			}
		})
	}
	return fault.Errorf(fault.NotFound, "there is no server %q; `spillway server list` shows those there are", c.Server)
}

type serverDrainCmd struct {
	Flags  `embed:""`
	Server topology.ServerID `arg:"" help:"Server."`
	Reason string            `name:"reason" required:"" help:"Why."`
	Wait   time.Duration     `name:"wait" help:"Wait, at most this long, until the server holds nothing, and show how far it is."`
}

// Run marks a server as drained (C124): it transfers its leases, and the master moves its placements.
func (c *serverDrainCmd) Run() error {
	c.Timeout += c.Wait
	return c.with(c.run)
}

func (c *serverDrainCmd) run(ctx context.Context, a *admin) error {
	err := a.act(ctx, c.Reason, "drain server "+string(c.Server), func() error {
		return registry.Change(ctx, a.store, c.Server, func(s *registry.Server) {
			if s.Drain == nil {
				n := a.note(c.Reason)
				s.Drain = &n
			}
		})
	})
	switch {
	case err != nil:
		return err
	case c.Wait == 0:
		return a.done("server %s is drained; `spillway server list` shows what is still on it, and --wait=1h waits until that is nothing", c.Server)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	if err := a.awaitDrained(ctx, c.Server); err != nil {
		return err
	}
	return a.done("server %s has nothing left: it may be stopped and removed", c.Server)
}

type serverUndrainCmd struct {
	Flags  `embed:""`
	Server topology.ServerID `arg:"" help:"Server."`
	Reason string            `name:"reason" help:"Why, for the audit."`
}

// Run makes a server usable again.
func (c *serverUndrainCmd) Run() error { return c.with(c.run) }

func (c *serverUndrainCmd) run(ctx context.Context, a *admin) error {
	return a.act(ctx, c.Reason, "undrain server "+string(c.Server), func() error {
		if err := registry.Change(ctx, a.store, c.Server, func(s *registry.Server) { s.Drain = nil }); err != nil {
			return err
		}
		return a.done("server %s may be used again", c.Server)
	})
}

type serverRemoveCmd struct {
	Flags   `embed:""`
	Server  topology.ServerID `arg:"" help:"Server."`
	Force   bool              `name:"force" help:"Also if placements still name it: what only it held is lost."`
	Confirm string            `name:"confirm" help:"With --force: the server's id again."`
	Reason  string            `name:"reason" required:"" help:"Why."`
	DryRun  bool              `name:"dry-run" help:"Show what would be lost."`
}

// Run forgets a server: its row in the registry goes, its heartbeat row stays. A live server is not forgotten, nor, unless forced, one that is still
// named.
func (c *serverRemoveCmd) Run() error { return c.with(c.run) }

func (c *serverRemoveCmd) run(ctx context.Context, a *admin) error {
	if err := a.incomplete(); err != nil {
		return err // it may hold rows of the missing maps
	}
	var beat coord.Revision // read before the look, and compared after it
	if _, known := a.servers.Get(c.Server); known && !c.DryRun {
		var err error
		if beat, err = a.beat(ctx, c.Server); err != nil {
			return err
		}
	}
	s, _, err := a.look(ctx)
	if err != nil {
		return err
	}
	for _, srv := range s.Servers {
		if srv.ID != c.Server {
			continue
		}
		r := showServer(&s, srv)
		staged := ""
		if srv.Staging != "" {
			staged = ", and acked rows of tables " + strings.Join(strings.Fields(srv.Staging), ", ") + " may be staged on it alone"
		}
		switch {
		case srv.Live:
			return fault.Errorf(fault.Invalid, "server %s lives: stop it first, after `spillway server drain`", c.Server)
		case (r.Placements+r.OnlyCopy+r.Metadata > 0 || staged != "") && !c.Force && !c.DryRun:
			return fault.Errorf(fault.Invalid, "%d placements still name server %s, of %d partitions only it has all rows, it keeps the METADATA files of %d tables%s: start it, drain it and wait, or add --force if it is gone for good", r.Placements, c.Server, r.OnlyCopy, r.Metadata, staged)
		case c.Force && c.Confirm != string(c.Server) && !c.DryRun:
			return fault.Errorf(fault.Invalid, "of %d partitions only server %s has all rows%s: they would be lost; if that is meant, add --confirm=%s", r.OnlyCopy, c.Server, staged, c.Server)
		}
		if c.DryRun {
			return a.done("would forget server %s: %d placements name it, of %d partitions only it has all rows, it keeps the METADATA files of %d tables%s", c.Server, r.Placements, r.OnlyCopy, r.Metadata, staged)
		}
		return a.act(ctx, c.Reason, fmt.Sprintf("remove server %s, which %d placements name and which alone has all rows of %d partitions%s", c.Server, r.Placements, r.OnlyCopy, staged), func() error {
			row, ok, err := a.store.Get(ctx, registry.Key(c.Server))
			if err != nil || !ok {
				return fault.Annotate(err, "the row is gone")
			}
			// The heartbeat is compared: a server that comes back to life meanwhile is not forgotten.
			conditions := []coord.Condition{{Key: row.Key, Revision: row.Revision}, {Key: lease.BeatKey(c.Server), Revision: beat}}
			_, ok, err = a.store.Commit(ctx, conditions, []coord.Write{{Key: row.Key, Delete: true}})
			if err == nil && !ok {
				err = fault.Errorf(fault.Stale, "server %s came back meanwhile", c.Server)
			}
			if err != nil {
				return err
			}
			return a.done("server %s is forgotten", c.Server)
		})
	}
	return fault.Errorf(fault.NotFound, "there is no server %q; `spillway server list` shows those there are", c.Server)
}
