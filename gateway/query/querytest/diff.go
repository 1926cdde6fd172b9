package querytest

import (
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// Diff describes the difference between two results, "" if there is none: errors and warnings by their text, series, times, and values
// by more than tolerance of the largest of their series. An evaluation at one time has an order, which must be the same.
func Diff(a, b *promql.Result, tolerance float64) string {
	if ea, eb := fmt.Sprint(a.Err), fmt.Sprint(b.Err); ea != eb {
		return fmt.Sprintf("error %s, and %s", ea, eb)
	}
	if a.Err != nil {
		return ""
	}
	if wa, wb := notes(a), notes(b); !slices.Equal(wa, wb) {
		return fmt.Sprintf("warnings %q, and %q", wa, wb)
	}
	if ta, tb := fmt.Sprintf("%T", a.Value), fmt.Sprintf("%T", b.Value); ta != tb {
		return fmt.Sprintf("a %s, and a %s", ta, tb)
	}
	ma, mb := matrix(a.Value), matrix(b.Value)
	if len(ma) != len(mb) {
		return fmt.Sprintf("%d series, and %d:\n%v\n%v", len(ma), len(mb), a.Value, b.Value)
	}
	for i := range ma {
		if d := diffSeries(&ma[i], &mb[i], tolerance); d != "" {
			return d
		}
	}
	return ""
}

func notes(r *promql.Result) []string {
	var all []string
	for _, err := range r.Warnings {
		all = append(all, err.Error())
	}
	slices.Sort(all)
	return all
}

// matrix returns any value as series.
func matrix(v parser.Value) promql.Matrix {
	switch v := v.(type) {
	case promql.Matrix:
		return v
	case promql.Scalar:
		return promql.Matrix{{Floats: []promql.FPoint{{T: v.T, F: v.V}}}}
	case promql.Vector:
		var m promql.Matrix
		for _, s := range v {
			one := promql.Series{Metric: s.Metric, Floats: []promql.FPoint{{T: s.T, F: s.F}}}
			if s.H != nil {
				one = promql.Series{Metric: s.Metric, Histograms: []promql.HPoint{{T: s.T, H: s.H}}}
			}
			m = append(m, one)
		}
		return m
	}
	return nil
}

func diffSeries(a, b *promql.Series, tolerance float64) string {
	if !labels.Equal(a.Metric, b.Metric) {
		return fmt.Sprintf("series %v, and %v", a.Metric, b.Metric)
	}
	scale := 0.0
	for _, p := range a.Floats {
		if !math.IsInf(p.F, 0) {
			scale = max(scale, math.Abs(p.F))
		}
	}
	same := len(a.Floats) == len(b.Floats) && len(a.Histograms) == len(b.Histograms)
	for i := 0; same && i < len(a.Floats); i++ {
		p, q := a.Floats[i], b.Floats[i]
		same = p.T == q.T && (p.F == q.F || p.F != p.F && q.F != q.F || math.Abs(p.F-q.F) <= tolerance*scale)
	}
	for i := 0; same && i < len(a.Histograms); i++ {
		p, q := a.Histograms[i], b.Histograms[i]
		same = p.T == q.T && p.H.Equals(q.H)
	}
	if !same {
		return fmt.Sprintf("%v\n%v", a, b)
	}
	return ""
}
