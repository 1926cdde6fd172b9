package point_test

import (
	"cmp"
	"math"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestBatchFindsTheItemOfARow(t *testing.T) {
	var b point.Batch
	if b.Item(0) != 0 {
		t.Error("a batch without items knows one")
	}
	for _, rows := range []int{2, 0, 0, 3, 1, 0} { // of items 1…6
		b.BeginItem()
		for range rows {
			b.Append(1, 2, 3)
		}
	}
	for row, want := range []int{1, 1, 4, 4, 4, 5} {
		if got := b.Item(row); got != want {
			t.Errorf("row %d is of item %d, want %d", row, got, want)
		}
	}
}

// TestTruncateDropsHalfALine: the third line proves bad after two of its rows.
func TestTruncateDropsHalfALine(t *testing.T) {
	var b point.Batch
	b.BeginItem()
	b.Append(1, 10, 1)
	b.BeginItem()
	b.Append(2, 10, 2)
	b.BeginItem()
	start := len(b.IDs)
	b.Append(3, 10, 3)
	b.Append(4, 10, 4)
	b.Truncate(start)
	b.Refuse(2, point.Refusal{Item: 3})
	b.BeginItem()
	b.Append(5, 10, 5)
	if b.Rows() != 3 || len(b.Times) != 3 || len(b.Values) != 3 || b.IDs[2] != 5 || b.Item(2) != 4 || b.Item(1) != 2 {
		t.Errorf("rows %v of items %d, %d, %d", b.IDs, b.Item(0), b.Item(1), b.Item(2))
	}
}

func TestRefusalsAreCountedBeyondTheirBound(t *testing.T) {
	var b point.Batch
	for i := range 3 * point.RefusalsMax {
		b.Refuse(2, point.Refusal{Item: i + 1, Kind: fault.Invalid})
	}
	if len(b.Refused) != point.RefusalsMax || b.RefusedRows != 6*point.RefusalsMax || b.Refused[0].Item != 1 {
		t.Errorf("%d reasons of %d rows, first %+v", len(b.Refused), b.RefusedRows, b.Refused[0])
	}
}

func fill(b *point.Batch) {
	b.BeginItem()
	b.Append(1, 2, 3)
	b.Hists = append(b.Hists, point.HistRow{H: []byte{1}})
	b.Exemplars = append(b.Exemplars, point.ExemplarRow{Labels: "x"})
	b.Metadata = append(b.Metadata, point.MetadataRow{Metric: "m"})
	b.Refuse(1, point.Refusal{Text: "t"})
	b.StringFields++
}

func TestPooledBatchIsEmptyAndKeepsNothingAlive(t *testing.T) {
	d := point.NewDict(0)
	b := point.GetBatch(d)
	fill(b)
	hists, refused := b.Hists, b.Refused
	b.Put()
	if hists[0].H != nil || refused[0].Text != "" {
		t.Error("the pool keeps what a request brought")
	}
	for range 10 {
		b := point.GetBatch(d)
		if b.Dict != d || b.Rows() != 0 || len(b.Exemplars)+len(b.Metadata)+len(b.ItemRows)+len(b.Refused)+b.RefusedRows+b.StringFields != 0 {
			t.Fatalf("not empty: %+v", b)
		}
		fill(b)
		b.Put()
	}
}

func TestPooledBatchAllocatesNothing(t *testing.T) {
	b := new(point.Batch)
	round := func() {
		for i := range 1000 {
			b.BeginItem()
			b.Append(point.SeriesID(i), 1, 1)
		}
		b.Reset()
	}
	round()
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestExemplarsAreInTheOrderOfTimeThenValue(t *testing.T) {
	rising := []point.ExemplarRow{
		{Time: 1, Value: math.NaN()}, {Time: 1, Value: math.Inf(-1)}, {Time: 1, Value: -2}, {Time: 1, Value: -1}, {Time: 1},
		{Time: 1, Value: math.Copysign(0, -1)}, {Time: 1, Value: 1, Labels: "\x01a\x01b"}, {Time: 1, Value: 1, Labels: "\x01a\x01c"}, {Time: 2, Value: -9},
	}
	for i, a := range rising {
		for j, b := range rising {
			b.ID = 7 // numbers of series do not count
			if got := a.Compare(b); got != cmp.Compare(i, j) {
				t.Errorf("%v against %v: %d", a, b, got)
			}
		}
	}
}

// TestBytesCountRowsOfEveryKind: exemplars, histograms and metadata were not counted in the memory of requests, so that no bound held for them.
func TestBytesCountRowsOfEveryKind(t *testing.T) {
	var b point.Batch
	before := b.Bytes()
	grows := func(what string, by int) {
		t.Helper()
		if n := b.Bytes() - before; n != by {
			t.Errorf("%s: %d bytes, want %d", what, n, by)
		}
		before = b.Bytes()
	}
	grows("nothing", 0)
	b.BeginItem()
	grows("an item", 4)
	b.Append(1, 2, 3)
	grows("a sample", 20)
	b.Hists = append(b.Hists, point.HistRow{H: make([]byte, 100)})
	grows("a histogram", 140)
	b.Exemplars = append(b.Exemplars, point.ExemplarRow{Labels: point.MakeLabels(point.MetricName, "m")})
	grows("an exemplar", 40+1+len(point.MetricName)+1+1)
	b.Metadata = append(b.Metadata, point.MetadataRow{Metric: "m", Type: "gauge", Help: "h"})
	grows("metadata", 64+7)
}
