package kafka

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Rows that fit behind those of the table's batch are decoded there and stay there; those that do not are copied, and the
// memory that they needed is kept.
func TestARecordsRowsStayWhereTheyWereDecoded(t *testing.T) {
	dict := point.NewDict(0)
	d := &point.Batch{Dict: dict, IDs: make([]point.SeriesID, 0, 8), Times: make([]point.Nanos, 0, 8), Values: make([]float64, 0, 8)}
	s := scratch{Batch: new(point.Batch)}
	tab := &tableWrite{batch: d}
	var want []float64
	f := func(rows int, stays bool) {
		t.Helper()
		s.begin(d)
		for range rows {
			v := float64(len(want))
			want = append(want, v)
			s.Append(point.SeriesID(v), point.Nanos(v), v)
		}
		at := &s.Values[0]
		tab.add(&batch{}, 0, s.Batch, point.SmearByTable)
		if got := at == &d.Values[len(want)-rows]; got != stays {
			t.Errorf("the rows stay: %v, want %v", got, stays)
		}
		s.end()
		if s.IDs != nil || s.Times != nil || s.Values != nil {
			t.Error("the table's memory is still held")
		}
		for i, v := range want {
			if d.IDs[i] != point.SeriesID(v) || d.Times[i] != point.Nanos(v) || d.Values[i] != v {
				t.Fatalf("row %d is %v %v %v", i, d.IDs[i], d.Times[i], d.Values[i])
			}
		}
		if len(d.Values) != len(want) {
			t.Fatalf("%d rows, want %d", len(d.Values), len(want))
		}
	}
	f(3, true)
	f(5, true)  // to the last row of free memory
	f(9, false) // there was none
	if cap(s.own.ids) < 9 || cap(s.own.times) < 9 || cap(s.own.values) < 9 {
		t.Errorf("memory for 9 rows was not kept: %d, %d, %d", cap(s.own.ids), cap(s.own.times), cap(s.own.values))
	}
	d.IDs, d.Times, d.Values = slices.Grow(d.IDs, 100), slices.Grow(d.Times, 100), slices.Grow(d.Values, 100)
	f(20, true)
	own := &s.own.values[:1][0]
	f(30, true)
	if &s.own.values[:1][0] != own {
		t.Error("the table's memory was taken for one's own")
	}
}

// Whatever sizes records have, for two tables by turns, with bad ones between and in writes of many sizes: each good row
// reaches its table, in order, as it was sent.
func TestEveryRowReachesItsTableWhateverTheSizes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m := newMemory()
		want := map[string][]float64{}
		b := newBench(t, m, func(s *Settings) { s.WriteRowsMax = 1 + rnd.IntN(300) })
		path := filepath.Join(t.TempDir(), "letters")
		letters, err := openFileLetters(path, 64<<20)
		if err != nil {
			t.Fatal(err)
		}
		b.c.members[0].letters = letters
		bad, next := 0, 0.0
		for range 3 { // the memory of one work serves the next
			b.batches = nil
			for range 20 {
				table := []string{"a", "b"}[rnd.IntN(2)]
				var text strings.Builder
				rows, broken := rnd.IntN(1+rnd.IntN(200)), rnd.IntN(4) == 0
				for range rows {
					fmt.Fprintf(&text, "m v=%g %g\n", next, next+1)
					want[table] = append(want[table], next)
					next++
				}
				if broken {
					text.WriteString("no line\n")
					bad++
				}
				b.from(0, []string{"table", table}, text.String())
			}
			if err := b.run(); err != nil {
				t.Fatal(err)
			}
		}
		for table, values := range want {
			if got := m.table(table).order; !slices.Equal(got, values) {
				i := 0
				for i < min(len(got), len(values)) && got[i] == values[i] {
					i++
				}
				t.Fatalf("seed %d, table %s: %d rows, want %d; the first %d are right", seed, table, len(got), len(values), i)
			}
		}
		if err := letters.close(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Count(text, []byte("\n")); got != bad {
			t.Errorf("seed %d: %d letters, want %d", seed, got, bad)
		}
	}
}

// A worker does not keep a batch that grew beyond the needs of writes.
func TestAWorkerKeepsASmallBatchOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t, newMemory(), func(s *Settings) { s.WriteBytesMax = 1000 })
	small, large := &point.Batch{IDs: make([]point.SeriesID, 100)}, &point.Batch{IDs: make([]point.SeriesID, 101)}
	side := &point.Batch{Metadata: make([]point.MetadataRow, 1)}
	b.put(large)
	b.put(side)
	if b.spare != nil {
		t.Error("too large, and kept")
	}
	b.put(small)
	if b.spare != small || small.Rows() != 0 {
		t.Error("not kept, or not empty")
	}
	if got := b.batch(nil); got != small || b.spare != nil {
		t.Error("the batch that was kept is not used, or twice")
	}
}
