package administration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// A server is drained in steps of the master and of the other servers (metadata/master, Partitions with rows); the command only shows its progress.

// drainLookEvery is the pause between two looks at the server.
const drainLookEvery = time.Second

// onServer is the placements and bytes that a server still has.
type onServer struct {
	ServerRow
	bytes int64 // of its partitions, as it says; 0 if it does not answer
}

func (o onServer) empty() bool { return o.Placements+o.Leads+o.OnlyCopy+o.Metadata == 0 }

// String has the parts that are not zero.
func (o onServer) String() string {
	if o.Server == "" {
		return "something that could not be counted in time"
	}
	text := fmt.Sprintf("%d placements", o.Placements)
	if o.bytes > 0 {
		text += " with " + terminal.SizeText(o.bytes)
	}
	if o.Leads > 0 {
		text += fmt.Sprintf(", leads %d partitions", o.Leads)
	}
	if o.Metadata > 0 {
		text += fmt.Sprintf(", keeps the METADATA files of %d tables", o.Metadata)
	}
	return text
}

// onServer returns the placements and bytes of a server, and the master's alarms. Errors are NotFound, and those of plan.
func (a *admin) onServer(ctx context.Context, id topology.ServerID) (o onServer, alarms []string, err error) {
	s, steps, err := a.plan(ctx, master.Settings{})
	if err != nil {
		return o, nil, err
	}
	for _, step := range steps {
		if step.Kind == master.Alarm {
			alarms = append(alarms, fmt.Sprintf("table %s: %s: %s", step.Table, step.What, step.Why))
		}
	}
	i := slices.IndexFunc(s.Servers, func(srv master.Server) bool { return srv.ID == id })
	if i < 0 {
		return o, nil, fault.Errorf(fault.NotFound, "there is no server %q; `spillway server list` shows those there are", id)
	}
	o.ServerRow = showServer(&s, s.Servers[i])
	for _, size := range master.Sizes(ctx, a.tables.Names(), []registry.Server{s.Servers[i].Server}, a.peers.Server, a.log) {
		o.bytes += size.Bytes
	}
	return o, alarms, nil
}

// awaitDrained shows how far a drained server is, until it has nothing. Errors are Unavailable (it still had something when the time was over) and those of onServer.
func (a *admin) awaitDrained(ctx context.Context, id topology.ServerID) error {
	if err := a.incomplete(); err != nil { // its rows cannot be counted, and there may be no tables to follow
		return fault.Annotate(err, "the drain of server %s continues; its progress cannot be read", id)
	}
	following, stop := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return a.tables.Run(following) })
	g.Go(func() error { return a.servers.Run(following) })
	defer func() {
		stop()
		_ = g.Wait() // without the newest maps the wait ends by its time
	}()
	b := terminal.NewBar(os.Stderr, "drain of "+string(id))
	defer b.End()
	var first, last onServer
	said := map[string]bool{}
	for {
		left, alarms, err := a.onServer(ctx, id)
		switch {
		case err == nil:
		case errors.Is(err, coord.ErrSetBack):
			return err
		case ctx.Err() != nil || fault.Is(err, fault.Unavailable) && pause(ctx, drainLookEvery) != nil:
			return fault.Errorf(fault.Unavailable, "server %s has %v; the drain goes on: `spillway doctor` says what it waits for (other servers must have room for each copy), and `spillway master plan` what comes next", id, last)
		case fault.Is(err, fault.Unavailable):
			continue
		default:
			return err
		}
		last = left
		first.bytes, first.Placements = max(first.bytes, left.bytes), max(first.Placements, left.Placements)
		if left.empty() {
			return nil
		}
		for _, alarm := range alarms {
			if !said[alarm] {
				b.Say(alarm)
			}
			said[alarm] = true
		}
		b.Draw(drained(first, left), false, func(seconds float64) string {
			return fmt.Sprintf("%v left  %s/s", left, terminal.SizeText(int64(float64(first.bytes-left.bytes)/seconds)))
		})
		_ = pause(ctx, drainLookEvery) // the next look returns the error
	}
}

// drained is the part of a server's first placements that has left it, by bytes if they are known.
func drained(first, left onServer) float64 {
	switch {
	case first.bytes > 0:
		return 1 - float64(left.bytes)/float64(first.bytes)
	case first.Placements > 0:
		return 1 - float64(left.Placements)/float64(first.Placements)
	}
	return 0
}
