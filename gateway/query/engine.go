package query

import (
	"cmp"
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/features"

	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/lane"
)

// Engine is Prometheus' engine behind a gate: so many queries run, so many wait, the rest are refused. Expressions that can
// be evaluated over columns never reach it (cut.go).
type Engine struct {
	// Constant after newEngine.
	inner         []*promql.Engine // by level
	levels        []int            // of samples that the engine may hold; the last is SamplesMax
	memory        *budget.Account  // nil: not counted
	smallTextsMax int64
	bytesMax      int64 // of one query; 0: the account's bound
	guard         *guard
	workers       *workers
	lane          *lane.Lane
	processors    int
	parser        parser.Parser
	gate          *Gate
	again         *Gate // of second evaluations; none waits
	metrics       *metrics
	recent        *recent.Queries // nil: queries are not shown
	timeout       time.Duration
	smallTexts    atomic.Int64 // bytes booked for texts of at most smallText; at most smallTextsMax
	samples       int          // SamplesMax
	subSteps      int          // SubquerySteps
	subStep       time.Duration
	columnar      bool // evaluate over columns where possible
	slow          *slowLog
	features      features.Collector
}

var _ promql.QueryEngine = (*Engine)(nil)

func newEngine(d Deps, m *metrics, s Settings) *Engine {
	p := shallowParser{parser.NewParser(parser.Options{
		EnableExperimentalFunctions: s.ExperimentalFunctions,
		EnableBinopFillModifiers:    s.FillModifiers,
		EnableUnquotedUTF8Names:     s.UnquotedNames,
	})}
	processors := cmp.Or(d.Processors, runtime.GOMAXPROCS(0))
	e := &Engine{
		recent: d.Recent,
		parser: p, metrics: m, timeout: time.Duration(s.Timeout), features: features.NewRegistry(), samples: s.SamplesMax,
		subSteps: s.SubqueryStepsMax, subStep: time.Duration(s.SubqueryStep),
		// With delayed removal a name is carried along where columns have none.
		columnar: !s.PlainEngine && !s.DelayedNameRemoval,
		workers:  newWorkers(),
		gate:     NewGate(s.RunningMax, s.WaitingMax), again: NewGate(processors, 0), slow: &slowLog{d.Log, time.Duration(s.SlowAfter)},
		memory: d.Memory, bytesMax: int64(s.BytesMax), guard: newGuard(d.Log), processors: processors, lane: cmp.Or(d.Lane, lane.New(nil, processors)),
	}
	e.levels = []int{s.SamplesMax}
	if d.Memory != nil {
		e.smallTextsMax = cmp.Or(d.Memory.Share().Floor, d.Memory.Share().Max) / smallTextParts
		e.levels = sampleLevels(s.SamplesMax)
	}
	step := time.Duration(s.SubqueryStep).Milliseconds()
	for _, samples := range e.levels {
		e.inner = append(e.inner, promql.NewEngine(promql.EngineOpts{
			Logger:                   d.Log,
			MaxSamples:               samples,
			Timeout:                  time.Duration(s.Timeout),
			LookbackDelta:            time.Duration(s.Lookback),
			NoStepSubqueryIntervalFn: func(int64) int64 { return step },
			EnableAtModifier:         true,
			EnableNegativeOffset:     true,
			EnablePerStepStats:       true, // costs only the queries that request it
			EnableDelayedNameRemoval: s.DelayedNameRemoval,
			FeatureRegistry:          e.features,
			Parser:                   p,
		}))
	}
	m.watch(e.gate)
	return e
}

// firstSamples is how many samples the engine may hold at the first try where memory is counted. A query that needs more is
// evaluated again with four times as many: the engine reports only that they are too few. Columns need none of this.
const firstSamples = 1 << 14

// sampleLevels are the bounds under which a query is tried.
func sampleLevels(most int) (levels []int) {
	for n := firstSamples; n < most; n *= 4 {
		levels = append(levels, n)
	}
	return append(levels, most)
}

// Features lists the parts of PromQL that are on, by category and name, as Prometheus' features endpoint does.
func (e *Engine) Features() map[string]map[string]bool { return e.features.Get() }

// NewInstantQuery parses a query to be evaluated at one time. The query is used once and closed.
func (e *Engine) NewInstantQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, t time.Time) (promql.Query, error) {
	return e.newQuery(q, opts, kindInstant, text, func(level int, q storage.Queryable) (promql.Query, error) {
		return e.inner[level].NewInstantQuery(ctx, q, opts, text, t)
	})
}

// NewRangeQuery parses a query to be evaluated at every step from start to end.
func (e *Engine) NewRangeQuery(ctx context.Context, q storage.Queryable, opts promql.QueryOpts, text string, start, end time.Time, step time.Duration) (promql.Query, error) {
	return e.newQuery(q, opts, kindRange, text, func(level int, q storage.Queryable) (promql.Query, error) {
		return e.inner[level].NewRangeQuery(ctx, q, opts, text, start, end, step)
	})
}

// newQuery parses and bounds a query. The memory of its tree is booked before.
func (e *Engine) newQuery(in storage.Queryable, opts promql.QueryOpts, kind, text string, parse func(int, storage.Queryable) (promql.Query, error)) (_ promql.Query, err error) {
	q := &query{engine: e, kind: kind, table: tableOf(in), expr: text}
	q.prepare = func() (promql.Query, error) {
		q.cut = e.cutter(in, opts)
		from := q.queryable(in)
		q.parse = func(level int) (promql.Query, error) { return parse(level, from) }
		return q.parse(0)
	}
	if q.text, err = e.reserveText(text); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.releaseText(q.text)
		}
	}()
	if q.Query, err = q.prepare(); err != nil {
		return nil, err
	}
	stmt := q.Statement().(*parser.EvalStmt)
	if err = boundAbsent(text, stmt.Expr); err != nil {
		return nil, err
	}
	if q.steps, err = boundSteps(text, stmt, e.subStep, e.subSteps); err != nil {
		return nil, err
	}
	if q.usage.growth, err = boundGrowth(text, stmt.Expr); err != nil {
		return nil, err
	}
	return q, nil
}

// stopper is a cancel function that may be called before it is set.
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
