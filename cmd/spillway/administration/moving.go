package administration

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// PartitionMove moves a copy of a partition to another server, with its rows.
type PartitionMove struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
	To           topology.ServerID `name:"to" help:"Server that gets it."`
	From         topology.ServerID `name:"from" help:"Server that gives it away; needed if the partition is on several."`
	Force        bool              `name:"force" help:"Also to a host or a zone that has another copy."`
	Cancel       bool              `name:"cancel" help:"End a move instead: what was copied is deleted."`
	Reason       string            `name:"reason" required:"" help:"Why."`
	Wait         time.Duration     `name:"wait" help:"Wait, at most this long, until the partition has moved."`
}

// Run has the master move one placement of a partition from a server to another, with its rows.
func (c *PartitionMove) Run() error {
	c.Timeout += c.Wait
	switch {
	case !c.alone():
		return c.with(c.run)
	case c.Wait > 0:
		return fault.Errorf(fault.Invalid, "--wait needs --servers; by --url, `spillway partition show %s p%d` shows when it has moved", c.Table, c.ID)
	}
	return c.order(c.path()+"/move", partitionOrder{To: c.To, From: c.From, Force: c.Force, Cancel: c.Cancel, Reason: c.Reason})
}

func (c *PartitionMove) run(ctx context.Context, a *admin) error {
	_, part, err := a.partition(c.PartitionArg)
	if err != nil {
		return err
	}
	s, _, err := a.look(ctx)
	if err != nil {
		return err
	}
	from, err := leaving(part, c.From, c.key())
	if err != nil {
		return err
	}
	if c.Cancel {
		return c.cancel(ctx, a, from)
	}
	s.Sizes = master.Sizes(ctx, []string{c.Table}, a.servers.All(), a.peers.Server, a.log)
	if err := movable(&s, c.key(), part, from.Server, c.To, c.Force); err != nil {
		return err
	}
	move := registry.Move{Table: c.Table, Partition: part.ID, Placement: from.ID, To: c.To, Note: a.note(c.Reason)}
	complete := a.incomplete() == nil // else a partition that is missing here may be there all the same
	err = a.act(ctx, c.Reason, fmt.Sprintf("move %s from %s to %s", c.key(), from.Server, c.To), func() error {
		var refused error
		err := registry.Change(ctx, a.store, from.Server, func(srv *registry.Server) {
			refused = srv.Add(move, func(m registry.Move) bool { return !complete || stands(&s, srv.ID, m) })
		})
		return cmp.Or(err, refused)
	})
	switch {
	case err != nil:
		return err
	case c.Wait == 0:
		return a.done("%s is moved from %s to %s by the master; `spillway partition show %s p%d` shows where it is, and --wait=1h waits until it has moved", c.key(), from.Server, c.To, c.Table, c.ID)
	}
	ctx, stop := context.WithTimeout(ctx, c.Wait)
	defer stop()
	if err := c.await(ctx, a, from); err != nil {
		return err
	}
	return a.done("%s has left %s", c.key(), from.Server)
}

// cancel undoes a move: the master deletes the placement that is too many then.
func (c *PartitionMove) cancel(ctx context.Context, a *admin, from topology.Placement) error {
	return a.act(ctx, c.Reason, fmt.Sprintf("end the move of %s from %s", c.key(), from.Server), func() error {
		there, again := false, ""
		err := registry.Change(ctx, a.store, from.Server, func(srv *registry.Server) {
			var m registry.Move
			if m, there = srv.MoveOf(c.Table, from.ID); m.Note.Who == master.Fencer {
				again = "; the master had it moved for load, and may do so again after half an hour (`tables.balance_rows`)"
			}
			srv.Moves = slices.DeleteFunc(srv.Moves, func(m registry.Move) bool { return m.Table == c.Table && m.Placement == from.ID })
		})
		switch {
		case err != nil:
			return err
		case !there:
			return fault.Errorf(fault.NotFound, "%s is not being moved away from %s", c.key(), from.Server)
		}
		return a.done("%s stays on %s%s", c.key(), from.Server, again)
	})
}

// leaving returns the placement that leaves: the one on the server named, or the only one.
func leaving(part *topology.Partition, from topology.ServerID, key lease.Partition) (topology.Placement, error) {
	all := slices.Concat(part.Placements, part.Joining)
	var on []topology.ServerID
	for _, pl := range all {
		on = append(on, pl.Server)
	}
	switch i := slices.Index(on, from); {
	case from == "" && len(part.Placements) == 1:
		return part.Placements[0], nil
	case from == "":
		return topology.Placement{}, fault.Errorf(fault.Invalid, "%s is on %s: name the one that it is to leave with --from", key, joinIDs(on))
	case i < 0:
		return topology.Placement{}, fault.Errorf(fault.NotFound, "%s is not on %s, it is on %s", key, from, joinIDs(on))
	default:
		return all[i], nil
	}
}

// stands reports whether a server still has the placement of a move, as far as the map is known.
func stands(s *master.State, on topology.ServerID, m registry.Move) bool {
	i := slices.IndexFunc(s.Tables, func(t *topology.Map) bool { return t.Table == m.Table })
	if i < 0 {
		return false
	}
	p, ok := s.Tables[i].ByID(m.Partition)
	return ok && slices.Contains(slices.Concat(p.Placements, p.Joining), topology.Placement{ID: m.Placement, Server: on})
}

// movable reports why a partition cannot move to a server; nil: it can. Errors are Invalid, and NotFound (there is no such server).
func movable(s *master.State, key lease.Partition, part *topology.Partition, from, to topology.ServerID, force bool) error {
	find := func(id topology.ServerID) (*master.Server, bool) {
		i := slices.IndexFunc(s.Servers, func(srv master.Server) bool { return srv.ID == id })
		if i < 0 {
			return nil, false
		}
		return &s.Servers[i], true
	}
	refuse := func(format string, args ...any) error { return fault.Errorf(fault.Invalid, format, args...) }
	if to == "" {
		return refuse("--to names no server; `spillway server list` shows those there are")
	}
	t, ok := find(to)
	if !ok {
		return fault.Errorf(fault.NotFound, "there is no server %q; `spillway server list` shows those there are", to)
	}
	_, on := part.On(to)
	_, joins := part.JoiningOn(to)
	was, _ := find(from)
	switch {
	case on:
		return refuse("%s is on %s already", key, to)
	case joins && !moving(was, key, part):
		return refuse("%s is being copied to %s already", key, to)
	case part.State != topology.Live:
		return refuse("%s is %v: what takes its place can be moved when that is over", key, part.State)
	case !t.Live:
		return refuse("server %s is silent for %s", to, since(t.For))
	case t.Drain != nil:
		return refuse("server %s is %s: `spillway server undrain %s` takes that back", to, noted("drained", *t.Drain), to)
	case t.Unreached != "":
		return refuse("server %s is reached by no process at %s: %s", to, t.Addr, t.Unreached)
	case t.Beat.ReadOnly != "":
		return refuse("server %s takes no rows: %s", to, t.Beat.ReadOnly)
	case slices.Contains(s.No[key], to):
		return refuse("%s is prohibited on %s: `spillway partition allow %s p%d %s` takes that back", key, to, key.Table, key.ID, to)
	}
	if !s.Empty(key) {
		for _, srv := range []*master.Server{t, was} {
			if srv != nil && srv.Copies != registry.CopiesOn {
				return refuse("%s has rows, and storage.copies is off on %s: turn it on at all storage servers and restart them one by one", key, srv.ID)
			}
		}
	}
	if why := master.LacksRoom(s, key, to); why != "" {
		return refuse("%s", why)
	}
	if force {
		return nil
	}
	for _, pl := range slices.Concat(part.Placements, part.Joining) {
		other, ok := find(pl.Server)
		switch {
		case !ok || pl.Server == from || pl.Server == to:
		case other.Host == t.Host:
			return refuse("%s is on %s, too, on the same host as %s (%s): both copies could be lost at once; --force moves it all the same", key, other.ID, to, t.Host)
		case t.Zone != "" && other.Zone == t.Zone && (was == nil || was.Zone != t.Zone):
			return refuse("%s is on %s, too, in the same zone as %s (%s): both copies could be lost at once; --force moves it all the same", key, other.ID, to, t.Zone)
		}
	}
	return nil
}

// moving reports whether a partition is being moved away from a server.
func moving(from *master.Server, key lease.Partition, part *topology.Partition) bool {
	return from != nil && slices.ContainsFunc(slices.Concat(part.Placements, part.Joining), func(pl topology.Placement) bool {
		_, asked := from.MoveOf(key.Table, pl.ID)
		return asked
	})
}

// await waits until neither the map nor the lease row has the placement, and shows how far that is. Errors are Unavailable: the time was over before.
func (c *PartitionMove) await(ctx context.Context, a *admin, from topology.Placement) error {
	following, stop := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return a.tables.Run(following) })
	defer func() {
		stop()
		_ = g.Wait() // without the newest map the wait ends by its time
	}()
	b := terminal.NewBar(os.Stderr, "move of "+c.key().String())
	defer b.End()
	at := "not begun"
	for {
		here, err := a.whereIs(ctx, c.PartitionArg, from)
		switch {
		case err == nil && here == "":
			return nil
		case err == nil:
			at = here
		case ctx.Err() == nil && !fault.Is(err, fault.Unavailable):
			return err
		}
		if ctx.Err() != nil || pause(ctx, drainLookEvery) != nil {
			return fault.Errorf(fault.Unavailable, "the move of %s has not ended: %s; it continues, and `spillway master plan` says what comes next", c.key(), at)
		}
		b.Draw(-1, false, func(float64) string { return at })
	}
}

// whereIs describes how far a placement is on its way out; "": it is gone.
func (a *admin) whereIs(ctx context.Context, p PartitionArg, from topology.Placement) (string, error) {
	_, part, err := a.partition(p)
	if err != nil {
		return "", err
	}
	row, ok, err := a.store.Get(ctx, lease.RowKey(p.key()))
	if err != nil {
		return "", err
	}
	var led lease.Lease
	if ok {
		if led, err = lease.DecodeLease(row.Value); err != nil {
			return "", err
		}
	}
	listed := func(pl topology.Placement) bool {
		return slices.ContainsFunc(led.InSync, func(m lease.Member) bool { return m.Placement == pl.ID })
	}
	switch {
	case slices.Contains(part.Placements, from):
		for _, pl := range part.Joining {
			if !listed(pl) {
				return fmt.Sprintf("it is being copied to %s", pl.Server), nil
			}
		}
		return fmt.Sprintf("it is on %s", joinIDs(servers(part.Placements))), nil
	case slices.Contains(part.Joining, from):
		return fmt.Sprintf("%s gives the lead away", from.Server), nil
	case listed(from) && !led.Empty:
		return fmt.Sprintf("%s is still listed as in sync", from.Server), nil
	}
	return "", nil
}

func servers(all []topology.Placement) (out []topology.ServerID) {
	for _, pl := range all {
		out = append(out, pl.Server)
	}
	return out
}
