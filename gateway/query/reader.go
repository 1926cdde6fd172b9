package query

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
)

// Deps are the parts that a Reader uses.
type Deps struct {
	Source     Source
	Log        *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: metrics are counted and shown nowhere
	Memory     *budget.Account       // for all queries; nil: memory is not counted
	Processors int                   // there are; 0: as many as Go's scheduler uses
	Recent     *recent.Queries       // where queries are shown that run and that were slow; nil: nowhere
	Lane       *lane.Lane            // leaves processors to writes; nil: nothing is written
}

// Reader reads every table of one source within one set of limits.
type Reader struct {
	// Constant after New.
	source   Source
	remote   bool // the source asks other processes
	settings Settings
	metrics  *metrics
	engine   *Engine
	lookups  *Gate
}

// New makes a Reader; zero settings mean their defaults. The error is Invalid and names every mistake.
func New(d Deps, s Settings) (*Reader, error) {
	s.SetDefaults()
	if err := s.Validate(); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "settings")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	r := &Reader{source: d.Source, settings: s, metrics: newMetrics(d.Registerer)}
	_, r.remote = unguarded(d.Source).(Divider)
	r.engine = newEngine(d, r.metrics, s)
	r.lookups = NewGate(s.RunningMax, s.WaitingMax)
	return r, nil
}

// Table returns a view of a table; whether it exists shows when it is read.
func (r *Reader) Table(name string) *Table { return &Table{name: name, reader: r} }

// Lookup is a request that is no PromQL query: for labels, series, exemplars, raw samples.
type Lookup struct {
	reader *Reader
	start  time.Time
	cancel context.CancelFunc
	loan   *budget.Loan
	turn   *lane.Turn
	w      *watched
	of     *limits.Query
	left   bool
}

// Lookup waits for a place for such a request, and begins its loan and its time-out: work under the context draws
// on the loan. Errors: Throttled, Canceled. End it.
func (r *Reader) Lookup(ctx context.Context) (context.Context, *Lookup, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.settings.Timeout))
	if err := r.lookups.Enter(ctx); err != nil {
		cancel()
		return nil, nil, err
	}
	loan, err := r.engine.borrow(ctx)
	if err != nil {
		r.lookups.Leave()
		cancel()
		return nil, nil, err
	}
	l := &Lookup{reader: r, start: start, of: limits.QueryOf(ctx), cancel: cancel, loan: loan, turn: r.Turn()}
	ctx = lane.With(ctx, l.turn)
	ctx, l.w = r.engine.guard.watch(budget.WithLoan(ctx, loan), loan)
	return ctx, l, nil
}

// Leave ends the look-up's turn and makes room for others while the answer is written. The error is why the request was ended early, or err.
func (l *Lookup) Leave(err error) error {
	l.turn.End()
	if !l.left {
		l.left = true
		l.w.leave()
		l.reader.lookups.Leave()
	}
	if err != nil {
		err = l.w.cause(err)
	}
	return l.of.Took(l.loan.Held(), int64(l.reader.settings.BytesMax), isShortage(err), err)
}

// Turn is the look-up's way through the lane, for work outside this package.
func (l *Lookup) Turn() *lane.Turn { return l.turn }

// End releases the answer's memory.
func (l *Lookup) End() {
	_ = l.Leave(nil)
	l.loan.Close()
	l.cancel()
}

// Reserve books bytes that a request needs before it is parsed. The caller releases them.
func (r *Reader) Reserve(bytes int64) (release func(), err error) {
	memory := r.engine.memory
	if memory == nil {
		return func() {}, nil
	}
	if err := memory.Reserve(bytes); err != nil {
		return nil, fault.Annotate(err, "the request is large")
	}
	return func() { memory.Release(bytes) }, nil
}

// Engine evaluates PromQL.
func (r *Reader) Engine() *Engine { return r.engine }

// Parser parses PromQL as the engine does, with the same experiments allowed.
func (r *Reader) Parser() parser.Parser { return r.engine.parser }

// Settings returns the settings in force.
func (r *Reader) Settings() Settings { return r.settings }

func (r *Reader) usage(loan *budget.Loan) *usage {
	return &usage{seriesMax: r.settings.SeriesMax, rowsMax: r.settings.RowsMax, loan: loan}
}

// Turn makes one for an answer that is encoded. End it.
func (r *Reader) Turn() *lane.Turn { return r.engine.lane.Turn(&lane.Share{}) }

// turnFor acquires the turn in which a source is asked. A source that asks other processes needs none, since it only waits for them: with a turn, one slow
// server or one partition without a leader would hold up all other queries of a gateway.
func (r *Reader) turnFor(ctx context.Context, t *lane.Turn) error {
	if r.remote {
		t.End()
		return nil
	}
	return t.Next(ctx)
}
