package api

import (
	"strconv"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/stats"

	"github.com/spillwaydb/spillway/gateway/query"
)

// result writes {"resultType":…,"result":…}, and "stats" and "explain" when they are asked for.
func (e *encoder) result(v parser.Value, s stats.QueryStats, explained *query.Explained) {
	e.raw(`{"resultType":`)
	e.str(string(v.Type()))
	e.raw(`,"result":`)
	switch v := v.(type) {
	case promql.Matrix:
		e.matrix(v)
	case promql.Vector:
		e.vector(v)
	case promql.Scalar:
		e.scalar(v)
	case promql.String:
		e.buf = append(e.buf, '[')
		e.seconds(v.T)
		e.buf = append(e.buf, ',')
		e.str(v.V)
		e.buf = append(e.buf, ']')
	}
	if s != nil {
		e.raw(`,"stats":`)
		e.value(s)
	}
	if explained != nil {
		e.raw(`,"explain":`)
		e.value(explained.Show())
	}
	e.buf = append(e.buf, '}')
}

// seconds writes the time of a scalar or a string, which Prometheus spells as the shortest float: 4.5 where a point has
// 4.500.
func (e *encoder) seconds(t int64) {
	e.buf = strconv.AppendFloat(e.buf, float64(t)/1000, 'f', -1, 64)
}

// scalar writes its value without an exponent, however large: Prometheus does so for scalars alone.
func (e *encoder) scalar(s promql.Scalar) {
	e.buf = append(e.buf, '[')
	e.seconds(s.T)
	e.buf = append(e.buf, ',', '"')
	e.buf = strconv.AppendFloat(e.buf, s.V, 'f', -1, 64)
	e.buf = append(e.buf, '"', ']')
}

func (e *encoder) vector(v promql.Vector) {
	e.buf = append(e.buf, '[')
	for i := range v {
		s := &v[i]
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.raw(`{"metric":`)
		e.labels(s.Metric)
		if s.H == nil {
			e.raw(`,"value":`)
			e.point(s.T, s.F)
		} else {
			e.raw(`,"histogram":`)
			e.histPoint(s.T, s.H)
		}
		e.buf = append(e.buf, '}')
		if !e.spill() {
			return
		}
	}
	e.buf = append(e.buf, ']')
}

func (e *encoder) matrix(m promql.Matrix) {
	e.buf = append(e.buf, '[')
	for i := range m {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.series(&m[i])
		if !e.spill() {
			return
		}
	}
	e.buf = append(e.buf, ']')
}

func (e *encoder) series(s *promql.Series) {
	e.raw(`{"metric":`)
	e.labels(s.Metric)
	for i, p := range s.Floats {
		e.separate(i, `,"values":[`)
		e.point(p.T, p.F)
		if !e.spill() {
			return
		}
	}
	if len(s.Floats) > 0 {
		e.buf = append(e.buf, ']')
	}
	for i, p := range s.Histograms {
		e.separate(i, `,"histograms":[`)
		e.histPoint(p.T, p.H)
		if !e.spill() {
			return
		}
	}
	if len(s.Histograms) > 0 {
		e.buf = append(e.buf, ']')
	}
	e.buf = append(e.buf, '}')
}

// separate writes the text before the ith element: the array's head or a comma.
func (e *encoder) separate(i int, head string) {
	if i == 0 {
		e.raw(head)
		return
	}
	e.buf = append(e.buf, ',')
}

func (e *encoder) exemplars(list []exemplar.QueryResult) {
	e.buf = append(e.buf, '[')
	for i, s := range list {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.raw(`{"seriesLabels":`)
		e.labels(s.SeriesLabels)
		e.raw(`,"exemplars":[`)
		for j, x := range s.Exemplars {
			if j > 0 {
				e.buf = append(e.buf, ',')
			}
			e.raw(`{"labels":`)
			e.labels(x.Labels)
			e.raw(`,"value":`)
			e.float(x.Value)
			e.raw(`,"timestamp":`)
			e.millis(x.Ts)
			e.buf = append(e.buf, '}')
		}
		e.raw(`]}`)
		if !e.spill() {
			return
		}
	}
	e.buf = append(e.buf, ']')
}
