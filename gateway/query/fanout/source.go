package fanout

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/follow/runner"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Tables returns the newest cached maps, and fetches newer ones; tables.Tables does.
type Tables interface {
	runner.Tables
	Refresh(ctx context.Context, name string, minSeq uint64) (*topology.Map, error)
	Learn(ctx context.Context, name string, at peer.MapAt) (*topology.Map, error)
	// Newest is the place of the newest cached map of a table.
	Newest(name string) (peer.MapAt, bool)
}

// Servers finds storage servers; peers.Peers does.
type Servers interface {
	Server(id topology.ServerID) (peer.Storage, bool)
	// All lists all servers there are, also those that do not answer.
	All() []topology.ServerID
}

// Deps are the parts that a Source uses.
type Deps struct {
	Tables  Tables
	Leaders runner.Leaders
	Servers Servers
	// Age is for how long newer maps of a table may have been missed; 0: the cached one is the newest. Nil: it always is.
	Age func(table string) time.Duration
	// NeverLed reports whether no server ever led a partition, as of Age ago. Nil: all are led.
	NeverLed func(p lease.Partition) bool
	// HadNoRows reports whether no row of a partition was acked, as of Age ago. Nil: all have some.
	HadNoRows func(p lease.Partition) bool
	// HasNoRows reports that for readers that do without its leader's word: no transaction of the map newer than seq changed the partition either. Nil: all have some.
	HasNoRows func(p lease.Partition, seq uint64) bool
	// Copies returns the servers that the lease row of a partition lists in sync; none if it may not be read now. Nil: leaders alone are asked.
	Copies func(p lease.Partition) []topology.ServerID
	// Staged returns the servers on which rows of a table may be staged. Nil: none are.
	Staged func(table string) []topology.ServerID
	// Takers counts the servers that accept rows: those over which smeared rows are spread. Nil: no row waits in Kafka.
	Takers func() int
	// Stagers returns the servers that delete in their staged rows before partitions do: if any has rows of the table, these and all that may accept some.
	// Nil: none are. Errors are Unavailable.
	Stagers func(ctx context.Context, table string) ([]topology.ServerID, error)
	// Silence is for how long a server has owed a sign of life that it was asked for; 0: it owes none. Nil: none does.
	Silence func(id topology.ServerID) time.Duration
	// CaughtUp returns when NeverLed and HasNoRows have all that was known to the coordination store when it was called. Nil: NeverLed is the newest, and HasNoRows is not
	// asked.
	CaughtUp   func(context.Context) error
	Clock      *clock.Clock // nil: the machine's
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: metrics are counted and shown nowhere
}

// Settings are numbers a user sets.
type Settings struct {
	// Patience is how long a query waits for a newer map or another leader when it found an old one, or none. Default 2 s.
	// Larger: queries outlast longer moves, and those for partitions gone for good fail later.
	Patience time.Duration
	// ParallelMax bounds the requests that one query has under way. Default 64.
	ParallelMax int
	// FamilyCopies is how many servers keep the descriptions of a metric family (forward.FamilyCopies): fewer may be
	// missing without a loss. Default 3.
	FamilyCopies int
	// RefusePartial refuses answers that may lack rows because the map may be too old, if the request does not choose (query.Whole). Default
	// off: they warn.
	RefusePartial bool
	// HedgeAfter is how long one copy of a partition may need before another is asked too. Default 0: as long as 19 of 20 of the newest
	// answers needed. Shorter: more is asked twice.
	HedgeAfter time.Duration
	// LeaderOnly asks leaders alone, if the request does not choose (query.LeaderOnly).
	LeaderOnly bool
	// StretchTime is how long the stretches of a plan must be on average for servers to evaluate it, if it has more than a few. Default 20 min. Longer: more
	// rows travel; shorter: narrow partitions cost an evaluation each.
	StretchTime time.Duration
}

func (s *Settings) setDefaults() {
	if s.Patience == 0 {
		s.Patience = 2 * time.Second
	}
	if s.StretchTime == 0 {
		s.StretchTime = 20 * time.Minute
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
	follow   *runner.Runner
	metrics  *metrics

	// Evaluations last longer than the wait for the first series, and are measured separately.
	selects, evaluations hedge
}

// hedge is a follow.Hedge of requests of one kind.
type hedge struct {
	sync.Mutex
	follow.Hedge
}

var _ query.Source = (*Source)(nil)

// New makes a Source.
func New(d Deps, s Settings) *Source {
	s.setDefaults()
	source := &Source{deps: d, settings: s, metrics: newMetrics(d.Registerer), follow: &runner.Runner{
		Policy: follow.Reads(s.Patience), Tables: d.Tables, Leaders: d.Leaders, Maps: tables.NewRefresher(d.Tables, d.Log)}}
	source.selects.After, source.evaluations.After = s.HedgeAfter, s.HedgeAfter
	return source
}

// request is a request to all leaders of partitions of a table in a range of time.
type request struct {
	table      string
	partitions []point.PartitionID // nil: all
	lo, hi     point.Nanos
	matchers   []peer.Matcher // of all series of the answer; nil: partitions of all columns are asked
	whole      bool           // the answer may lack nothing, even if the asker allows that
	leaders    bool           // leaders alone are asked, although others have copies
	probed     bool           // metadata servers were asked for a newer map
	less       bool           // copies that may lack rows are the answer where there is no other
	// plan makes the groups; nil: as the function plan does. If it is set, no copy that may lack rows is asked, and a group of copies without an answer
	// is not a failure: its rows are read by another request.
	plan     func(ps []*topology.Partition, of func(*topology.Partition) (target, error)) ([]group, []orphan)
	hedge    *hedge // nil: that of selects
	ranked   bool   // rows need their ranks: there are staged ones
	caughtUp bool   // the view of the leaders was compared with the store
	// aside are partitions that had no rows when the coordination store answered last, and of which there was no answer.
	aside map[point.PartitionID]bool
	// ask asks one server. The context ends with the request, not with ask.
	ask func(ctx context.Context, g *group, s peer.Storage) (answer, error)
	// begin drops the answers so far.
	begin func()
	// over says that a group has its outcome; nil: it need not be said.
	over func(g *group)
}

// answer is a server's answer. Either keep or drop is called, once; keep by one goroutine at a time.
type answer struct {
	keep, drop func()
	// complete says that nothing is read under the context of the question any more.
	complete bool
}

// fan asks the leaders of all partitions by one map, all at the same time. If a server has a newer map, or there is no
// leader, it looks for a newer map or leader and asks all again. Partitions without an answer in the end are an error, or are missing,
// reported through query.Warn and returned in lost. Errors: NotFound (no such table), Unavailable, and refusals of servers.
func (s *Source) fan(ctx context.Context, r *request) (lost []error, err error) {
	if r.hedge == nil {
		r.hedge = &s.selects
	}
	again := s.follow.Policy.Request(time.Now())
	for {
		changes := s.follow.Changes() // fetched before looking
		known, err := s.look(ctx, r)
		among := s.asked(ctx, r, &known)
		if err == nil && known.doubt != nil && s.refuses(ctx, r) {
			s.metrics.doubted.WithLabelValues("refused").Inc()
			err = known.doubt
		}
		if err != nil {
			return nil, err
		}
		m := known.m
		warnIncomplete(ctx, r.table, among)
		groups, orphans := s.planned(ctx, r, m, among, again.Try())
		if r.plan != nil && len(groups) == 0 {
			return nil, nil
		}
		for i := range groups {
			groups[i].by, groups[i].next = m.Seq, m.NextID
			groups[i].overlaps = groups[i].overlaps || r.ranked
			if groups[i].accepts {
				groups[i].seq = m.Seq
			}
		}
		var missing []follow.Failure
		for _, o := range orphans {
			missing = append(missing, follow.Failure{Partitions: []*topology.Partition{o.partition}, Reason: follow.Leaderless, Err: o.err})
		}
		missing = s.withRows(ctx, r, m.Seq, missing)
		if len(missing) == 0 || query.Partial(ctx) && !r.whole { // else an answer without them is refused anyway
			r.begin()
			failed, err := s.askAll(ctx, r, groups)
			if err != nil {
				return nil, err
			}
			missing = append(missing, failed...)
		}
		if known.doubt != nil && len(missing) == 0 {
			s.metrics.doubted.WithLabelValues("warned").Inc()
			query.Warn(ctx, known.doubt.Error())
		}
		if len(missing) == 0 {
			s.metrics.fan.Observe(float64(len(groups)))
			return nil, nil
		}
		if s.setAside(r, missing) {
			continue
		}
		if e := s.follow.Await(ctx, &again, r.table, m, missing, changes); e.Do == follow.Send {
			s.metrics.again.Inc()
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if query.Partial(ctx) && !r.whole && !r.less && slices.ContainsFunc(missing, func(f follow.Failure) bool { return peer.IsUnsure(f.Err) }) {
			r.less = true
			continue
		}
		if known.doubt != nil {
			query.Warn(ctx, known.doubt.Error())
		}
		return s.without(ctx, r, missing)
	}
}

// setAside leaves partitions without an answer out of a request if the coordination store has not answered for long and they had no rows before:
// a server whose lease lapsed leads no such partition, as when an hour ends and that of the next one has its first row to come, and every query up to now was
// refused until the store was back. Others may lead it now: the answer says that rows may be missing.
func (s *Source) setAside(r *request, missing []follow.Failure) (more bool) {
	if s.deps.HadNoRows == nil || s.age(r.table) < follow.DoubtAge {
		return false
	}
	for _, f := range missing {
		for _, p := range f.Partitions {
			if r.aside[p.ID] || !s.deps.HadNoRows(lease.Partition{Table: r.table, ID: p.ID}) {
				continue
			}
			if r.aside == nil {
				r.aside = map[point.PartitionID]bool{}
			}
			r.aside[p.ID], more = true, true
		}
	}
	return more
}

// among returns the partitions of a map that are asked for, by time.
func (r *request) among(m *topology.Map) []*topology.Partition {
	ps := m.Overlapping(r.lo, r.hi)
	if r.partitions != nil {
		ps = slices.DeleteFunc(ps, func(p *topology.Partition) bool { return !slices.Contains(r.partitions, p.ID) })
	}
	if at := prefixes(&m.Config.Ring, r.matchers); at != nil {
		ps = withPrefixes(ps, at)
	}
	return ps
}

// asked returns the partitions of a picture to be asked for, without those of the future that no server leads yet. Before it leaves any out, the
// view of the leaders has caught up with the store, once for each request: a row that was acked through another gateway before is not missed. Whether other
// servers lead them by now is in doubt if it cannot, or the coordination store did not answer for long.
func (s *Source) asked(ctx context.Context, r *request, known *picture) []*topology.Partition {
	if known.m == nil {
		return nil
	}
	now, doubted := s.deps.Clock.Nanos(), s.age(r.table) >= follow.DoubtAge
	among := slices.DeleteFunc(r.among(known.m), func(p *topology.Partition) bool {
		if r.aside[p.ID] && known.doubt == nil { // by time: the first one counts
			known.doubt = s.lacks(r.table, max(p.TimeLo, r.lo), r.hi)
		}
		return r.aside[p.ID]
	})
	unled := func(p *topology.Partition) bool {
		return follow.MayBeUnled(p, now) && s.deps.NeverLed(lease.Partition{Table: r.table, ID: p.ID})
	}
	if s.deps.NeverLed == nil || r.partitions != nil || !slices.ContainsFunc(among, unled) {
		return among
	}
	var late error
	if !r.caughtUp && !doubted && s.deps.CaughtUp != nil {
		late = s.deps.CaughtUp(ctx)
		r.caughtUp = late == nil
	}
	return slices.DeleteFunc(among, func(p *topology.Partition) bool {
		if !unled(p) {
			return false
		}
		switch from := max(p.TimeLo, r.lo); { // by time: the first one counts
		case known.doubt != nil:
		case doubted:
			known.doubt = s.lacks(r.table, from, r.hi)
		case late != nil:
			known.doubt = fault.Wrap(late, fault.Unavailable, "rows of table %q from %s to %s may be missing: it is not known whether others lead partitions there that had none", r.table, instantOf(from), instantOf(r.hi))
		}
		return true
	})
}

// askAll asks all groups. Only errors that another map or leader cannot cure end it early.
func (s *Source) askAll(ctx context.Context, r *request, groups []group) (failed []follow.Failure, err error) {
	if len(groups) == 1 { // a goroutine and a context of their own cost as much as a small answer
		answers, failed, err := s.askGroup(ctx, ctx, r, &groups[0])
		settle(answers, err)
		return failed, err
	}
	fails := make([][]follow.Failure, len(groups))
	got := make([][]answer, len(groups))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.settings.ParallelMax)
	for i := range groups {
		g.Go(func() (err error) {
			defer fault.Caught(&err)
			got[i], fails[i], err = s.askGroup(ctx, gctx, r, &groups[i])
			return err
		})
	}
	err = g.Wait()
	for _, answers := range got {
		settle(answers, err)
	}
	if err != nil {
		return nil, err
	}
	return slices.Concat(fails...), nil
}

// askGroup asks a group's leader or copies, until others ends; its results are those of ask.
func (s *Source) askGroup(ctx, others context.Context, r *request, g *group) (answers []answer, failed []follow.Failure, err error) {
	if r.over != nil {
		defer r.over(g) // also after a panic: others wait for it
	}
	if g.copies != nil {
		answers, failed, err = s.askCopies(ctx, others, r, g)
	} else {
		answers, failed, err = s.ask(ctx, others, r, g)
		if !g.raw() {
			failed = s.withRows(others, r, g.by, failed)
		}
	}
	if err == nil && len(failed) > 0 {
		s.metrics.request(failed[0].Err)
	} else {
		s.metrics.request(err)
	}
	if g.raw() && others.Err() == nil { // a select asks for these rows then, and again
		failed, err = nil, nil
	}
	return answers, failed, err
}

// settle keeps the answers of a request, or drops them after an error.
func settle(answers []answer, err error) {
	for _, a := range answers {
		if err != nil {
			a.drop()
		} else {
			a.keep()
		}
	}
}

// curable reports whether an error may be one of an old map or leader: also of a server that does not have the table yet.
func curable(err error) bool {
	return fault.Is(err, fault.Stale) || fault.Is(err, fault.Unavailable) || fault.Is(err, fault.NotFound)
}

// ask asks one server; it ends when the others were abandoned, or when another server leads by now. The server's answer
// may need its context after ask returned: it ends with long. An error that a retry may cure is returned as a Failure.
func (s *Source) ask(long, others context.Context, r *request, g *group) ([]answer, []follow.Failure, error) {
	var fail follow.Failure
	storage, ok := s.deps.Servers.Server(g.server)
	if !ok {
		fail.Reason, fail.Err = follow.Unanswered, fault.Errorf(fault.Unavailable, "storage server %q is not known here", g.server)
		return nil, g.failures(fail), nil
	}
	a := s.follow.Begin(long, r.table, g.server, g.partitions)
	stop := context.AfterFunc(others, a.Close)
	defer stop()
	silent := s.unlessEmpty(r, g, a)
	ans, err := r.ask(a.Context(), g, storage)
	if silent.answered() {
		if err == nil {
			ans.drop()
		}
		return nil, nil, nil
	}
	verdict, reason := a.End(err)
	if verdict == follow.Done {
		if ans.complete {
			a.Close()
		} else {
			context.AfterFunc(long, a.Close) // its rows are read under its context
		}
		return []answer{ans}, nil, nil
	}
	a.Close()
	if err == nil {
		ans.drop()
	}
	if reason == follow.Moved {
		s.metrics.moved.Inc()
		err = fault.Wrap(runner.ErrMoved, fault.Stale, "server %s said nothing", g.server)
	}
	if verdict == follow.Final {
		return nil, nil, err
	}
	fail.Sent, fail.Reason, fail.Err = true, reason, err
	return nil, g.failures(fail), nil
}

// without returns an answer without the missing partitions, where that is allowed.
func (s *Source) without(ctx context.Context, r *request, missing []follow.Failure) ([]error, error) {
	var errs []error
	for _, x := range missing {
		errs = append(errs, fault.Wrap(x.Err, fault.Unavailable, "no answer for %s of table %q", names(x.Partitions), r.table))
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
