package columnar

import (
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/spillwaydb/spillway/protocols/point"
)

// result is a column with its labels. dropped: its reserved labels no longer count.
type result struct {
	labels  point.Labels
	dropped bool
	values  []float64 // by step
}

// reserved are the labels that identify a metric: values computed from it lose them.
func reserved(name string) bool {
	return len(name) == len(point.MetricName) && (name == point.MetricName || name == labelType || name == labelUnit)
}

const (
	labelType = "__type__"
	labelUnit = "__unit__"
)

// Answer is the result of a plan.
type Answer struct {
	Series promql.Matrix
	Notes  annotations.Annotations
	// Visited counts samples as the engine does: each as often as a window held it. Read counts each once. Peak is the
	// most that the engine would have held at a time.
	Visited, Read, Peak int

	columns []result // instead of Series
}

// Vector is the answer of an evaluation at one time.
func (a *Answer) Vector() promql.Vector {
	v := make(promql.Vector, len(a.Series))
	for i, s := range a.Series {
		v[i] = promql.Sample{Metric: s.Metric, T: s.Floats[0].T, F: s.Floats[0].F}
	}
	return v
}

// Set returns an answer that was made with markers as the result of a selector.
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
type writer struct {
	grid Grid
	// markers: a stale marker at each step without a value, or else lookback would fill the gap.
	markers bool
	builder labels.ScratchBuilder
	slab    []promql.FPoint
	points  int // of the last slab
}

// hashBytes is the memory that a column's labels take in a set.
const hashBytes = 48

// seriesBytes is the memory of a column as the engine's series.
func seriesBytes(points int, c *result) int64 {
	return int64(points)*16 + 2*columnBytes + int64(len(c.labels))
}

// slabPoints is how many points share an allocation. The first is as large as the first series, and each next one four times as
// large: most answers have few series, and to make and clear a slab of 64 KiB takes as long as to evaluate one.
const slabPoints = 4096

// append adds a column that has points values; one that has none is left out.
func (w *writer) append(m promql.Matrix, c *result, points int) promql.Matrix {
	if points == 0 {
		return m
	}
	if w.markers {
		points = len(c.values)
	}
	if points > len(w.slab) {
		w.points = max(points, min(4*w.points, slabPoints))
		w.slab = make([]promql.FPoint, w.points)
	}
	out := w.slab[:0:points]
	w.slab = w.slab[points:]
	for i, v := range c.values {
		if w.markers || !isAbsent(v) {
			out = append(out, promql.FPoint{T: w.grid.Start + int64(i)*w.grid.Step, F: v})
		}
	}
	return append(m, promql.Series{Metric: w.labels(c), Floats: out})
}

func (w *writer) labels(c *result) labels.Labels {
	w.builder.Reset()
	for l := c.labels; ; {
		name, value, rest, ok := l.Next()
		if !ok {
			return w.builder.Labels()
		}
		if !c.dropped || !reserved(name) {
			w.builder.Add(name, value)
		}
		l = rest
	}
}

// present counts the values of a column.
func present(values []float64) int {
	n := 0
	for _, v := range values {
		if v == v || !isAbsent(v) {
			n++
		}
	}
	return n
}
