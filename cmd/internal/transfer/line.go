package transfer

import (
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/jsonrows"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Line is some rows of one series.
type Line = jsonrows.Line

const nanosPerMilli = 1_000_000

// name is a line's metric name.
func name(l *Line) string {
	for _, p := range l.Labels {
		if p.Name == point.MetricName {
			return p.Value
		}
	}
	return ""
}

// setLabels copies a label set of Prometheus.
func setLabels(l *Line, ls labels.Labels) {
	l.Labels = l.Labels[:0]
	ls.Range(func(p labels.Label) { l.Labels = append(l.Labels, jsonrows.Label{Name: p.Name, Value: p.Value}) })
}

// promLabels makes a label set of Prometheus.
func promLabels(b *labels.ScratchBuilder, l *Line) labels.Labels {
	b.Reset()
	for _, p := range l.Labels {
		b.Add(p.Name, p.Value)
	}
	b.Sort()
	return b.Labels()
}

// clone copies a line that belongs to a parser.
func clone(l *Line) Line {
	return Line{
		Labels: append([]jsonrows.Label(nil), l.Labels...), Times: append([]point.Nanos(nil), l.Times...),
		Values: append([]float64(nil), l.Values...), Hists: append([]jsonrows.Histogram(nil), l.Hists...),
	}
}

var textEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// appendSeries appends a series as Prometheus' text formats write it.
func appendSeries(dst []byte, l *Line) []byte {
	metric := name(l)
	plain := metric != "" && model.LegacyValidation.IsValidMetricName(metric)
	if plain {
		dst = append(dst, metric...)
	}
	sep := byte('{')
	if !plain && metric != "" {
		dst = append(dst, sep, '"')
		dst = append(dst, textEscapes.Replace(metric)...)
		dst = append(dst, '"')
		sep = ','
	}
	for _, p := range l.Labels {
		if p.Name == point.MetricName {
			continue
		}
		dst = append(dst, sep)
		sep = ','
		if model.LegacyValidation.IsValidLabelName(p.Name) {
			dst = append(dst, p.Name...)
		} else {
			dst = append(dst, '"')
			dst = append(dst, textEscapes.Replace(p.Name)...)
			dst = append(dst, '"')
		}
		dst = append(dst, '=', '"')
		dst = append(dst, textEscapes.Replace(p.Value)...)
		dst = append(dst, '"')
	}
	if sep == ',' {
		dst = append(dst, '}')
	} else if !plain {
		dst = append(dst, '{', '}')
	}
	return dst
}

// SeriesText is a line's series as Prometheus' text formats write it.
func SeriesText(l *Line) string { return string(appendSeries(nil, l)) }

// ValueText is a value for people; a stale marker is named.
func ValueText(v float64) string {
	if point.IsStale(v) {
		return "stale"
	}
	return string(appendFloat(nil, v))
}
