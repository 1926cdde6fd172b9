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
	columns [][]point.Nanos
	run     Run // without times
}

// Reset empties it. columns is memory for as many columns as fit.
func (g *Gathered) Reset(columns [][]point.Nanos) { *g = Gathered{columns: columns[:0]} }

// Empty reports whether there are no rows yet.
func (g *Gathered) Empty() bool { return len(g.columns) == 0 }

// Len is the number of rows.
func (g *Gathered) Len() int { return len(g.run.Values) }

// Follows reports whether rows from a time on can follow those that are there.
func (g *Gathered) Follows(first point.Nanos) bool {
	if len(g.columns) == 0 {
		return true
	}
	last := g.columns[len(g.columns)-1]
	return last[len(last)-1] < first
}

// Reserve makes memory the place of the values to come, like Run.Reserve; there are no rows yet.
func (g *Gathered) Reserve(memory []float64) { g.run.Reserve(memory) }

// Add appends rows at these times, at least one, which follow, and returns the place of their values, which the caller sets. later is how many more may come.
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
	g.columns = append(g.columns, times)
}

// Gather returns the rows as one run. Its times may be shared with other runs and are only read, as those of Merge.
func (m *Merger) Gather(g *Gathered) Run {
	out := g.run
	switch len(g.columns) {
	case 0:
		return Run{}
	case 1:
		out.Times = g.columns[0]
		return out
	}
	for i := len(m.joins) - 1; i >= 0; i-- {
		if slices.EqualFunc(g.columns, m.joins[i].parts, sameTimes) {
			out.Times = m.joins[i].times
			return out
		}
	}
	out.Times = slices.Concat(g.columns...)
	out.Times = m.keep(slices.Clone(g.columns), out.Times)
	return out
}
