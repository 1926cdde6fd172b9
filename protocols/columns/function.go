package columns

import (
	"math"
	"slices"

	"github.com/prometheus/prometheus/util/kahansum"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Function makes one value of each window of a column.
type Function struct {
	Name      string // "": the instant selector
	Arguments int    // numbers before the range
	KeepsName bool   // the result is still the metric
	Counter   bool   // needs a counter, and adds a note if the name does not look like one
	Quantile  bool   // its number is one
	// each fills out, a value for each step, absent if there is none.
	// out has the grid's steps, c.lo[i] and c.hi[i] are the rows of step i. It may stop early when c.canceled says so: out is then of no use.
	each func(c *column, s *Source, g Grid, out []float64)
}

// FunctionOf finds a function by its name in PromQL; nil: it is not evaluated over columns.
func FunctionOf(name string) *Function { return functions[name] }

// functions are those that are evaluated over columns. Their order of operations is the engine's.
var functions = map[string]*Function{
	"rate":               {Name: "rate", Counter: true, each: func(c *column, s *Source, g Grid, out []float64) { extrapolate(c, s, g, out, true, true) }},
	"increase":           {Name: "increase", Counter: true, each: func(c *column, s *Source, g Grid, out []float64) { extrapolate(c, s, g, out, true, false) }},
	"delta":              {Name: "delta", each: func(c *column, s *Source, g Grid, out []float64) { extrapolate(c, s, g, out, false, false) }},
	"irate":              {Name: "irate", each: func(c *column, _ *Source, _ Grid, out []float64) { instant(c, out, true) }},
	"idelta":             {Name: "idelta", each: func(c *column, _ *Source, _ Grid, out []float64) { instant(c, out, false) }},
	"last_over_time":     {Name: "last_over_time", KeepsName: true, each: last},
	"first_over_time":    {Name: "first_over_time", KeepsName: true, each: perWindow(func(vs []float64) float64 { return vs[0] })},
	"count_over_time":    {Name: "count_over_time", each: perWindow(func(vs []float64) float64 { return float64(len(vs)) })},
	"present_over_time":  {Name: "present_over_time", each: perWindow(func([]float64) float64 { return 1 })},
	"sum_over_time":      {Name: "sum_over_time", each: perWindow(sum)},
	"avg_over_time":      {Name: "avg_over_time", each: perWindow(average)},
	"min_over_time":      {Name: "min_over_time", each: perWindow(smallest)},
	"max_over_time":      {Name: "max_over_time", each: perWindow(largest)},
	"stddev_over_time":   {Name: "stddev_over_time", each: perWindow(func(vs []float64) float64 { return math.Sqrt(variance(vs)) })},
	"stdvar_over_time":   {Name: "stdvar_over_time", each: perWindow(variance)},
	"changes":            {Name: "changes", each: perWindow(changes)},
	"resets":             {Name: "resets", each: perWindow(resets)},
	"quantile_over_time": {Name: "quantile_over_time", Arguments: 1, Quantile: true, each: quantiles},
}

// LastValue is the instant selector: the newest row within the lookback, nothing where that is a marker.
var LastValue = &Function{KeepsName: true, each: last}

func last(c *column, _ *Source, _ Grid, out []float64) {
	for i, hi := range c.hi {
		out[i] = Absent
		if hi > c.lo[i] {
			out[i] = c.values[hi-1]
		}
	}
}

// perWindow makes a function of one over the values of a window that is not empty.
func perWindow(f func([]float64) float64) func(*column, *Source, Grid, []float64) {
	return func(c *column, _ *Source, _ Grid, out []float64) {
		for i, hi := range c.hi {
			out[i] = Absent
			if lo := c.lo[i]; hi > lo && !c.canceled(hi-lo) {
				out[i] = f(c.values[lo:hi])
			}
		}
	}
}

// Neumaier's sum: c collects what rounding cut off each addition. 1e16 + 1 + 1 as an example: both ones are lost in s, c ends as 2.

// compensated adds values to s as kahansum.Inc does one by one: s and c are the same, bit for bit. The error of an
// addition is computed without comparing the two: it is exact either way, and needs no branch. Where a
// sum leaves the numbers the error does not mean anything: ok is false then.
func compensated(s, c float64, values []float64) (float64, float64, bool) {
	for _, v := range values {
		t := s + v
		part := t - s
		c += (s - (t - part)) + (v - part)
		s = t
	}
	return s, c, s-s == 0
}

func sum(values []float64) float64 {
	if s, c, ok := compensated(0, 0, values); ok {
		return s + c
	}
	var s, c float64
	for _, v := range values {
		s, c = kahansum.Inc(v, s, c)
	}
	if math.IsInf(s, 0) {
		return s
	}
	return s + c
}

// average divides sum and compensation apart, as the engine does; a sum that overflows is computed again as a running mean.
func average(values []float64) float64 {
	if s, c, ok := compensated(values[0], 0, values[1:]); ok {
		n := float64(len(values))
		return s/n + c/n
	}
	m := mean{sum: values[0], count: 1}
	for _, v := range values[1:] {
		m.add(v)
	}
	return m.value()
}

// mean is the engine's: a sum until that overflows, a running mean from there on.
type mean struct {
	sum, c, mean, count float64
	running             bool
}

func (m *mean) add(v float64) {
	m.count++
	if !m.running {
		s, c := increase(v, m.sum, m.c)
		if !math.IsInf(s, 0) {
			m.sum, m.c = s, c
			return
		}
		m.running = true
		m.mean = m.sum / (m.count - 1)
		m.c /= m.count - 1
	}
	q := (m.count - 1) / m.count
	m.mean, m.c = kahansum.Inc(v/m.count, q*m.mean, q*m.c)
}

func (m *mean) value() float64 {
	if m.running {
		return m.mean + m.c
	}
	return m.sum/m.count + m.c/m.count
}

// smallest: m != m is a NaN, which any value replaces.
func smallest(values []float64) float64 {
	m := values[0]
	for _, v := range values {
		if v < m || m != m {
			m = v
		}
	}
	return m
}

func largest(values []float64) float64 {
	m := values[0]
	for _, v := range values {
		if v > m || m != m {
			m = v
		}
	}
	return m
}

// variance is Welford's, with both running values compensated, as in the engine.
func variance(values []float64) float64 {
	var n, mean, cMean, aux, cAux float64
	for _, v := range values {
		n++
		delta := v - (mean + cMean)
		mean, cMean = kahansum.Inc(delta/n, mean, cMean)
		aux, cAux = kahansum.Inc(delta*(v-(mean+cMean)), aux, cAux)
	}
	return (aux + cAux) / n
}

// changes counts NaN after NaN as no change.
func changes(values []float64) float64 {
	n, before := 0, values[0]
	for _, v := range values[1:] {
		if v != before && !(v != v && before != before) {
			n++
		}
		before = v
	}
	return float64(n)
}

func resets(values []float64) float64 {
	n, before := 0, values[0]
	for _, v := range values[1:] {
		if v < before {
			n++
		}
		before = v
	}
	return float64(n)
}

func quantiles(c *column, s *Source, _ Grid, out []float64) {
	var sorted []float64
	for i, hi := range c.hi {
		out[i] = Absent
		if lo := c.lo[i]; hi > lo && !c.canceled(8*(hi-lo)) {
			sorted = append(sorted[:0], c.values[lo:hi]...)
			out[i] = quantile(s.Argument, sorted)
		}
	}
}

// quantile sorts values, NaNs first, and interpolates between the two nearest.
func quantile(q float64, values []float64) float64 {
	switch {
	case len(values) == 0 || q != q:
		return math.NaN()
	case q < 0:
		return math.Inf(-1)
	case q > 1:
		return math.Inf(1)
	}
	slices.Sort(values)
	// The quantile 0.9 of 10, 20, 30, 40: rank 2.7, so 30·0.3 + 40·0.7 = 37.
	rank := q * float64(len(values)-1)
	below := max(0, math.Floor(rank))
	above := min(float64(len(values)-1), below+1)
	weight := rank - math.Floor(rank)
	if weight == 0 { // an infinite neighbour that counts nothing would make it NaN
		return values[int(below)]
	}
	return values[int(below)]*(1-weight) + values[int(above)]*weight
}

// instant is irate and idelta: over the last two rows.
func instant(c *column, out []float64, rate bool) {
	for i, hi := range c.hi {
		out[i] = Absent
		if hi-c.lo[i] < 2 {
			continue
		}
		a, b := c.values[hi-2], c.values[hi-1]
		v := b
		if !rate || !(b < a) {
			v = b - a
		}
		if rate {
			v /= float64(point.MillisOf(c.times[hi-1])-point.MillisOf(c.times[hi-2])) / 1000
		}
		out[i] = v
	}
}

// extrapolate is rate, increase and delta. The falls of a counter are found once for the column: windows overlap.
func extrapolate(c *column, s *Source, g Grid, out []float64, counter, rate bool) {
	var fell falls
	if counter {
		fell.find(c.values)
	}
	perSecond := 1.0
	if rate {
		perSecond = s.Window.Seconds()
	}
	end := g.Start - s.Offset.Milliseconds()
	for i, hi := range c.hi {
		lo := c.lo[i]
		out[i] = Absent
		if hi-lo > 1 {
			w := window{
				first: c.values[lo], rows: float64(hi - lo - 1), counter: counter,
				start: end - s.Window.Milliseconds(), end: end,
				firstTime: point.MillisOf(c.times[lo]), lastTime: point.MillisOf(c.times[hi-1]),
			}
			rise := c.values[hi-1] - w.first
			if counter && len(fell.at) > 0 && !c.canceled(hi-lo) {
				rise = fell.add(rise, lo, hi, c.values)
			}
			out[i] = rise * (w.factor(rise) / perSecond)
		}
		end += g.Step
	}
}

// falls are the rows that are less than the one before.
// An example, values 5 8 2 4: the fall at row 2 lost 8, so the counter rose by 4 - 5 + 8 = 7. A fall at a window's first row is not of the window:
// the row before it lies outside.
type falls struct {
	at    []int32
	first int // of those that can lie in this window or a later one
}

func (f *falls) find(values []float64) {
	for i := 1; i < len(values); i++ {
		if values[i] < values[i-1] {
			f.at = append(f.at, int32(i))
		}
	}
}

// add adds the amounts lost by the falls within [lo, hi). Windows come in order.
func (f *falls) add(rise float64, lo, hi int32, values []float64) float64 {
	for f.first < len(f.at) && f.at[f.first] <= lo {
		f.first++
	}
	for _, at := range f.at[f.first:] {
		if at >= hi {
			break
		}
		rise += values[at-1]
	}
	return rise
}

// window is a window as extrapolation needs it, times in milliseconds.
type window struct {
	first               float64 // value
	rows                float64 // less one
	start, end          int64
	firstTime, lastTime int64
	counter             bool
}

// factor is the ratio by which the rise between first and last row is stretched to cover the window: to its bounds
// where a row is near, by half a distance between rows where none is, and never to before a counter's zero.
// An example, the window (0, 60] s with rows of 10 to 40 every 10 s from 10 to 50: rise 30 in 40 s, and both ends are 10 s away, below 1.1 times
// the distance between rows. The counter's zero would be 40 s · 10/30 = 13.3 s before the first row, farther than the window: (40+10+10)/40 = 1.5,
// an increase of 45.
func (w *window) factor(rise float64) float64 {
	toStart := float64(w.firstTime-w.start) / 1000
	toEnd := float64(w.end-w.lastTime) / 1000
	sampled := float64(w.lastTime-w.firstTime) / 1000
	between := sampled / w.rows
	threshold := between * 1.1
	if toStart >= threshold {
		toStart = between / 2
	}
	if w.counter {
		toZero := toStart
		if rise > 0 && w.first >= 0 {
			toZero = sampled * (w.first / rise)
		}
		if toZero < toStart {
			toStart = toZero
		}
	}
	if toEnd >= threshold {
		toEnd = between / 2
	}
	return (sampled + toStart + toEnd) / sampled
}
