package query

import (
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// SeriesOver makes a storage.Series over rows, as Select does.
func SeriesOver(rows *peer.Series) storage.Series {
	var b labels.ScratchBuilder
	return &series{labels: promLabels(&b, rows.Labels), rows: rows}
}
