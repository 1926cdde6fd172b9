package partition

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestCompactionsBookTheRowsThatTheyRead: 256 series at a time were read whole, of which no account knew. With a row a second for a week, or a day of native
// histograms, that is more memory than a server has, and after its restart the same compaction was due again.
func TestCompactionsBookTheRowsThatTheyRead(t *testing.T) {
	const many, flushes = 40, 3
	for _, c := range []struct {
		name      string
		rows      int   // of a series and flush
		histogram int   // bytes of one; 0: rows are floats
		series    int64 // bytes of the rows of one, as they are read
	}{
		{"floats", 4000, 0, flushes * 4000 * 24},
		{"one large histogram each", 1, 100_000, flushes * 100_000},
		{"histograms", 100, 2000, flushes * 100 * 2000},
	} {
		t.Run(c.name, func(t *testing.T) {
			const bound = 1 << 20
			b := openBenchWith(t, vfs.NewMem(), 1, Settings{CompactBytes: bound, HeadBytesMax: 1 << 40})
			defer b.close()
			for flush := range flushes {
				for i := range many {
					b.must(b.putMany(fmt.Sprint(i), point.Nanos(flush*c.rows), c.rows, c.histogram))
				}
				b.must(b.Flush(t.Context(), ByAge))
			}
			before := described(t, b)
			most, labels := int64(0), int64(0)
			b.deps.Compacting.OnGrowth(func(to int64) {
				if labels == 0 {
					labels = to
				}
				most = max(most, to-labels)
			})
			b.must(b.Compact(t.Context(), ByRequest))
			if held := b.deps.Compacting.Load(); held != 0 {
				t.Errorf("%d bytes are booked behind the compaction", held)
			}
			// Twice, since merged rows lie beside those of the segments.
			if least := 2 * c.series; most < least || most > 2*bound {
				t.Errorf("up to %d bytes were booked for rows; those of a series are %d, the bound is %d", most, least, 2*bound)
			}
			if after := described(t, b); !slices.Equal(after, before) {
				t.Errorf("rows %v became %v", before, after)
			}
		})
	}
}

// putMany appends n rows of a series from a time on, a frame in all.
func (b *bench) putMany(name string, from point.Nanos, n, histogram int) error {
	ref := b.index.Intern(labelsOf(name))
	defer b.index.Release(ref)
	b.stamp += 1024
	r := Rows{Stamp: b.stamp, Level: point.Received}
	for i := range n {
		at := from + point.Nanos(i)
		if histogram > 0 {
			r.HistRefs = append(r.HistRefs, ref)
			r.Hists = append(r.Hists, point.HistRow{Time: at, H: bytes.Repeat([]byte{byte(at)}, histogram)})
			continue
		}
		r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, at), append(r.Values, float64(at%7))
	}
	return b.Append(&r)
}

// described describes all rows of each series.
func described(t *testing.T, b *bench) (out []string) {
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.Match(nil)
	b.must(err)
	slices.SortFunc(ss, func(a, b Series) int { return a.Labels.Compare(b.Labels) })
	b.must(v.Read(ss, 0, 1<<40, func(i int, r rows.Run) error {
		sum, size := 0., 0
		for k, v := range r.Values {
			sum += v * float64(r.Times[k])
		}
		for k := range r.Hists {
			size += len(r.Hists[k].H) * int(r.Hists[k].Time)
		}
		out = append(out, fmt.Sprint(ss[i].Labels, len(r.Times), len(r.Hists), sum, size))
		return nil
	}))
	return out
}
