package query

import (
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// months is a set of series that are made when they are read, as those of a cluster.
type months struct {
	series, rows int
	at           int
}

func (l *months) Next() bool { l.at++; return l.at <= l.series }

func (l *months) At() *peer.Series {
	return &peer.Series{Labels: point.MakeLabels(point.MetricName, "m", "i", fmt.Sprintf("%03d", l.at)), Times: make([]point.Nanos, l.rows), Values: make([]float64, l.rows)}
}

func (l *months) Err() error   { return nil }
func (l *months) Close() error { return nil }

// TestLongSeriesAreReadAFewAtATime: a worker that evaluates rows of a cluster read 256 series at once, of a month each, and no account had them: 700 MB, for which other queries
// were ended, or the process.
func TestLongSeriesAreReadAFewAtATime(t *testing.T) {
	const series, long = 300, 50_000
	loan, err := budget.New("queries", 64<<20).Borrow(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	u := &usage{seriesMax: series, rowsMax: series * long, loan: loan}
	in := (&rows{in: &months{series: series, rows: long}, usage: u}).Pager(256)
	before, read := loan.Used(), 0
	for {
		page, ok, err := in.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		read += len(page.Series)
		if n := len(page.Series); n > 2 || loan.Used()-before != int64(n*long*rowBytes) {
			t.Fatalf("a page of %d series, %d bytes are booked", n, loan.Used()-before)
		}
	}
	in.Close()
	if read != series || loan.Used() != before {
		t.Errorf("%d series, %d bytes stay booked", read, loan.Used()-before)
	}

	// One series that does not fit is refused.
	in = (&rows{in: &months{series: 1, rows: 8 << 20}, usage: &usage{seriesMax: 1, rowsMax: 8 << 20, loan: loan}}).Pager(256)
	_, ok, err := in.Next()
	var stored promql.ErrStorage
	if ok || !errors.As(err, &stored) || !fault.Is(stored.Err, fault.TooLarge) {
		t.Errorf("%t, %v", ok, err)
	}
	in.Close()
	if loan.Used() != before {
		t.Errorf("%d bytes stay booked", loan.Used()-before)
	}
}

// TestSmallSeriesAreOnePage as before.
func TestSmallSeriesAreOnePage(t *testing.T) {
	in := (&rows{in: &months{series: 200, rows: 10}, usage: &usage{seriesMax: 200, rowsMax: 2000}}).Pager(256)
	defer in.Close()
	if page, ok, err := in.Next(); err != nil || !ok || len(page.Series) != 200 || !page.Last {
		t.Errorf("%d series, the last page: %t, %v", len(page.Series), page.Last, err)
	}
}
