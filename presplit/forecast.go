package presplit

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Forecast is the expected growth from a moment on. It is constant.
type Forecast struct {
	// From is the moment of the forecast, Level the rate there in bytes per second.
	From  point.Nanos
	Level float64
	// Days are the past days that it is made from. 0: the newest rate stands for all times.
	Days int
	// Short is how much was observed at all, if that is less than five minutes: its mean stands for all times. 0: more was. A minute of which half was observed
	// counts whole.
	Short point.Nanos

	calm  *Forecast   // by whole cycles of a load that goes on and off; nil: it does not
	cycle point.Nanos // the length of one, of a calm forecast

	shape []float64 // of the rate against Level, every coarseWidth from shapeBack before From on
}

// shapeBack is how far back a forecast's shape reaches: as far as the minutes that its level is read from.
const shapeBack = fineMax * fineWidth

// Forecast predicts the growth from now to until; false: less than 5 of the last 15 minutes are known, and more before, or less than a minute of a history that
// has just begun. Rates behind until are those of until.
//
// The rate is level × season. The level is the mean of the newest minutes: as many as agree with the newest five within the noise, so that
// it is steady in noise and follows a step within minutes. The season is how the rate changed from this time of day on in the past days: the mean over
// days, where days of the same weekday count most, and recent ones more than old ones. A sudden fall is not believed for half an hour: a source that
// is away comes back as it was, and partitions that close too small cost less than one that gets all rows.
//
// A load that goes on and off has a second forecast: Plan.Suited.
func (h *History) Forecast(now, until point.Nanos) (Forecast, bool) {
	f := h.forecast(now, until, 0)
	rates, fresh := h.minutes(&f)
	if fresh < newestFew {
		return h.begun(f)
	}
	f.Level = level(rates)
	if c := cyclesOf(rates); c != nil {
		f.calm = h.calm(now, until, c)
	}
	return f, true
}

// shortMin is how much must have been observed of a history that has just begun.
const shortMin = minute

// begun is the forecast of a history that has just begun: the mean of all that was observed. Partitions to come are laid out by it, since they can be again; one that
// accepts rows is not split by so little.
func (h *History) begun(f Forecast) (Forecast, bool) {
	if h.coarse.first*coarseWidth < f.From-15*minute-coarseWidth || f.From-h.Until() > 15*minute {
		return f, false
	}
	bytes, known := h.fine.bytes, h.fine.covered
	for n := h.fine.first; n < h.fine.open(); n++ {
		if rate, ok := h.fine.at(n); ok {
			bytes, known = bytes+rate*float64(fineWidth)/1e9, known+fineWidth
		}
	}
	if known < shortMin {
		return f, false
	}
	f.Level, f.Short = bytes/float64(known)*1e9, known
	return f, true
}

// Young reports whether less than five minutes of a history are known at a time: each look at sizes says much then.
func (h *History) Young(now point.Nanos) bool {
	f, ok := h.Forecast(now, now)
	return !ok || f.Short > 0
}

// forecast has no level yet. The rates of past days are means over a span; 0: a quarter of an hour or a little more.
func (h *History) forecast(now, until, span point.Nanos) Forecast {
	f := Forecast{From: now}
	past := h.season(now, span)
	f.Days = len(past)
	for at := now - shapeBack; at < until+coarseWidth && len(f.shape) <= coarseMax; at += coarseWidth {
		f.shape = append(f.shape, ratio(past, now, at))
	}
	return f
}

// Rate is the expected rate at a time, in bytes per second; before From the rate at From.
func (f *Forecast) Rate(at point.Nanos) float64 { return f.Level * f.season(max(at, f.From)) }

// season is how the rate at a time compares with that of From, in the past days.
func (f *Forecast) season(at point.Nanos) float64 {
	x := float64(max(at-f.From+shapeBack, 0)) / float64(coarseWidth)
	i := int(min(x, float64(len(f.shape)-1)))
	if i == len(f.shape)-1 {
		return f.shape[i]
	}
	x -= float64(i)
	return f.shape[i]*(1-x) + f.shape[i+1]*x
}

// step is the end of a time from lo on, up to hi, for which one rate stands: a minute, or all once the rate is constant. Partitions may be decades wide.
func (f *Forecast) step(lo, hi point.Nanos) point.Nanos {
	if constant := f.From - shapeBack + point.Nanos(len(f.shape))*coarseWidth; lo >= constant {
		return hi
	}
	return min(hi, lo-lo%minute+minute)
}

// Bytes is the expected growth in [lo, hi).
func (f *Forecast) Bytes(lo, hi point.Nanos) (sum float64) {
	for lo < hi {
		next := f.step(lo, hi)
		sum += f.Rate(lo+(next-lo)/2) * float64(next-lo) / 1e9
		lo = next
	}
	return sum
}

// Windows of the level, in minutes.
const (
	newestFew  = 5
	levelMax   = 40
	fallWindow = 30 // a sudden fall is not believed for so long
	fallBelow  = 0.3
)

// minutes are the rates of the known minutes before now without the season, newest first; fresh are those of the last quarter of an hour.
func (h *History) minutes(f *Forecast) (rates []float64, fresh int) {
	open := floorDiv(f.From, fineWidth)
	rates = make([]float64, 0, fineMax)
	for n := open - 1; n > open-1-fineMax; n-- {
		rate, ok := h.fine.at(n)
		if !ok {
			continue
		}
		if open-n <= 15 {
			fresh++
		}
		rates = append(rates, rate/f.season(n*fineWidth+fineWidth/2))
	}
	return rates, fresh
}

// level is the rate now, from the known minutes before it without the season.
func level(rates []float64) float64 {
	noise := noiseOf(rates)
	level := mean(rates[:newestFew])
	newest := level
	for w := newestFew * 2; w <= levelMax && w <= len(rates); w *= 2 {
		m := mean(rates[:w])
		if m <= 0 || math.Abs(newest-m) > m*(2*noise/math.Sqrt(newestFew)+0.02) {
			break
		}
		level = m
	}
	// The rate before a fall that is not older than fallWindow.
	if len(rates) > fallWindow {
		before := rates[fallWindow:min(len(rates), 2*fallWindow)]
		if m := mean(before); newest < fallBelow*m {
			level = m
		}
	}
	return level
}

// noiseOf is the standard deviation of a minute's rate against the next one's, as a share of the rate: from the median of the
// steps, so that a few jumps do not count.
func noiseOf(rates []float64) float64 {
	var steps []float64
	for i := 1; i < len(rates); i++ {
		if s := rates[i] + rates[i-1]; s > 0 {
			steps = append(steps, 2*math.Abs(rates[i]-rates[i-1])/s)
		}
	}
	if len(steps) == 0 {
		return 0
	}
	slices.Sort(steps)
	return steps[len(steps)/2] / 0.6745 / math.Sqrt2
}

func mean(v []float64) (m float64) {
	for _, x := range v {
		m += x / float64(len(v))
	}
	return m
}

// pastDay is a day before today that the season is read from.
type pastDay struct {
	shift  point.Nanos // today's time minus that day's
	weight float64
	base   float64 // its rate at this time of day
	rates  *buckets
	span   point.Nanos // of the mean that is a rate; 0: a quarter of an hour or a little more
	lone   bool        // fewer than three days are known: a day's outages do not show by comparison with other days
}

// seasonDays is how many past days the season is read from.
const seasonDays = 14

// season are the past days in which the rate at this time of day is known.
func (h *History) season(now, span point.Nanos) []pastDay {
	var out []pastDay
	for d := int64(1); d <= seasonDays; d++ {
		p := pastDay{shift: d * day, rates: &h.coarse, weight: math.Pow(0.9, float64(d)), span: span}
		switch {
		case d%7 == 0:
			p.weight *= 8
		case weekend(now) != weekend(now-p.shift):
			p.weight *= 0.1
		}
		if base, ok := p.rate(now); ok && base > 0 {
			p.base = base
			out = append(out, p)
		}
	}
	for i := range out {
		out[i].lone = len(out) < 3
	}
	return slices.DeleteFunc(out, func(p pastDay) bool {
		return p.lone && span == 0 && odd(p.rates, floorDiv(now-p.shift, coarseWidth))
	})
}

// weekend reports whether a time lies on a Saturday or a Sunday, UTC.
func weekend(at point.Nanos) bool {
	weekday := ((floorDiv(at, day)+4)%7 + 7) % 7 // the first of January 1970 was a Thursday
	return weekday == 0 || weekday == 6
}

// rate is the day's rate at a time of today: a mean over a quarter of an hour around it or a little more, and between the middles of buckets.
func (p *pastDay) rate(at point.Nanos) (float64, bool) {
	if p.span > 0 {
		return p.rates.mean(at-p.shift-p.span/2, at-p.shift+p.span/2)
	}
	x := float64(at-p.shift)/float64(coarseWidth) - 0.5
	n := int64(math.Floor(x))
	x -= float64(n)
	var sum, weights float64
	for i, w := range [...]float64{(1 - x) / 2, 1 - x/2, (1 + x) / 2, x / 2} { // a triangle of two buckets to each side
		m := n - 1 + int64(i)
		v, ok := p.rates.at(m)
		if !ok || p.lone && odd(p.rates, m) {
			continue
		}
		sum, weights = sum+v*w, weights+w
	}
	if weights < 0.5 {
		return 0, false
	}
	return sum / weights, true
}

// mean is the rate of a span of coarse buckets; false: less than half is known.
func (b *buckets) mean(from, to point.Nanos) (float64, bool) {
	var sum, known float64
	for n := floorDiv(from, coarseWidth); n*coarseWidth < to; n++ {
		if rate, ok := b.at(n); ok {
			part := float64(min(to, (n+1)*coarseWidth) - max(from, n*coarseWidth))
			sum, known = sum+rate*part, known+part
		}
	}
	return sum / max(known, 1), known*2 >= float64(to-from)
}

// odd reports whether a bucket is far from those around it, as in an outage or a spike.
func odd(b *buckets, n int64) bool {
	v, ok := b.at(n)
	if !ok {
		return false
	}
	var around []float64
	for i := n - 9; i <= n+9; i++ {
		if w, ok := b.at(i); ok {
			around = append(around, w)
		}
	}
	slices.Sort(around)
	m := around[len(around)/2]
	return v < 0.4*m || v > 2.5*m
}

// ratioMax bounds how far the season may change the rate.
const ratioMax = 50

// vote is the ratio that a past day shows for a time to come, and its weight.
type vote struct{ log, weight float64 }

// Votes that lie within agree of one another agree: a factor of two. One alone counts for at most boldest, a factor of three, if other days disagree: on the day
// after a load has risen for good, yesterday's rise is no season.
const (
	agree   = 0.7
	boldest = 1.1
)

// ratio is how the rate at a time compares with the rate now, by the past days; 1 where no day shows it.
func ratio(past []pastDay, now, at point.Nanos) float64 {
	var votes []vote
	for i := range past {
		if rate, ok := past[i].rate(at); ok {
			votes = append(votes, vote{math.Log(min(max(rate/past[i].base, 1.0/ratioMax), ratioMax)), past[i].weight})
		}
	}
	if len(votes) == 0 {
		return 1
	}
	slices.SortFunc(votes, func(a, b vote) int { return cmp.Compare(a.log, b.log) })
	median := medianOf(votes)
	near := func(v vote) bool { return math.Abs(v.log-median) <= agree }
	if at := slices.IndexFunc(votes, near); math.Abs(median) > boldest && len(votes) > 1 && (at+1 == len(votes) || !near(votes[at+1])) {
		votes = slices.Delete(votes, at, at+1)
		median = medianOf(votes)
	}
	// The mean of the votes near the weighted median: one day's outage or feast does not count.
	sum, weights := 0.0, 0.0
	for _, v := range votes {
		if near(v) {
			sum, weights = sum+v.log*v.weight, weights+v.weight
		}
	}
	return math.Exp(sum / weights)
}

// medianOf is the weighted median of votes in order.
func medianOf(votes []vote) float64 {
	total := 0.0
	for _, v := range votes {
		total += v.weight
	}
	upTo := 0.0
	for _, v := range votes {
		if upTo += v.weight; upTo*2 >= total {
			return v.log
		}
	}
	return votes[0].log
}
