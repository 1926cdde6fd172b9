package remotewrite

import (
	"bytes"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Types of metric families in the numbering that both versions share.
const (
	typeUnknown int32 = iota
	typeCounter
	typeGauge
	typeHistogram
	typeGaugeHistogram
	typeSummary
	typeInfo
	typeStateset
)

// metricType gives the name of a type; undefined numbers are "unknown".
func metricType(t int32) string {
	switch t {
	case typeCounter:
		return "counter"
	case typeGauge:
		return "gauge"
	case typeHistogram:
		return "histogram"
	case typeGaugeHistogram:
		return "gaugehistogram"
	case typeSummary:
		return "summary"
	case typeInfo:
		return "info"
	case typeStateset:
		return "stateset"
	}
	return "unknown"
}

// familyOf cuts from a series' metric name the suffix that the exposition formats add to a family's name. 2.0 hangs
// metadata on series, readers ask by family. Counters keep _total: in the text format it is part of the
// family's name.
func familyOf(metric []byte, t int32) []byte {
	for _, suffix := range familySuffixes(t) {
		if family, ok := bytes.CutSuffix(metric, []byte(suffix)); ok && len(family) > 0 {
			return family
		}
	}
	return metric
}

func familySuffixes(t int32) []string {
	switch t {
	case typeHistogram:
		return []string{"_bucket", "_count", "_sum"}
	case typeGaugeHistogram:
		return []string{"_bucket", "_gcount", "_gsum"}
	case typeSummary:
		return []string{"_count", "_sum"}
	}
	return nil
}

// Bounds of a decoder's cache of metadata, which makes families that come with every request cost no memory again: this many
// rows, each of up to this many bytes.
const (
	familiesMax    = 4096
	familyBytesMax = 1 << 10
)

// families remembers rows of metadata from request to request, and which rows the present request has brought.
type families struct {
	request uint64
	rows    map[point.Hash]*familyRow
}

type familyRow struct {
	row     point.MetadataRow
	request uint64 // the last one it was given out for
}

// begin starts a request.
func (f *families) begin() {
	f.request++
	if len(f.rows) > familiesMax {
		clear(f.rows)
	}
}

// first reports whether the row with this hash is new to the request, and gives it if an earlier request had it.
func (f *families) first(h point.Hash) (*point.MetadataRow, bool) {
	r := f.rows[h]
	if r == nil {
		return nil, true
	}
	first := r.request != f.request
	r.request = f.request
	return &r.row, first
}

func (f *families) add(h point.Hash, row point.MetadataRow) {
	if row.Bytes() > familyBytesMax {
		return
	}
	if f.rows == nil {
		f.rows = make(map[point.Hash]*familyRow)
	}
	f.rows[h] = &familyRow{row: row, request: f.request}
}
