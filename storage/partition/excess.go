package partition

import (
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
)

// excess leaves out, while a segment is written, the rows that no segment can hold: rows in a log from before such rows were
// refused at decoding, and all but the newest exemplars of a series. Otherwise one series would keep the rows of all others in the
// log for ever. Rows left out are counted, and named in the process's log.
type excess struct {
	p      *Partition
	labels func(point.DenseID) point.Labels

	histograms, exemplarRows int
	logged                   int
}

// excessLoggedMax bounds the series that the log names for one flush or compaction.
const excessLoggedMax = 20

func (p *Partition) newExcess(labels func(point.DenseID) point.Labels) *excess {
	return &excess{p: p, labels: labels}
}

// run removes the histograms that are too long from r.
func (x *excess) run(id point.DenseID, r *rows.Run) {
	for i := range r.Hists {
		if len(r.Hists[i].H) > segment.HistogramBytesMax {
			x.histogramsFrom(id, r, i)
			return
		}
	}
}

func (x *excess) histogramsFrom(id point.DenseID, r *rows.Run, from int) {
	kept := r.Hists[:from:from]
	var ranks []point.Stamp
	if r.HistRanks != nil {
		ranks = r.HistRanks[:from:from]
	}
	for i, h := range r.Hists[from:] {
		if n := len(h.H); n > segment.HistogramBytesMax {
			x.histograms++
			x.tell(id, "a histogram is too long for a segment and is lost", "time", at(h.Time), "bytes", n, "bytes_max", segment.HistogramBytesMax)
			continue
		}
		kept = append(kept, h)
		if r.HistRanks != nil {
			ranks = append(ranks, r.HistRanks[from+i])
		}
	}
	r.Hists, r.HistRanks = kept, ranks
}

// exemplars returns the newest of a series' exemplars, as many as a segment holds.
func (x *excess) exemplars(id point.DenseID, ex []point.ExemplarRow) []point.ExemplarRow {
	kept, left := segment.NewestExemplars(ex)
	if left > 0 {
		x.exemplarRows += left
		x.tell(id, "a series has more exemplars than a segment holds: the oldest are left out", "left_out", left, "kept", len(kept), "newest_left_out", at(ex[left-1].Time))
	}
	return kept
}

func (x *excess) tell(id point.DenseID, what string, args ...any) {
	if x.logged++; x.logged <= excessLoggedMax {
		x.p.log.Warn(what, append([]any{"series", fmt.Sprintf("%.300s", x.labels(id).String())}, args...)...)
	}
}

func at(t point.Nanos) string { return time.Unix(0, t).UTC().Format(time.RFC3339Nano) }

// report counts the rows left out, once the segment is written.
func (x *excess) report() {
	m := x.p.deps.Metrics
	m.cutRows.WithLabelValues("histogram_bytes").Add(float64(x.histograms))
	m.cutRows.WithLabelValues("exemplars").Add(float64(x.exemplarRows))
}
