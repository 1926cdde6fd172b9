package rows

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Gathered is a series' rows from places that follow each other in time, such as narrow partitions. Values are written once, one behind the other; columns of
// times are only listed, as they are shared by many series, and Merger.Gather joins a list of them once for all that have it:
//
//	partition      1           2           3
//	columns     [10 20 30]  [40 50 60]  [70 80]     three slices, of the cache mostly
//	values       1  2  3     4  5  6     7  8       one slice
//
// Rows that do not follow are refused, with everything behind: then runs are merged by their stamps (Merge). As long as none is refused there are no two rows of
// one time, so that stamps decide nothing. For one goroutine.
type Gathered struct {
	before *Gathered // a series with the same columns perhaps; nil: there is none
	// While all columns are those of template at the same places they are not listed again: with 300 places lists were three times as long as all values.
	template *Gathered       // its columns are its own; nil: these are
	columns  [][]point.Nanos // only without template
	n        int             // columns
	last     point.Nanos     // of all times, if there are any
	run      Run             // without times
	joined   []point.Nanos   // all times, once they were joined

	columnsMax, roomMax int // how much memory is allocated at first
}

// Reset empties it. before is a series whose rows are gathered from the same places, mostly at the same times; nil: none. columns is from how many places rows may come. most
// bounds the room for later values; there is as much for them as there are values, at least.
func (g *Gathered) Reset(before *Gathered, columns, most int) {
	*g = Gathered{before: before, columnsMax: columns, roomMax: most}
}

// Room is how much room there is to be for later values, of which so many may come.
func (g *Gathered) Room(later int) int { return min(later, max(g.roomMax, len(g.run.Values))) }

// Empty reports whether there are no rows yet.
func (g *Gathered) Empty() bool { return g.n == 0 }

// Follows reports whether rows from a time on can follow those that are there.
func (g *Gathered) Follows(first point.Nanos) bool {
	return g.n == 0 || g.last < first
}

// Reserve makes memory the place of the values to come, like Run.Reserve; there are no rows yet.
func (g *Gathered) Reserve(memory []float64) { g.run.Reserve(memory) }

// Add appends rows at these times, at least one, which follow, and returns the place of their values, which the caller sets. later is how many more there is to be room for.
func (g *Gathered) Add(times []point.Nanos, lo, hi point.Stamp, later int) []float64 {
	g.cover(times, lo, hi)
	return g.run.Extend(len(times), later)
}

// AddRun appends a run; false: it does not follow, or has histograms. A first run keeps its values, which have room behind them perhaps. later is as in Add.
func (g *Gathered) AddRun(r *Run, later int) bool {
	switch {
	case len(r.Hists) > 0 || len(r.Times) > 0 && !g.Follows(r.Times[0]):
		return false
	case len(r.Times) == 0:
		return true
	case g.Empty():
		g.cover(r.Times, r.StampLo, r.StampHi)
		g.run.Values, g.run.spare = r.Values, r.spare
		return true
	}
	copy(g.Add(r.Times, r.StampLo, r.StampHi, later), r.Values)
	return true
}

func (g *Gathered) cover(times []point.Nanos, lo, hi point.Stamp) {
	if g.Empty() {
		g.run.StampLo, g.run.StampHi = lo, hi
	}
	g.run.StampLo, g.run.StampHi = min(g.run.StampLo, lo), max(g.run.StampHi, hi)
	g.last = times[len(times)-1]
	if g.n == 0 && g.before != nil {
		g.template = g.before
		if g.template.template != nil {
			g.template = g.template.template
		}
	}
	if template := g.template; template != nil && (g.n == len(template.columns) || !shared(template.columns[g.n], times)) {
		g.columns, g.template = append(make([][]point.Nanos, 0, g.columnsMax), template.columns[:g.n]...), nil
	}
	if g.template == nil {
		if g.columns == nil {
			g.columns = make([][]point.Nanos, 0, g.columnsMax)
		}
		g.columns = append(g.columns, times)
	}
	g.n++
}

// shared reports whether two columns, which are not empty, are one.
func shared(a, b []point.Nanos) bool { return len(a) == len(b) && &a[0] == &b[0] }

// Gather returns the rows as one run. Its times may be shared with other runs and are only read, as those of Merge.
func (m *Merger) Gather(g *Gathered) Run {
	if g.n == 0 {
		return Run{}
	}
	columns := g.columns
	if g.template != nil {
		columns = g.template.columns[:g.n]
		if g.n == g.template.n {
			g.joined = g.template.joined // if it has that already
		}
	}
	if g.joined == nil {
		g.joined = m.joinColumns(columns)
	}
	out := g.run
	out.Times = g.joined
	return out
}

// joinColumns returns the columns as one, which is that of equal ones that were joined lately.
func (m *Merger) joinColumns(columns [][]point.Nanos) []point.Nanos {
	if len(columns) == 1 {
		return columns[0]
	}
	for i := len(m.joins) - 1; i >= 0; i-- {
		if slices.EqualFunc(columns, m.joins[i].parts, sameTimes) {
			return m.joins[i].times
		}
	}
	return m.keep(slices.Clone(columns), slices.Concat(columns...))
}
