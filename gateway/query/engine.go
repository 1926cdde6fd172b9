package query

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/features"
)

// Engine is Prometheus' engine behind a gate: so many queries run, so many wait, the rest are refused. What can be
// evaluated over columns never reaches it (cut.go).
type Engine struct {
	// Constant after newEngine.
	inner    *promql.Engine
	parser   parser.Parser
	gate     *Gate
	metrics  *metrics
	timeout  time.Duration
	samples  int  // SamplesMax
	columnar bool // evaluate over columns what can be
	features features.Collector
}

var _ promql.QueryEngine = (*Engine)(nil)

func newEngine(log *slog.Logger, m *metrics, s Settings) *Engine {
	p := shallowParser{parser.NewParser(parser.Options{
		EnableExperimentalFunctions:  s.ExperimentalFunctions,
		ExperimentalDurationExpr:     s.ExperimentalDurations,
		EnableExtendedRangeSelectors: s.ExtendedSelectors,
		EnableBinopFillModifiers:     s.FillModifiers,
	})}
	f := features.NewRegistry()
	step := s.SubqueryStep.Milliseconds()
	inner := promql.NewEngine(promql.EngineOpts{
		Logger:                   log,
		MaxSamples:               s.SamplesMax,
		Timeout:                  s.Timeout,
		LookbackDelta:            s.Lookback,
		NoStepSubqueryIntervalFn: func(int64) int64 { return step },
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		EnablePerStepStats:       true, // costs only the queries that ask for it
		EnableDelayedNameRemoval: s.DelayedNameRemoval,
		FeatureRegistry:          f,
		Parser:                   p,
	})
	e := &Engine{
		inner: inner, parser: p, metrics: m, timeout: s.Timeout, features: f, samples: s.SamplesMax,
		// With delayed removal a name is carried along where columns have none.
		columnar: !s.PlainEngine && !s.DelayedNameRemoval,
		gate:     NewGate(s.RunningMax, s.WaitingMax),
	}
	m.watch(e.gate)
	return e
}

// Features tells which parts of PromQL are on, by category and name, as Prometheus' features endpoint does.
func (e *Engine) Features() map[string]map[string]bool { return e.features.Get() }

// NewInstantQuery parses a query to be evaluated at one time. What it returns is used once and closed.
func (e *Engine) NewInstantQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, t time.Time) (promql.Query, error) {
	c := e.cutter(q, opts)
	in, err := e.inner.NewInstantQuery(ctx, c.queryable(q), opts, text, t)
	if err != nil {
		return nil, err
	}
	return &query{Query: in, engine: e, kind: kindInstant, cut: c}, nil
}

// NewRangeQuery parses a query to be evaluated at every step from start to end.
func (e *Engine) NewRangeQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, start, end time.Time, step time.Duration) (promql.Query, error) {
	c := e.cutter(q, opts)
	in, err := e.inner.NewRangeQuery(ctx, c.queryable(q), opts, text, start, end, step)
	if err != nil {
		return nil, err
	}
	return &query{Query: in, engine: e, kind: kindRange, cut: c}, nil
}

// query is a parsed query that passes the gate before it runs.
type query struct {
	promql.Query
	engine *Engine
	kind   string
	cut    *cutter // nil: all of it is for the engine
	stop   stopper
}

// Exec waits its turn and evaluates. The time-out counts from here on, waiting included.
func (q *query) Exec(ctx context.Context) *promql.Result {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, q.engine.timeout)
	defer cancel()
	q.stop.arm(cancel)
	if err := q.engine.gate.Enter(ctx); err != nil {
		q.engine.metrics.observe(q.kind, start, err)
		return &promql.Result{Err: err}
	}
	defer q.engine.gate.Leave()
	res := q.evaluate(ctx)
	q.engine.metrics.observe(q.kind, start, res.Err)
	if s := q.Stats().Samples; s != nil {
		q.engine.metrics.samples.Add(float64(s.TotalSamples))
	}
	return res
}

// evaluate does over columns what can be done so, and leaves the rest to the engine.
func (q *query) evaluate(ctx context.Context) *promql.Result {
	if q.cut == nil {
		return q.Query.Exec(ctx)
	}
	return q.cut.evaluate(ctx, q)
}

// Cancel ends an evaluation that goes on, or that has yet to begin.
func (q *query) Cancel() {
	q.stop.pull()
	q.Query.Cancel()
}

// stopper is a cancel function that may be pulled before it is there.
type stopper struct {
	sync.Mutex
	pulled bool
	cancel context.CancelFunc
}

func (s *stopper) arm(cancel context.CancelFunc) {
	s.Lock()
	defer s.Unlock()
	s.cancel = cancel
	if s.pulled {
		cancel()
	}
}

func (s *stopper) pull() {
	s.Lock()
	defer s.Unlock()
	s.pulled = true
	if s.cancel != nil {
		s.cancel()
	}
}

// Waiting is how many queries wait for others to end.
func (e *Engine) Waiting() int { return e.gate.Waiting() }
