package columnar

import (
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/spillwaydb/spillway/protocols/columns"
)

// Answer is the result of a plan.
//
// The samples are counted so that the engine's limit refuses the same queries here as there, not to measure this
// evaluation.
type Answer struct {
	Series promql.Matrix
	Notes  annotations.Annotations
	// Visited counts samples as the engine does: each as often as a window held it. Read counts each once. Peak is the
	// most that the engine would have held at a time.
	Visited, Read, Peak int

	columns []columns.Column // of a chain of a tree, instead of Series
}

// Vector is the answer of an evaluation at one time.
// Each series has exactly one point: an evaluation at one time has one step, and series without a value at it are not
// in the answer.
func (a *Answer) Vector() promql.Vector {
	v := make(promql.Vector, len(a.Series))
	for i, s := range a.Series {
		v[i] = promql.Sample{Metric: s.Metric, T: s.Floats[0].T, F: s.Floats[0].F}
	}
	return v
}

// Set returns an answer that was made with markers as the result of a selector.
// The engine reads it with a lookback as the rows of a selector. Without markers it would see the value of a step again
// at the next one where there is none.
func (a *Answer) Set() storage.SeriesSet {
	all := make([]storage.Series, len(a.Series))
	for i, s := range a.Series {
		all[i] = promql.NewStorageSeries(s)
	}
	return &answerSet{all: all, at: -1}
}

type answerSet struct {
	all []storage.Series
	at  int
}

func (s *answerSet) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *answerSet) At() storage.Series                { return s.all[s.at] }
func (s *answerSet) Err() error                        { return nil }
func (s *answerSet) Warnings() annotations.Annotations { return nil }

// writer turns columns into the engine's series. For one goroutine.
// Each worker has its own; Flush alone touches the shared out, and package columns calls it from one goroutine at a
// time, in the order of columns.
//
//	column   1   -   -   2        (- is columns.Absent, a NaN of its own)
//	points   1           2        without markers
//	points   1   m       2        with: a marker at the first step of a gap, none before the first value
type writer struct {
	grid Grid
	// markers: a stale marker at the first step without a value after one with, or else lookback would fill the gap.
	markers bool
	out     *promql.Matrix
	series  promql.Matrix // not yet in out
	builder labels.ScratchBuilder
	slab    []promql.FPoint
	points  int // of the last slab
}

var _ columns.Writer = (*writer)(nil)

// slabPoints is how many points share an allocation. The first is as large as the first series, and each next one four times as
// large: most answers have few series, and to make and clear a slab of 64 KiB costs as much as to evaluate one.
// 4,096 points of 16 bytes are the 64 KiB.
const slabPoints = 4096

// Bytes implements columns.Writer.
// 16 bytes are a promql.FPoint, time and value; the labels count once more, as the engine's form of them is a copy.
func (w *writer) Bytes(c *columns.Column, points int) int64 {
	return int64(w.room(c, points))*16 + 2*columns.ColumnBytes + int64(len(c.Labels))
}

// room is how many of the engine's points a column with so many values may need: with markers, each may be followed by one.
func (w *writer) room(c *columns.Column, points int) int {
	if w.markers {
		return min(2*points, len(c.Values))
	}
	return points
}

// Append implements columns.Writer.
func (w *writer) Append(c *columns.Column, points int) {
	points = w.room(c, points)
	if points > len(w.slab) {
		w.points = max(points, min(4*w.points, slabPoints))
		w.slab = make([]promql.FPoint, w.points)
	}
	// The capacity ends at the series' own points, so that an append by the engine copies, and does not write over the
	// next series.
	out := w.slab[:0:points]
	w.slab = w.slab[points:]
	gap := true // no marker before the first value
	for i, v := range c.Values {
		absent := columns.IsAbsent(v)
		if !absent || w.markers && !gap {
			out = append(out, promql.FPoint{T: w.grid.Start + int64(i)*w.grid.Step, F: v})
		}
		gap = absent
	}
	w.series = append(w.series, promql.Series{Metric: w.labels(c), Floats: out})
}

// Flush implements columns.Writer.
func (w *writer) Flush() {
	*w.out = append(*w.out, w.series...)
	w.series = nil
}

func (w *writer) labels(c *columns.Column) labels.Labels {
	w.builder.Reset()
	for l := c.Labels; ; {
		name, value, rest, ok := l.Next()
		if !ok {
			return w.builder.Labels()
		}
		// Names that a function drops are left in the column's labels and marked: dropping them for each series would
		// allocate, and most answers are aggregated afterwards.
		if !c.Dropped || !columns.Reserved(name) {
			w.builder.Add(name, value)
		}
		l = rest
	}
}
