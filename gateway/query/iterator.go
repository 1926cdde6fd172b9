package query

import (
	"math"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// series is a storage.Series over columns.
type series struct {
	labels labels.Labels
	rows   *peer.Series
	set    *set // that it is of; nil in tests
}

func (s *series) Labels() labels.Labels { return s.labels }

// Floats is how many samples at most are no histograms.
func (s *series) Floats() int { return len(s.rows.Times) }

// Iterator returns it, reset, when its type is ours.
func (s *series) Iterator(it chunkenc.Iterator) chunkenc.Iterator {
	if s.set != nil && s.set.usage.turn != nil {
		_ = s.set.usage.turn.Next(s.set.ctx) // the engine checks the context itself
	}
	own, ok := it.(*iterator)
	if !ok {
		own = new(iterator)
	}
	*own = iterator{times: s.rows.Times, values: s.rows.Values, hists: s.rows.Hists}
	return own
}

// iterator walks a series' float rows and histogram rows as one sequence, strictly rising in milliseconds.
//
//	times  ──────────┬─┬──┬───────▶   next is the first row not read yet
//	hists  ───┬──────────────┬────▶   nextHist likewise
//	ms     ───●──────●────●──●────▶   rows of one millisecond collapse to one sample
type iterator struct {
	// Constant after Series.Iterator.
	times  []point.Nanos
	values []float64
	hists  []peer.Hist

	next, nextHist int

	// The sample stood on; kind is ValNone before the first and after the last.
	kind chunkenc.ValueType
	ms   int64
	v    float64
	hist []byte // encoding of a histogram sample

	// The decoded histogram. The first caller owns it, the next one gets a copy.
	h     *histogram.Histogram
	fh    *histogram.FloatHistogram
	given bool

	err error
}

const nanosPerMilli = 1_000_000

func (it *iterator) Next() chunkenc.ValueType {
	if len(it.hists) > 0 {
		return it.nextMixed()
	}
	i := it.next
	if i >= len(it.times) {
		it.kind = chunkenc.ValNone
		return chunkenc.ValNone
	}
	it.ms, it.v = point.MillisOf(it.times[i]), it.values[i]
	it.next = i + 1
	if i+1 < len(it.times) && it.times[i+1]-it.times[i] < nanosPerMilli {
		it.collapse(i)
	}
	it.kind = chunkenc.ValFloat
	return chunkenc.ValFloat
}

// collapse moves over the rows behind row i that share its millisecond and keeps the newest value; a stale
// marker is kept only when there is nothing else.
func (it *iterator) collapse(i int) {
	for i++; i < len(it.times) && point.MillisOf(it.times[i]) == it.ms; i++ {
		if !point.IsStale(it.values[i]) || point.IsStale(it.v) {
			it.v = it.values[i]
		}
	}
	it.next = i
}

// nextMixed is Next for a series that has histograms, and perhaps floats between them.
func (it *iterator) nextMixed() chunkenc.ValueType {
	it.kind = chunkenc.ValNone
	for first, stale := true, false; ; first = false {
		ns, isHist, ok := it.peek()
		if !ok || !first && point.MillisOf(ns) != it.ms {
			break
		}
		it.ms = point.MillisOf(ns)
		if rowStale := it.nextStale(isHist); first || stale || !rowStale {
			stale = rowStale
			it.take(isHist)
		}
		if isHist {
			it.nextHist++
		} else {
			it.next++
		}
	}
	if it.kind == chunkenc.ValHistogram {
		it.decode()
	}
	return it.kind
}

// peek finds the earlier of the next float row and the next histogram row.
func (it *iterator) peek() (ns point.Nanos, isHist, ok bool) {
	switch {
	case it.next < len(it.times) && it.nextHist < len(it.hists):
		f, h := it.times[it.next], it.hists[it.nextHist].Time
		return min(f, h), h < f, true
	case it.next < len(it.times):
		return it.times[it.next], false, true
	case it.nextHist < len(it.hists):
		return it.hists[it.nextHist].Time, true, true
	}
	return 0, false, false
}

func (it *iterator) nextStale(isHist bool) bool {
	if isHist {
		return point.IsStaleHistogram(it.hists[it.nextHist].H)
	}
	return point.IsStale(it.values[it.next])
}

func (it *iterator) take(isHist bool) {
	if isHist {
		it.kind, it.hist = chunkenc.ValHistogram, it.hists[it.nextHist].H
		return
	}
	it.kind, it.v = chunkenc.ValFloat, it.values[it.next]
}

// decode opens the histogram stood on; its encoding has the kind. Bytes that do not decode end
// the series with an error.
func (it *iterator) decode() {
	it.h, it.fh, it.err = point.DecodeHistogram(it.hist)
	it.given = false
	switch {
	case it.err != nil:
		it.kind = chunkenc.ValNone
		it.next, it.nextHist = len(it.times), len(it.hists)
	case it.fh != nil:
		it.kind = chunkenc.ValFloatHistogram
	}
}

// Seek gallops: the engine seeks in small steps forward, so the row is near, and a far one is found in logarithmic time.
func (it *iterator) Seek(ms int64) chunkenc.ValueType {
	if it.kind != chunkenc.ValNone && it.ms >= ms {
		return it.kind
	}
	if ms > math.MaxInt64/nanosPerMilli {
		it.next, it.nextHist = len(it.times), len(it.hists)
		return it.Next()
	}
	ns := point.NanosOf(ms)
	it.next = gallop(it.next, len(it.times), func(i int) bool { return it.times[i] >= ns })
	it.nextHist = gallop(it.nextHist, len(it.hists), func(i int) bool { return it.hists[i].Time >= ns })
	return it.Next()
}

// gallop finds the first i in [lo, n) for which reached holds, n if there is none; it holds from there on.
func gallop(lo, n int, reached func(int) bool) int {
	step := 1
	hi := lo
	for hi < n && !reached(hi) {
		lo = hi + 1
		hi += step
		step *= 2
	}
	hi = min(hi, n)
	return lo + sort.Search(hi-lo, func(i int) bool { return reached(lo + i) })
}

func (it *iterator) At() (int64, float64) { return it.ms, it.v }

func (it *iterator) AtT() int64 { return it.ms }

// AtST is 0: rows have no start timestamp.
func (it *iterator) AtST() int64 { return 0 }

func (it *iterator) Err() error { return it.err }

// AtHistogram returns a histogram that the caller owns; the one passed in is not needed.
func (it *iterator) AtHistogram(*histogram.Histogram) (int64, *histogram.Histogram) {
	if it.given && it.h != nil {
		return it.ms, it.h.Copy()
	}
	it.given = true
	return it.ms, it.h
}

// AtFloatHistogram returns a histogram that the caller owns, in fh's memory where the kept one has integer counts.
func (it *iterator) AtFloatHistogram(fh *histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	if it.fh == nil {
		return it.ms, it.h.ToFloat(fh)
	}
	if it.given {
		return it.ms, it.fh.Copy()
	}
	it.given = true
	return it.ms, it.fh
}
