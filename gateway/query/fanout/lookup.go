package fanout

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// booked asks by a part of the request's loan, in which the answer stays booked until the part is closed.
func booked[T any](ctx context.Context, ask func(context.Context) (T, error)) (a T, part *budget.Loan, err error) {
	part = budget.LoanOf(ctx).Part()
	answered := false
	defer func() {
		if !answered || err != nil { // also after a panic
			part.Close()
		}
	}()
	a, err = ask(budget.WithLoan(ctx, part))
	answered = true
	return a, part, err
}

// gather asks all leaders of partitions of q and returns their answers, which are booked in the request's loan; those that do not count are not.
func gather[T any](ctx context.Context, s *Source, q *peer.Select, whole bool, ask func(ctx context.Context, q *peer.Select, st peer.Storage) (T, error)) ([]T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var answers []T
	var parts []*budget.Loan
	_, err := s.fan(ctx, &request{
		table: q.Table, partitions: q.Partitions, lo: q.Lo, hi: q.Hi, matchers: q.Matchers, whole: whole, leaders: whole,
		begin: func() { // fan asks all again after a map or a leader changed: the answers by the old ones count no more
			for _, p := range parts {
				p.Close()
			}
			answers, parts = nil, nil
		},
		ask: func(ctx context.Context, g *group, st peer.Storage) (answer, error) {
			// Questions run side by side; keep is called for one after the other when all have ended, so the lists need no lock.
			a, part, err := booked(ctx, func(ctx context.Context) (T, error) { return ask(ctx, g.ask(q), st) })
			return answer{keep: func() { answers, parts = append(answers, a), append(parts, part) }, drop: part.Close, complete: true}, err
		},
	})
	return answers, err
}

// list is a part of a look-up's answer.
type list struct {
	of        []string
	truncated bool
	part      *budget.Loan // of the request's loan, that has a list of staged series
}

func lists(found []list, limit int) ([]string, bool) {
	all, cut := make([][]string, len(found)), false
	for i, l := range found {
		all[i], cut = l.of, cut || l.truncated
	}
	of, truncated := unite(all, limit)
	return of, truncated || cut
}

// LabelNames implements query.Source.
func (s *Source) LabelNames(ctx context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	ask := func(ctx context.Context, q *peer.Select, st peer.Storage) (l list, err error) {
		l.of, l.truncated, err = st.LabelNames(ctx, q, limit)
		return l, err
	}
	staged, err := s.stagedLists(ctx, q, ask)
	if err != nil {
		return nil, false, err
	}
	found, err := gather(ctx, s, q, false, ask)
	names, truncated := lists(append(found, staged...), limit)
	return names, truncated, err
}

// LabelValues implements query.Source.
func (s *Source) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) ([]string, bool, error) {
	ask := func(ctx context.Context, q *peer.Select, st peer.Storage) (l list, err error) {
		l.of, l.truncated, err = st.LabelValues(ctx, q, name, limit)
		return l, err
	}
	staged, err := s.stagedLists(ctx, q, ask)
	if err != nil {
		return nil, false, err
	}
	found, err := gather(ctx, s, q, false, ask)
	values, truncated := lists(append(found, staged...), limit)
	return values, truncated, err
}

// Exemplars implements query.Source. Those of staged rows are in no answer before they are forwarded, which a warning says.
func (s *Source) Exemplars(ctx context.Context, q *peer.Select, sets [][]peer.Matcher) ([]peer.SeriesExemplars, error) {
	s.withoutStaged(ctx, q)
	found, err := gather(ctx, s, q, false,
		func(ctx context.Context, q *peer.Select, st peer.Storage) ([]peer.SeriesExemplars, error) {
			return st.Exemplars(ctx, q, sets)
		})
	if err != nil {
		return nil, err
	}
	return uniteExemplars(found), nil
}

// CleanTombstones implements query.Source. It asks everywhere or returns an error, as DeleteSeries does.
func (s *Source) CleanTombstones(ctx context.Context, q *peer.Select) error {
	_, err := gather(ctx, s, q, true, func(ctx context.Context, q *peer.Select, st peer.Storage) (struct{}, error) {
		return struct{}{}, st.CleanTombstones(ctx, q)
	})
	return err
}

// everyServer asks all servers of the cluster. Fewer than miss may fail without an error or a warning; more are an
// error, or a warning where that is allowed.
func everyServer[T any](ctx context.Context, s *Source, table string, miss int, ask func(ctx context.Context, st peer.Storage) (T, error)) (answers []T, err error) {
	if _, err := s.known(table); err != nil {
		return nil, err
	}
	if err := s.warnServers(ctx, table); err != nil {
		return nil, err
	}
	ids := s.deps.Servers.All()
	answers = make([]T, len(ids))
	errs := make([]error, len(ids))
	var g errgroup.Group
	g.SetLimit(s.settings.ParallelMax)
	for i, id := range ids {
		g.Go(func() error {
			answers[i], errs[i] = one(ctx, s, id, ask)
			s.metrics.request(errs[i])
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var failed []error
	kept := answers[:0]
	for i, err := range errs {
		switch {
		case err == nil:
			kept = append(kept, answers[i])
		case curable(err) && ctx.Err() == nil:
			failed = append(failed, err)
		default:
			return nil, err
		}
	}
	switch {
	case len(failed) == 0 || len(failed) < miss && len(kept) > 0:
	case query.Partial(ctx):
		s.metrics.partial.Inc()
		for _, err := range failed {
			query.Warn(ctx, "the answer is not whole: "+err.Error())
		}
	default:
		return nil, fault.Wrap(failed[0], fault.Unavailable, "%d of %d storage servers do not answer; one", len(failed), len(ids))
	}
	return kept, nil
}

func one[T any](ctx context.Context, s *Source, id topology.ServerID, ask func(ctx context.Context, st peer.Storage) (T, error)) (answer T, err error) {
	defer fault.Caught(&err)
	st, ok := s.deps.Servers.Server(id)
	if !ok {
		return answer, fault.Errorf(fault.Unavailable, "storage server %q is not known here", id)
	}
	return ask(ctx, st)
}

// GetMetadata implements query.Source: by metric, sorted. Where servers have different descriptions of a metric, all are returned.
func (s *Source) GetMetadata(ctx context.Context, table, metric string) ([]point.MetadataRow, error) {
	found, err := everyServer(ctx, s, table, s.settings.FamilyCopies, func(ctx context.Context, st peer.Storage) ([]point.MetadataRow, error) {
		return st.GetMetadata(ctx, table, metric)
	})
	if err != nil {
		return nil, err
	}
	all := slices.Concat(found...)
	slices.SortFunc(all, func(a, b point.MetadataRow) int {
		return cmp.Or(strings.Compare(a.Metric, b.Metric), strings.Compare(a.Type, b.Type), strings.Compare(a.Help, b.Help), strings.Compare(a.Unit, b.Unit))
	})
	return slices.Compact(all), nil
}
