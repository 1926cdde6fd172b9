package columns

import (
	"math"
	"time"
)

// Grid is the steps of an evaluation, in milliseconds: Start, Start+Step, … up to End. Step is positive.
type Grid struct{ Start, End, Step int64 }

// Len is the number of steps.
func (g Grid) Len() int { return int((g.End-g.Start)/g.Step) + 1 }

// Cut is n steps of the grid, from step first on.
func (g Grid) Cut(first, n int) Grid {
	start := g.Start + int64(first)*g.Step
	return Grid{Start: start, End: start + int64(n-1)*g.Step, Step: g.Step}
}

// StepsMax bounds the steps of a grid.
const StepsMax = 1 << 24

// An example, sum by (dc) (rate(http_total[5m])) * 8 > 100:
//
//	Source   rate, window 5m
//	Stages   sum by (dc) │ operator * 8 │ operator > 100
//	         first()       upper stages: they run once, over the groups

// Plan is a chain: a function over the windows of each series of a selector, then operators and aggregations. It is
// constant and may be run more than once.
type Plan struct {
	Grid   Grid
	Source Source
	Stages []Stage
}

// Source is the function over each window of a series.
type Source struct {
	Window   time.Duration // range, or lookback
	Offset   time.Duration
	Function *Function
	Argument float64 // of functions with a numeric argument
	Held     int     // samples that the engine makes of that number
	Instant  bool    // no range: a marker ends the series
	OneName  bool    // all series have the same metric name
}

// Stage is one step of a chain: an operator or an aggregation.
type Stage struct {
	Operator    *Operator
	Aggregation *Aggregation
	// Held is how many samples the engine has in memory for the stage's number while it evaluates the inner expression.
	Held int
}

// timeMax keeps milliseconds far from where nanoseconds overflow.
const timeMax = math.MaxInt64 / 1_000_000 / 2

// Representable reports whether all windows lie in the range of times, and whether there are few enough windows.
// Times of rows are nanoseconds in 64 bits, so that 292 years fit; half of that is allowed, with room for windows and offsets.
func (p *Plan) Representable() bool {
	reach := p.Source.Window.Milliseconds() + max(p.Source.Offset, -p.Source.Offset).Milliseconds()
	return p.Grid.Start > -timeMax+reach && p.Grid.End < timeMax-reach && (p.Grid.End-p.Grid.Start)/p.Grid.Step < StepsMax-1
}

// LooksAtNewest reports whether of each series only the newest row within reach is looked at: a selector at one time.
func (p *Plan) LooksAtNewest() bool { return p.Source.Instant && p.Grid.Len() == 1 }

// Reach is the range of times that the windows of all steps touch, both ends included, in milliseconds.
func (p *Plan) Reach() (lo, hi int64) {
	offset := p.Source.Offset.Milliseconds()
	// The window of a step t is (t-window, t], hence the millisecond added.
	return p.Grid.Start - offset - p.Source.Window.Milliseconds() + 1, p.Grid.End - offset
}
