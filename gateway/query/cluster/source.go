package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Tables gives the newest known maps; tables.Tables does.
type Tables interface {
	Get(name string) (*topology.Map, bool)
	Changed() <-chan struct{}
	Refresh(ctx context.Context, name string, minSeq uint64) (*topology.Map, error)
}

// Leaders tells whom to ask for a partition; leaders.View does.
type Leaders interface {
	Find(table string, p *topology.Partition, try int) (leaders.Lead, error)
	Changed() <-chan struct{}
}

// Servers finds storage servers; peers.Peers does.
type Servers interface {
	Server(id topology.ServerID) (peer.Storage, bool)
	// All lists all servers there are, also those that do not answer.
	All() []topology.ServerID
}

// Deps are what a Source is given.
type Deps struct {
	Tables     Tables
	Leaders    Leaders
	Servers    Servers
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: metrics are counted and shown nowhere
}

// Settings are numbers a user sets.
type Settings struct {
	// Patience is how long a query waits for a newer map or another leader when it met an old one, or none. Default 2 s.
	// Larger: queries outlast longer moves, and those for what is gone for good fail later.
	Patience time.Duration
	// ParallelMax bounds the requests that one query has under way. Default 64.
	ParallelMax int
	// FamilyCopies is how many servers keep the descriptions of a metric family (forward.FamilyCopies): fewer may be
	// missing without a loss. Default 3.
	FamilyCopies int
}

func (s *Settings) setDefaults() {
	if s.Patience == 0 {
		s.Patience = 2 * time.Second
	}
	if s.ParallelMax == 0 {
		s.ParallelMax = 64
	}
	if s.FamilyCopies == 0 {
		s.FamilyCopies = 3
	}
}

// Source is a query.Source over all servers of a cluster. Safe for concurrent use.
type Source struct {
	// Constant after New.
	deps     Deps
	settings Settings
	maps     *tables.Refresher
	metrics  *metrics
}

var _ query.Source = (*Source)(nil)

// New makes a Source.
func New(d Deps, s Settings) *Source {
	s.setDefaults()
	return &Source{deps: d, settings: s, maps: tables.NewRefresher(d.Tables, d.Log), metrics: newMetrics(d.Registerer)}
}

// request is a question to all who lead partitions of a table in a range of time.
type request struct {
	table      string
	partitions []point.PartitionID // nil: all
	lo, hi     point.Nanos
	whole      bool // the answer may lack nothing, whatever the asker allows
	// ask asks one server. The context ends with the request, not with ask.
	ask func(ctx context.Context, i int, g *group, s peer.Storage) error
	// begin says how many servers are asked, and makes what was answered so far be forgotten.
	begin func(groups []group)
}

// triesMax bounds how often one query is asked by yet another map.
const triesMax = 8

// fan asks the leaders of all partitions by one map, all at the same time. Where a server knows better, or there is no
// leader, it looks for newer knowledge and asks all again. What was not answered in the end is an error, or is missing,
// said through query.Warn and given in lost. Errors: NotFound (no such table), Unavailable, and what servers refuse.
func (s *Source) fan(ctx context.Context, r *request) (lost []error, err error) {
	deadline := time.Now().Add(s.settings.Patience)
	for try := 0; ; try++ {
		news := news{s, s.deps.Tables.Changed(), s.deps.Leaders.Changed()} // taken before looking
		m, ok := s.deps.Tables.Get(r.table)
		if !ok {
			return nil, fault.Errorf(fault.NotFound, "table %q does not exist", r.table)
		}
		groups, orphans := plan(r.among(m), func(p *topology.Partition) (topology.ServerID, error) {
			lead, err := s.deps.Leaders.Find(r.table, p, try)
			return lead.Server, err
		})
		for i := range groups {
			groups[i].next = m.NextID
			if groups[i].accepts {
				groups[i].seq = m.Seq
			}
		}
		var missing []gap
		for _, o := range orphans {
			missing = append(missing, gap{[]*topology.Partition{o.partition}, "", o.err})
		}
		if len(orphans) == 0 || query.Partial(ctx) && !r.whole { // else there is no answer without them anyway
			r.begin(groups)
			failed, err := s.askAll(ctx, r, groups)
			if err != nil {
				return nil, err
			}
			missing = append(missing, failed...)
		}
		if len(missing) == 0 {
			s.metrics.fan.Observe(float64(len(groups)))
			return nil, nil
		}
		if try+1 < triesMax && news.wait(ctx, r.table, m, missing, deadline, try) {
			s.metrics.again.Inc()
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return s.without(ctx, r, missing)
	}
}

// among gives the partitions of a map that are asked for, by time.
func (r *request) among(m *topology.Map) []*topology.Partition {
	ps := m.Overlapping(r.lo, r.hi)
	if r.partitions != nil {
		ps = slices.DeleteFunc(ps, func(p *topology.Partition) bool { return !slices.Contains(r.partitions, p.ID) })
	}
	return ps
}

// gap is what nobody answered for: why, and who was asked.
type gap struct {
	partitions []*topology.Partition
	asked      topology.ServerID // "": there was nobody
	err        error
}

// askAll asks all groups. Only errors that another map or leader cannot cure end it early.
func (s *Source) askAll(ctx context.Context, r *request, groups []group) (failed []gap, err error) {
	errs := make([]error, len(groups))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.settings.ParallelMax)
	for i := range groups {
		g.Go(func() error {
			err := s.ask(ctx, gctx, r, i, &groups[i])
			s.metrics.request(err)
			if err != nil && !curable(err) {
				return err
			}
			errs[i] = err
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, err := range errs {
		if err != nil {
			failed = append(failed, gap{groups[i].partitions, groups[i].server, err})
		}
	}
	return failed, nil
}

// curable reports whether an error may be one of an old map or leader: also of a server that has not heard of the table.
func curable(err error) bool {
	return fault.Is(err, fault.Stale) || fault.Is(err, fault.Unavailable) || fault.Is(err, fault.NotFound)
}

var errMoved = errors.New("another server leads by now")

// silenceMax is how long a server may say nothing before it is looked whether it still leads.
const silenceMax = 500 * time.Millisecond

// ask asks one server; it gives up when the others were given up, or when another leads by now. What the server answers
// with may need its context beyond the asking: it ends with long.
func (s *Source) ask(long, others context.Context, r *request, i int, g *group) error {
	storage, ok := s.deps.Servers.Server(g.server)
	if !ok {
		return fault.Errorf(fault.Unavailable, "storage server %q is not known here", g.server)
	}
	ctx, cancel := context.WithCancel(long)
	stop := context.AfterFunc(others, cancel)
	defer stop()
	var settled atomic.Bool // it answered, or was given up: whichever was first
	watching, done := context.WithCancel(ctx)
	watch := time.AfterFunc(silenceMax, func() {
		if s.follow(watching, r.table, g) && !settled.Swap(true) {
			cancel()
		}
	})
	err := r.ask(ctx, i, g, storage)
	watch.Stop()
	done()
	switch moved := settled.Swap(true); {
	case moved:
		s.metrics.moved.Inc()
		return fault.Wrap(errMoved, fault.Stale, "server %s said nothing", g.server)
	case err != nil:
		cancel()
		return err
	}
	context.AfterFunc(long, cancel) // rows are being read under ctx
	return nil
}

// follow returns true when a partition of the group has another leader; false when ctx ends.
func (s *Source) follow(ctx context.Context, table string, g *group) bool {
	for {
		changed := s.deps.Leaders.Changed()
		for _, p := range g.partitions {
			if lead, err := s.deps.Leaders.Find(table, p, 0); err == nil && !lead.Guess && lead.Server != g.server {
				return true
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// news tells when there is something new to go by.
type news struct {
	s               *Source
	tables, leaders <-chan struct{}
}

// wait returns true when it makes sense to ask again: there is a newer map, another leader, or a server that was behind
// had time to catch up.
func (n *news) wait(ctx context.Context, table string, m *topology.Map, missing []gap, deadline time.Time, try int) bool {
	stale := slices.ContainsFunc(missing, func(x gap) bool { return !fault.Is(x.err, fault.Unavailable) })
	if stale {
		n.s.maps.Refresh(ctx, table, m)
	}
	left := time.NewTimer(time.Until(deadline))
	defer left.Stop()
	var again <-chan time.Time
	if stale {
		pause := 20 * time.Millisecond << try
		again = time.After(pause/2 + rand.N(pause))
	}
	for {
		if n.any(table, m, missing, try) {
			return true
		}
		select {
		case <-n.tables:
			n.tables = n.s.deps.Tables.Changed()
		case <-n.leaders:
			n.leaders = n.s.deps.Leaders.Changed()
		case <-again:
			return true
		case <-left.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (n *news) any(table string, m *topology.Map, missing []gap, try int) bool {
	if now, ok := n.s.deps.Tables.Get(table); !ok || now.Seq > m.Seq {
		return true
	}
	for _, x := range missing {
		for _, p := range x.partitions {
			if lead, err := n.s.deps.Leaders.Find(table, p, try); err == nil && lead.Server != x.asked {
				return true
			}
		}
	}
	return false
}

// without gives an answer that lacks what is missing, where that is allowed.
func (s *Source) without(ctx context.Context, r *request, missing []gap) ([]error, error) {
	var errs []error
	for _, x := range missing {
		errs = append(errs, fault.Wrap(x.err, fault.Unavailable, "no answer for %s of table %q", names(x.partitions), r.table))
	}
	if r.whole || !query.Partial(ctx) {
		if len(errs) == 1 {
			return nil, errs[0]
		}
		return nil, fault.Wrap(errs[0], fault.Unavailable, "%d parts of the answer are missing; the first", len(errs))
	}
	s.metrics.partial.Inc()
	for _, err := range errs {
		query.Warn(ctx, "the answer is not whole: "+err.Error())
	}
	return errs, nil
}

// namesMax bounds how many partitions a message names.
const namesMax = 5

func names(ps []*topology.Partition) string {
	var ids []string
	for i, p := range ps {
		if i == namesMax {
			ids = append(ids, "…")
			break
		}
		ids = append(ids, fmt.Sprint(p.ID))
	}
	if len(ps) == 1 {
		return "partition " + ids[0]
	}
	return "partitions " + strings.Join(ids, ", ")
}
