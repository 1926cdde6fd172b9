package pathtest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query/querytest"
)

// TestNarrowPartitionsAnswerAsOne asks every kind of query of rows in partitions of 20 seconds and of the same rows in one partition: the same bits. Some rows are in
// heads, some in segments, and some partitions have both. Each query is asked twice: of blocks that are opened, and of those, or columns of the selector, that stayed.
func TestNarrowPartitionsAnswerAsOne(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of queries")
	}
	one, narrow := openSpread(t, 1, true, 24*time.Hour, 1), openSpread(t, 1, true, 20*time.Second, 1)
	all := []*spread{one, narrow}
	defer func() {
		for _, s := range all {
			one.must(s.close())
		}
	}()
	batches := demoRows(rand.New(rand.NewPCG(41, 42)))
	for i, b := range batches {
		for _, s := range all {
			one.must(s.insert(t.Context(), b))
			switch i {
			case len(batches) / 2, len(batches) * 3 / 4:
				one.must(s.parts["n1"].server.FlushAll(t.Context(), i > len(batches)/2))
			}
		}
	}
	inOne, inNarrow := readerOf(t, one.parts["n1"].server), readerOf(t, narrow.parts["n1"].server)
	for i, expr := range everyKind() {
		q := chainQuery{expr: expr, start: 700 * time.Second, end: 2600 * time.Second, step: []time.Duration{17, 60, 300}[i%3] * time.Second}
		if i%5 == 4 {
			q.step = 0
		}
		want := q.run(t, inOne)
		for range 2 {
			if d := querytest.Diff(want, q.run(t, inNarrow), 0); d != "" {
				t.Errorf("%s: %s", q, d)
			}
		}
	}
}
