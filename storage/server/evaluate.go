package server

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

var _ peer.Evaluator = (*Server)(nil)

// evaluationsPerProcessor bounds the evaluations under way; others wait. Each has as many workers as there are processors.
const evaluationsPerProcessor = 4

// Evaluate implements peer.Evaluator. It draws on the loan of ctx. An answer on its way counts as no evaluation under way: a gateway that reads slowly, or is frozen, keeps no
// other one waiting.
func (s *Server) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	var send func(give func([]byte) error) error
	r, err := columns.DecodeRequest(request)
	if err == nil {
		send, err = s.evaluate(ctx, q, r)
	}
	if err == nil {
		err = send(give)
	}
	m := &s.metrics.evaluations
	switch {
	case errors.Is(err, columns.ErrUnknown):
		m.unknown.Inc()
		return columns.SendOutcome(columns.Unknown, give)
	case errors.Is(err, columns.ErrAbandoned):
		m.abandoned.Inc()
		return columns.SendOutcome(columns.Abandoned, give)
	case errors.Is(err, columns.ErrTooManySamples):
		m.tooMany.Inc()
		return columns.SendOutcome(columns.TooMany, give)
	case err != nil:
		m.failed.Inc()
		return err
	}
	m.ok.Inc()
	return nil
}

// evaluationMetrics count requests for evaluations. Label outcome: ok, unknown (a later build's, or for rows that are many), abandoned (the gateway reads the rows),
// too_many_samples, failed.
type evaluationMetrics struct{ ok, unknown, abandoned, tooMany, failed prometheus.Counter }

func newEvaluationMetrics() (m evaluationMetrics, all prometheus.Collector) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_server_evaluations_total", Help: "Parts of queries that gateways asked to be evaluated here, by outcome. After unknown and abandoned the gateway reads the rows.",
	}, []string{"outcome"})
	of := v.WithLabelValues
	return evaluationMetrics{of("ok"), of("unknown"), of("abandoned"), of("too_many_samples"), of("failed")}, v
}

// evaluate returns how the answer is sent.
func (s *Server) evaluate(ctx context.Context, q *peer.Select, r *columns.Request) (send func(give func([]byte) error) error, err error) {
	if q.Copies == peer.StagedRows {
		return nil, fault.Errorf(fault.Invalid, "staged rows are read, and not evaluated")
	}
	// Of the whole query, not only of the steps asked for: no server is asked for a step where the caller's map has no partition.
	if m, ok := s.deps.Maps.Get(q.Table); ok {
		if err := s.named(q.Table, knowsAll(q, m)); err != nil {
			return nil, err
		}
	}
	select {
	case s.evaluating <- struct{}{}:
		defer func() { <-s.evaluating }()
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), fault.Canceled, "waiting for other evaluations")
	}
	mine := *q
	lo, hi := r.Plan.Reach()
	mine.Lo, mine.Hi, mine.LabelsOnly, mine.Ranks = point.NanosOf(lo), point.LastNanosOf(hi), false, false
	if r.Form == columns.Raw {
		return s.raw(ctx, &mine, r)
	}
	mine.Newest = r.Plan.LooksAtNewest()
	workers := s.deps.Processors
	// With twice as many parts of a query here as there are processors, workers of their own would only add goroutines
	// that wait for turns.
	if q.Beside+1 >= 2*workers { // none waits for another
		workers = 1
	}
	loan := budget.LoanOf(ctx)
	// One share for all workers of the request: the lane counts its turns together, so that many workers are not many
	// requests.
	rows, share := &countedRows{}, &lane.Share{}
	part, err := r.Plan.Part(ctx, columns.Env{
		Open: func(ctx context.Context, _, _ int64) (columns.Rows, error) {
			t := s.deps.Lane.Turn(share) // finding series is work too
			if err := t.Next(ctx); err != nil {
				return nil, err
			}
			defer t.End()
			in, err := s.Select(ctx, &mine)
			if err != nil {
				return nil, err
			}
			rows.in, rows.series, rows.rows = in.(*seriesSet), atomic.Int64{}, atomic.Int64{}
			return rows, nil
		},
		Turn: func() (func(context.Context) error, func()) {
			t := s.deps.Lane.Turn(share)
			return t.Next, t.End
		},
		SamplesMax: r.SamplesMax, Workers: workers, Take: loan.TakeSoon, Spare: loan.TakeSpare, Give: loan.Give,
	}, r.Form)
	if err != nil {
		return nil, err
	}
	if len(part.Names) > columns.NamesMax {
		return nil, columns.ErrUnknown
	}
	part.Series, part.Rows = int(rows.series.Load()), int(rows.rows.Load())
	return part.Send, nil
}

// raw reads the rows of an answer of form Raw, in one turn, since they are few. More than travel are ErrUnknown, mostly before any is read.
func (s *Server) raw(ctx context.Context, q *peer.Select, r *columns.Request) (send func(give func([]byte) error) error, err error) {
	end, err := s.turn(ctx, &lane.Share{})
	if err != nil {
		return nil, err
	}
	defer end()
	_, sn, err := s.snapshot(ctx, q)
	if err != nil {
		return nil, err
	}
	set := &seriesSet{ctx: ctx, q: q, sn: sn, ahead: s.deps.Processors}
	defer set.Close()
	rows := 1
	for _, v := range sn.views {
		rows += v.Rows(q.Lo, q.Hi)
	}
	if set.rest, err = sn.match(ctx, max(1, columns.RawBytesMax/(8*rows))); fault.Is(err, fault.TooLarge) {
		return nil, columns.ErrUnknown
	} else if err != nil {
		return nil, err
	}
	w := &columns.RawWriter{}
	if err := set.writeRaw(w); err != nil {
		return nil, err
	}
	if err := budget.LoanOf(ctx).TakeSoon(w.Bytes()); err != nil {
		return nil, err
	}
	return func(give func([]byte) error) error { return w.Send(r, give) }, nil
}

// writeRaw writes all rows. The error is ErrUnknown where they are too many or have histograms, and those of reading.
func (ss *seriesSet) writeRaw(w *columns.RawWriter) error {
	in := ss.Pager(pageSeriesMax)
	defer in.Close()
	for {
		page, ok, err := in.Next()
		if err != nil || !ok {
			return err
		}
		for i := range page.Series {
			if !w.Add(&page.Series[i]) {
				return columns.ErrUnknown
			}
		}
		if page.Last {
			return nil
		}
	}
}

// countedRows counts the series and rows that are read.
type countedRows struct {
	in           *seriesSet
	series, rows atomic.Int64
}

// Pager implements columns.Rows.
func (c *countedRows) Pager(seriesMax int) peer.Pager {
	return &countedPager{of: c, Pager: c.in.Pager(seriesMax)}
}

// Close implements columns.Rows.
func (c *countedRows) Close() error { return c.in.Close() }

type countedPager struct {
	peer.Pager
	of *countedRows
}

// Next implements peer.Pager.
func (p *countedPager) Next() (page peer.Page, ok bool, err error) {
	if page, ok, err = p.Pager.Next(); err == nil && ok {
		rows := 0
		for i := range page.Series {
			rows += len(page.Series[i].Times)
		}
		p.of.series.Add(int64(len(page.Series)))
		p.of.rows.Add(int64(rows))
	}
	return page, ok, err
}
