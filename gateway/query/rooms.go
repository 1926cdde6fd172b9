package query

import (
	"math"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/spillwaydb/spillway/gateway/query/columnar"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// rooms are the bytes that the engine's operators allocate for each series that a selector loads, by the first matcher of the
// selector. An operator makes room for a point at every step as soon as a series has one, and it makes room for
// all series of a step before it looks at the number of samples or at the context:
//
//	topk(9, a) over 5,000 steps   a{x="1"}  ▪▪····················   2 samples, room for 5,000
//	                              a{x="2"}  ▪▪····················   2 samples, room for 5,000
//
// So thousands of short series over many steps need gigabytes within milliseconds, in which no guard can end the query.
type rooms struct {
	by  map[*labels.Matcher]room
	def time.Duration // step of a subquery that names none
}

// room is for the series of one selector.
type room struct {
	each int64 // bytes
	most int64 // bytes in all; 0: as many as there are

	values  bool // each is of a different value, not of a series
	grouped bool // each is of a different value of a series
}

const (
	// roomPoints is how many points an operator makes room for at most: the engine's own bound. It appends the rest as they come.
	roomPoints = 5000
	pointBytes = 16
	// roomDepth is how many operators above a selector hold room at a time: the input of one, and its output.
	roomDepth = 2
	// countValuesRooms is how many groups count_values is expected to make of a series whose values are computed. It may make one of
	// each sample; the guard sees those of later steps. Values that are stored are counted.
	countValuesRooms = 4
	// topChanges is how many different sets of the k highest series a query is expected to find. The guard handles more: each
	// step adds k at most.
	topChanges = 16
)

// roomsOf walks down an expression that the engine will evaluate.
func roomsOf(s *parser.EvalStmt, def time.Duration) map[*labels.Matcher]room {
	r := &rooms{by: map[*labels.Matcher]room{}, def: def}
	if once(s) {
		r.walk(s.Expr, 0, 1, room{}, 0)
	} else {
		over := s.End.Sub(s.Start)
		r.walk(s.Expr, over, stepsOf(over, s.Interval), room{}, 0)
	}
	return r.by
}

func stepsOf(over, step time.Duration) int64 {
	return int64(over/time.Millisecond)/max(1, int64(step/time.Millisecond)) + 1
}

// bytes of one room.
func roomBytes(steps int64) int64 {
	if steps <= 1 {
		return 0
	}
	return min(steps, roomPoints) * pointBytes
}

// walk goes down from operators that hold the given room for each of their input series. They are evaluated at so many
// steps over a time of this length, and depth operators hold room.
func (r *rooms) walk(expr parser.Expr, over time.Duration, steps int64, above room, depth int) {
	switch e := expr.(type) {
	case nil, *parser.NumberLiteral, *parser.StringLiteral:
	case *parser.VectorSelector:
		if len(e.LabelMatchers) > 0 {
			r.by[e.LabelMatchers[0]] = above
		}
	case *parser.StepInvariantExpr:
		r.walk(e.Expr, 0, 1, above, depth)
	case *parser.SubqueryExpr:
		if e.Timestamp != nil {
			over = 0
		}
		if over += e.Range; over < 0 {
			over = math.MaxInt64
		}
		step := e.Step
		if step <= 0 {
			step = r.def
		}
		r.walk(e.Expr, over, stepsOf(over, step), above, depth)
	case *parser.AggregateExpr:
		r.walk(e.Param, over, steps, room{}, 0)
		above, depth := aggregated(e, steps, above, depth)
		r.walk(e.Expr, over, steps, above, depth)
	case *parser.BinaryExpr:
		above, depth := operated(steps, above, depth, 1)
		r.walk(e.LHS, over, steps, above, depth)
		r.walk(e.RHS, over, steps, above, depth)
	case *parser.Call:
		above, depth := called(e, steps, above, depth)
		for _, arg := range e.Args {
			r.walk(arg, over, steps, above, depth)
		}
	default:
		for child := range parser.ChildrenIter(expr) {
			if e, ok := child.(parser.Expr); ok {
				r.walk(e, over, steps, above, depth)
			}
		}
	}
}

// operated adds an operator that makes so many rooms of each series.
func operated(steps int64, above room, depth int, each int64) (room, int) {
	n, above := roomBytes(steps)*each, above.ofSeries()
	if depth >= roomDepth {
		return room{each: max(above.each, n)}, depth
	}
	return room{each: above.each + n}, depth + 1
}

// ofSeries is the room above an operator that computes values.
func (r room) ofSeries() room {
	if r.values {
		return room{each: r.each * countValuesRooms}
	}
	return r
}

// aggregated adds an aggregation. One without labels makes one series of all, however many it and its input hold above.
func aggregated(e *parser.AggregateExpr, steps int64, above room, depth int) (room, int) {
	switch e.Op {
	case parser.COUNT_VALUES:
		of, depth := operated(steps, above, depth, 1)
		of.values, of.grouped = true, len(e.Grouping) > 0 || e.Without
		return of, depth
	case parser.TOPK, parser.BOTTOMK, parser.LIMITK:
		of, depth := operated(steps, above, depth, 1)
		if k, ok := number(e.Param); ok && len(e.Grouping) == 0 && !e.Without && k < 1<<20 {
			of.most = max(1, int64(k)) * min(steps, topChanges) * of.each
		}
		return of, depth
	case parser.LIMIT_RATIO:
		return operated(steps, above, depth, 1)
	}
	if len(e.Grouping) == 0 && !e.Without {
		return room{}, 0
	}
	return operated(steps, above, depth, 1)
}

// called adds a function.
func called(e *parser.Call, steps int64, above room, depth int) (room, int) {
	switch e.Func.Name {
	case "label_replace", "label_join": // in place
		return above, depth
	case "scalar", "absent", "absent_over_time":
		return room{}, 0
	}
	for _, arg := range e.Args {
		if arg.Type() == parser.ValueTypeMatrix { // one series after the other, each in the room that the one before left
			return above.ofSeries(), depth
		}
	}
	return operated(steps, above, depth, 1)
}

// number is a literal's value.
func number(expr parser.Expr) (float64, bool) {
	switch e := expr.(type) {
	case *parser.NumberLiteral:
		return e.Val, e.Val == e.Val
	case *parser.ParenExpr:
		return number(e.Expr)
	case *parser.StepInvariantExpr:
		return number(e.Expr)
	}
	return 0, false
}

// roomOf is the room for each series that a selector loads.
func (u *usage) roomOf(ms []*labels.Matcher) room {
	if len(ms) == 0 {
		return room{}
	}
	return u.rooms[ms[0]]
}

// roomCounter counts the room for the series of one selector.
type roomCounter struct {
	room room
	sum  int64
	seen map[uint64]struct{} // values
}

// more is the room for one more series.
func (c *roomCounter) more(s *peer.Series) int64 {
	if !c.room.values {
		return c.series(1)
	}
	c.begin()
	n := int64(len(s.Hists))
	for _, v := range s.Values {
		n += c.value(v)
	}
	return n * c.room.each
}

// begin begins a series.
func (c *roomCounter) begin() {
	if c.seen == nil {
		c.seen = map[uint64]struct{}{}
	} else if c.room.grouped {
		clear(c.seen)
	}
}

// value is 1 for one that has not been seen.
func (c *roomCounter) value(v float64) int64 {
	before := len(c.seen)
	c.seen[math.Float64bits(v)] = struct{}{}
	return int64(len(c.seen) - before)
}

func (c *roomCounter) series(n int64) int64 {
	n *= c.room.each
	if c.room.most > 0 {
		n = min(n, c.room.most-c.sum)
	}
	c.sum += n
	return n
}

// matrix is the room for the series of a stand-in.
func (c *roomCounter) matrix(m promql.Matrix) int64 {
	if !c.room.values {
		return c.series(int64(len(m)))
	}
	n := int64(0)
	for _, s := range m {
		c.begin()
		n += int64(len(s.Histograms))
		for _, p := range s.Floats {
			n += c.value(p.F)
		}
	}
	return n * c.room.each
}

// roomed books the room for the series of a stand-in before the engine reads it.
func (u *usage) roomed(of room, a *columnar.Answer) storage.SeriesSet {
	c := roomCounter{room: of}
	n := c.matrix(a.Series)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.roomLocked(n); err != nil {
		return storage.ErrSeriesSet(promql.ErrStorage{Err: needed(err)})
	}
	return a.Set()
}

// roomLocked books room beyond that which the engine's samples have: half of a sample's memory is its point in the output.
func (u *usage) roomLocked(n int64) error {
	u.mu.room += n
	more := u.mu.room - u.covered - u.mu.roomBooked
	if more <= 0 {
		return nil
	}
	if err := u.loan.TakeSoon(more); err != nil {
		return err
	}
	u.mu.roomBooked += more
	u.mu.bytes += more
	return nil
}
