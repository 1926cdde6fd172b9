package presplit

import (
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	minute = point.Nanos(60e9)
	day    = 24 * 60 * minute

	// fineWidth and fineMax are the buckets of the last hours, coarseWidth and coarseMax those of the last weeks.
	fineWidth, fineMax     = minute, 3 * 60
	coarseWidth, coarseMax = 10 * minute, 15 * 24 * 6
)

// History is the growth of a table, or of one of its columns, per second, in bytes or another unit of its caller: the last 3 hours by minutes, the last 15 days by 10 minutes. A bucket
// that was observed for less than half of its width is unknown, which is not the same as zero: the table may have grown while no process looked. The zero
// History is empty. It has some 5 KB.
type History struct {
	fine, coarse buckets
	behind       point.Nanos // how much was observed, without a pause, of times long before the newest
}

const (
	// behindFrom is how far an observation lies before the newest if one of the two clocks is wrong.
	behindFrom = 15 * minute
	// behindMax is how long the clock that is behind is considered the wrong one: after that, observations ahead of its time are dropped.
	behindMax = 15 * minute
)

// buckets are the mean rates of successive intervals.
type buckets struct {
	first int64    // number of the first bucket, counted in widths since 1970
	codes []uint16 // of rates, oldest first
	// The open bucket is the one behind the last code.
	bytes   float64
	covered point.Nanos // how much of the open bucket was observed
}

// Observe records that a table grew by so many bytes in [from, to). Observations come in order of time: those before the newest bucket are left
// out. Shrinking counts as nothing.
func (h *History) Observe(from, to point.Nanos, bytes float64) {
	if from >= to || to-from > coarseMax*coarseWidth || !(bytes >= 0) || math.IsInf(bytes, 1) {
		return
	}
	if h.Until()-from > behindFrom && h.anything() {
		if h.behind += to - from; h.behind <= behindMax {
			return
		}
		h.fine.forget(from, fineWidth)
		h.coarse.forget(from, coarseWidth)
	}
	h.behind = 0
	rate := bytes / float64(to-from)
	h.fine.observe(from, to, rate, fineWidth, fineMax)
	h.coarse.observe(from, to, rate, coarseWidth, coarseMax)
}

func (b *buckets) observe(from, to point.Nanos, rate float64, width point.Nanos, most int) {
	for from < to {
		n := floorDiv(from, width)
		end := min(to, (n+1)*width)
		if b.advance(n, width, most) {
			span := min(end-from, width-b.covered) // a clock that was set back observes the same time again
			b.bytes += rate * float64(span)
			b.covered += span
		}
		from = end
	}
}

// advance makes bucket n the open one. It is false if a later one is.
func (b *buckets) advance(n int64, width point.Nanos, most int) bool {
	open := b.open()
	switch {
	case len(b.codes) == 0 && b.covered == 0, n-open >= int64(most):
		b.first, b.codes, b.bytes, b.covered = n, b.codes[:0], 0, 0
		return true
	case n < open:
		return false
	}
	for ; open < n; open++ {
		code := unknown
		if b.covered*2 >= width {
			code = encodeRate(b.bytes / float64(b.covered) * 1e9)
		}
		b.codes, b.bytes, b.covered = append(b.codes, code), 0, 0
	}
	if extra := len(b.codes) - most; extra > 0 {
		b.codes = append(b.codes[:0], b.codes[extra:]...)
		b.first += int64(extra)
	}
	return true
}

// forget drops the observations from a time on; the bucket that it lies in is unknown.
func (b *buckets) forget(from, width point.Nanos) {
	n := floorDiv(from, width)
	b.bytes, b.covered = 0, 0
	switch {
	case n <= b.first:
		*b = buckets{}
	case n < b.open():
		b.codes = b.codes[:n-b.first]
	}
}

// anything reports whether something was observed.
func (h *History) anything() bool { return len(h.coarse.codes) > 0 || h.coarse.covered > 0 }

func (b *buckets) open() int64 { return b.first + int64(len(b.codes)) }

// at returns the rate of bucket n; false: it is unknown.
func (b *buckets) at(n int64) (float64, bool) {
	if n < b.first || n >= b.open() {
		return 0, false
	}
	return decodeRate(b.codes[n-b.first])
}

// Since returns when the history begins, and whether it has begun.
func (h *History) Since() (point.Nanos, bool) {
	if !h.anything() {
		return 0, false
	}
	return h.coarse.first * coarseWidth, true
}

// Rate returns the recorded rate of a time: of its minute, or of its ten minutes if it is more than three hours ago; false: it is unknown.
func (h *History) Rate(at point.Nanos) (float64, bool) {
	if rate, ok := h.fine.at(floorDiv(at, fineWidth)); ok {
		return rate, true
	}
	return h.coarse.at(floorDiv(at, coarseWidth))
}

// Lately returns the mean of the known rates of the last three hours before a time; false: none is known. It follows a change of the load within hours, where the level of a Forecast
// follows within minutes, and is known as long as a single minute is.
func (h *History) Lately(now point.Nanos) (rate float64, ok bool) {
	n := 0
	for at := floorDiv(now, fineWidth) - fineMax; at <= floorDiv(now, fineWidth); at++ {
		if r, known := h.fine.at(at); known {
			rate, n = rate+r, n+1
		}
	}
	return rate / float64(max(n, 1)), n > 0
}

// Until returns the end of the newest observation, to the minute.
func (h *History) Until() point.Nanos { return h.fine.open()*fineWidth + h.fine.covered }

// Codes of rates: unknown, zero, and steps of 2^(1/1024), some 0.07 %, from 2^-10 to 2^53 bytes per second.
const (
	unknown   = uint16(0)
	zeroRate  = uint16(1)
	rateSteps = 1024
	rateLow   = -10
)

func encodeRate(rate float64) uint16 {
	if rate <= 0 {
		return zeroRate
	}
	n := math.Round((math.Log2(rate) - rateLow) * rateSteps)
	if n < 0 {
		return zeroRate
	}
	return uint16(min(2+n, math.MaxUint16))
}

func decodeRate(code uint16) (float64, bool) {
	switch code {
	case unknown:
		return 0, false
	case zeroRate:
		return 0, true
	}
	n := code - 2
	return rateFractions[n%rateSteps] * float64(uint64(1)<<(n/rateSteps)), true
}

// rateFractions are the rates of the first codes: from each to the code rateSteps later a rate doubles, which loses no bit. A forecast decodes
// every bucket several times, and half of its processor time was math.Exp2 (2026-11-29).
var rateFractions = func() (all [rateSteps]float64) {
	for i := range all {
		all[i] = math.Exp2(float64(i)/rateSteps + rateLow)
	}
	return all
}()

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// Clone returns a copy; of a nil history an empty one.
func (h *History) Clone() *History {
	if h == nil {
		return &History{}
	}
	c := *h
	c.fine.codes, c.coarse.codes = slices.Clone(h.fine.codes), slices.Clone(h.coarse.codes)
	return &c
}
