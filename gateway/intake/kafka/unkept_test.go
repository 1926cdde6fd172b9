package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestEveryRecordOfWhichServersRefuseRowsIsPutAside, those behind the reasons that a batch keeps too: a record that is settled is never read again.
func TestEveryRecordOfWhichServersRefuseRowsIsPutAside(t *testing.T) {
	const n = 3 * point.RefusalsMax
	b := &batch{}
	w := &tableWrite{batch: &point.Batch{}}
	for i := range n { // each record has two rows and a histogram
		b.records = append(b.records, &kgo.Record{Offset: int64(i)})
		w.parts = append(w.parts, part{b: b, i: i, rows: 2 * (i + 1), hists: i + 1})
		switch i % 3 {
		case 0:
			w.batch.Unkept.Floats = append(w.batch.Unkept.Floats, 2*i, 2*i+1)
			w.batch.Refuse(2, point.Refusal{Item: i + 1, Reason: "no room", Kind: fault.Invalid})
		case 1:
			w.batch.Unkept.Hists = append(w.batch.Unkept.Hists, i)
			w.batch.Refuse(1, point.Refusal{Reason: "no room", Kind: fault.Invalid})
		}
	}
	(&worker{}).layUnkept(w)
	for i := range n {
		l := b.letters[i]
		want := []int{2, 1, 0}[i%3]
		if (l == nil) != (want == 0) {
			t.Fatalf("record %d of which %d rows are refused: %+v", i, want, l)
		}
		if l != nil && (l.rows != want || l.reason != "no room" || l.kind != fault.Invalid) {
			t.Errorf("record %d of which %d rows are refused: %d rows, %q", i, want, l.rows, l.reason)
		}
	}
}
