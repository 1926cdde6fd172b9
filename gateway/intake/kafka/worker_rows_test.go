package kafka

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/point"
)

// lookedAt is a Writer of which a test looks at the worker at each write.
type lookedAt struct {
	*hole
	look func()
}

func (l lookedAt) Table(context.Context, string) (intake.Table, error) { return l, nil }

func (l lookedAt) Write(ctx context.Context, b *point.Batch, level point.Level) error {
	l.look()
	return l.hole.Write(ctx, b, level)
}

// TestRowsOfAllTablesCountInTheMemory: their sum is kept as records come, of tables that are written in between, too.
func TestRowsOfAllTablesCountInTheMemory(t *testing.T) {
	writer := lookedAt{hole: &hole{dict: point.NewDict(0)}}
	var w *worker
	writes, most := 0, 0
	writer.look = func() {
		n := 0
		for _, t := range w.tables {
			n += cap(t.batch.IDs)
		}
		if n != w.rows {
			t.Errorf("%d rows count, of %d that there is memory for", w.rows, n)
		}
		writes, most = writes+1, max(most, n)
	}
	c, err := New(Deps{Writer: writer}, Settings{WriteRowsMax: 500, Clusters: []Cluster{{Brokers: []string{"x:1"}, Topics: []Topic{{Name: "metrics"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	w = newWorker(c)
	defer w.decoder.Close()
	var records []*kgo.Record
	for i := range 200 {
		table := kgo.RecordHeader{Key: "table", Value: []byte(fmt.Sprint("t", i*i%17))}
		value := strings.Repeat("m f=1\n", 1+i%7*20)
		records = append(records, &kgo.Record{Topic: "metrics", Value: []byte(value), Timestamp: time.Now(), Headers: []kgo.RecordHeader{table}})
	}
	for range 2 {
		if err := w.process(t.Context(), c.members[0], &work{topic: topicKey{0, "metrics"}, batches: []*batch{{records: records}}}); err != nil {
			t.Fatal(err)
		}
		if w.rows != 0 || c.decoding.Load() != 0 {
			t.Errorf("%d rows and %d bytes count when all is written", w.rows, c.decoding.Load())
		}
	}
	if writes < 20 || most == 0 {
		t.Errorf("%d writes, and %d rows at most: the test shows nothing", writes, most)
	}
}
