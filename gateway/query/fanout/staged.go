package fanout

import (
	"cmp"
	"context"
	"sync"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Rows that are staged are asked for first, then partitions: a row that moves to its leader between the two is in the second answer, and one that
// moves later is in the first. So none is missed, and one that is in both counts once, by its rank.

// stagedAt lists the servers on which rows of a table may be staged. Nearly always there is none.
func (s *Source) stagedAt(table string) []topology.ServerID {
	if s.deps.Staged == nil {
		return nil
	}
	return s.deps.Staged(table)
}

// eachStaged asks servers beside each other and returns the answer or the error of each.
func eachStaged[T any](ctx context.Context, s *Source, at []topology.ServerID, ask func(ctx context.Context, id topology.ServerID, st peer.Storage) (T, error)) (all []T, errs []error) {
	all, errs = make([]T, len(at)), make([]error, len(at))
	var asked sync.WaitGroup
	for i, id := range at {
		asked.Go(func() {
			all[i], errs[i] = one(ctx, s, id, func(ctx context.Context, st peer.Storage) (T, error) { return ask(ctx, id, st) })
			s.metrics.request(errs[i])
		})
	}
	asked.Wait()
	return all, errs
}

// stagedHolders is how many servers hold each staged frame of a table at least.
func (s *Source) stagedHolders(table string) int {
	if m, ok := s.deps.Tables.Get(table); ok {
		return m.Config.StagedHolders()
	}
	return 1
}

// patiently asks all servers beside each other, and does without those that are not needed (patience). The context of an answer ends with ctx. drop forgets an answer that came too late.
func patiently[T any](ctx context.Context, s *Source, at []topology.ServerID, table string, ask func(ctx context.Context, id topology.ServerID, st peer.Storage) (T, error), drop func(T)) (all []T, errs []error) {
	p := &patience{holders: s.stagedHolders(table), partial: query.Partial(ctx), silent: s.silent, open: map[topology.ServerID]context.CancelFunc{}}
	own := map[topology.ServerID]context.Context{} // before the first is asked: all count from the beginning
	for _, id := range at {
		ctx, cut := context.WithCancel(ctx)
		own[id] = ctx
		p.begin(id, cut)
	}
	waiting, answered := context.WithCancel(ctx)
	defer answered()
	go p.wait(waiting)
	return eachStaged(ctx, s, at, func(_ context.Context, id topology.ServerID, st peer.Storage) (answer T, err error) {
		got, err := ask(own[id], id, st)
		if end := p.over(id, err); end != nil {
			if err == nil {
				drop(got)
			}
			return answer, end
		}
		return got, nil
	})
}

// askStaged asks all servers on which rows of a table may be staged. As many may be missing as leave one holder of every frame; more
// are an error, or a warning where that is allowed. The answers are those of all servers that gave one, also beside an error: the caller drops them.
func askStaged[T any](ctx context.Context, s *Source, at []topology.ServerID, table string, ask func(ctx context.Context, id topology.ServerID, st peer.Storage) (T, error), drop func(T)) (answers []T, err error) {
	all, errs := patiently(ctx, s, at, table, ask, drop)
	var missing, final error
	away := 0
	for i, err := range errs {
		switch {
		case err == nil:
			answers = append(answers, all[i])
		case !curable(err) && !fault.Is(err, fault.Canceled) || ctx.Err() != nil:
			final = cmp.Or(final, err)
		default:
			away++
			missing = fault.Wrap(err, fault.Unavailable, "rows of table %q that wait for their leader may be missing: server %s", table, at[i])
		}
	}
	switch {
	case final != nil:
		return answers, final
	case away < s.stagedHolders(table):
		return answers, nil
	}
	if !query.Partial(ctx) {
		return answers, missing
	}
	s.metrics.partial.Inc()
	query.Warn(ctx, "the answer is not whole: "+missing.Error())
	return answers, nil
}

// openStaged opens the series of staged rows. Readers without any are closed; the others are the caller's, also after an error.
func (s *Source) openStaged(ctx context.Context, at []topology.ServerID, q *peer.Select) (readers []*reader, err error) {
	mine := *q
	mine.Partitions, mine.MapSeq, mine.MapNext, mine.Copies, mine.Ranks = nil, 0, 0, peer.StagedRows, true
	all, err := askStaged(ctx, s, at, q.Table, func(ctx context.Context, id topology.ServerID, st peer.Storage) (*reader, error) {
		return open(ctx, &group{server: id, overlaps: true, mode: peer.StagedRows}, &mine, st)
	}, func(rd *reader) { _ = rd.close() })
	for _, rd := range all {
		if rd.ended {
			_ = rd.close()
			continue
		}
		readers = append(readers, rd)
	}
	return readers, err
}

// stagedLists asks for labels of staged series.
func (s *Source) stagedLists(ctx context.Context, q *peer.Select, ask func(ctx context.Context, q *peer.Select, st peer.Storage) (list, error)) ([]list, error) {
	at := s.stagedFor(ctx, q)
	if len(at) == 0 {
		return nil, nil
	}
	mine := *q
	mine.Partitions, mine.MapSeq, mine.MapNext, mine.Copies = nil, 0, 0, peer.StagedRows
	ctx, answered := context.WithCancel(ctx)
	defer answered()
	return askStaged(ctx, s, at, q.Table, func(ctx context.Context, _ topology.ServerID, st peer.Storage) (list, error) {
		l, part, err := booked(ctx, func(ctx context.Context) (list, error) { return ask(ctx, &mine, st) })
		l.part = part
		return l, err
	}, func(l list) { l.part.Close() })
}
