package partition

import (
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// lengths returns the lengths of all histograms of the partition, by series and time.
func (b *bench) lengths() (out []int) {
	b.t.Helper()
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.Match(nil)
	b.must(err)
	b.must(v.Read(ss, math.MinInt64, math.MaxInt64, func(_ int, r rows.Run) error {
		for _, h := range r.Hists {
			out = append(out, len(h.H))
		}
		return nil
	}))
	return out
}

// TestAHugeHistogramNeverWedgesTheFlush: a log holds histograms of all lengths that were ever accepted, and one that no segment
// accepts. The others reach a segment, the log is released, and the lost one is counted.
func TestAHugeHistogramNeverWedgesTheFlush(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	ref := b.index.Intern(labelsOf("a"))
	long := segment.HistogramBytesMax
	for i, n := range []int{100, point.HistogramBytesMax, long, long + 1, 5} {
		b.must(b.Append(&Rows{Stamp: point.Stamp(i + 1), HistRefs: []series.Ref{ref}, Hists: []point.HistRow{{Time: int64(i), H: make([]byte, n)}}}))
	}
	b.index.Release(ref)
	b.must(b.put("b", 1, 7))
	b.close()
	b = openBench(t, fs, 2) // from the log
	b.must(b.Flush(t.Context(), BySize))
	if pins := b.brick.Pinning(1); len(pins) != 0 {
		t.Errorf("the log is pinned by %v", pins)
	}
	if n := testutil.ToFloat64(b.deps.Metrics.cutRows.WithLabelValues("histogram_bytes")); n != 1 {
		t.Errorf("%v histograms are counted as lost, not 1", n)
	}
	b.must(b.put("b", 2, 8))
	b.must(b.Flush(t.Context(), BySize))
	b.must(b.Compact(t.Context(), ByRequest))
	b.close()
	b = openBench(t, fs, 3)
	defer b.close()
	if got := b.lengths(); len(got) != 4 || got[1] != point.HistogramBytesMax || got[2] != long {
		t.Errorf("histograms of %v bytes", got)
	}
	b.want("a; b 1:7 2:8")
}

// TestADayOfTracesNeverWedgesTheCompaction: exemplars of a series are more than a segment holds of one, first over several
// flushes, then in one. The newest stay.
func TestADayOfTracesNeverWedgesTheCompaction(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	ref := b.index.Intern(labelsOf("a"))
	defer b.index.Release(ref)
	at := int64(0)
	trace := point.Labels(point.MakeLabels("__name__", "t", "trace_id", strings.Repeat("x", 60_000)))
	send := func(n int) {
		r := &Rows{}
		for range n {
			at++
			r.ExemplarRefs, r.Exemplars = append(r.ExemplarRefs, ref), append(r.Exemplars, point.ExemplarRow{Time: at, Value: float64(at), Labels: trace})
		}
		b.stamp += 1024
		r.Stamp = b.stamp
		b.must(b.Append(r))
	}
	for range 3 {
		send(150)
		b.must(b.Flush(t.Context(), ByAge))
	}
	b.must(b.Compact(t.Context(), ByRequest))
	for range 3 {
		send(150)
	}
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.Compact(t.Context(), ByRequest))
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.MatchDefined(nil)
	b.must(err)
	var got []point.ExemplarRow
	b.must(v.Exemplars(ss, 0, math.MaxInt64, func(_ int, ex []point.ExemplarRow) error {
		got = append(got, ex...)
		return nil
	}))
	if len(got) < 250 || got[len(got)-1].Time != at || got[0].Time != at-int64(len(got))+1 {
		t.Errorf("%d exemplars, up to the one at %d of %d", len(got), got[len(got)-1].Time, at)
	}
	if n := testutil.ToFloat64(b.deps.Metrics.cutRows.WithLabelValues("exemplars")); n != float64(int(at)-len(got)) {
		t.Errorf("%v exemplars are counted as left out, %d are", n, int(at)-len(got))
	}
}
