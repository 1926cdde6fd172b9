package rows

import (
	"cmp"
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Merge makes one run of runs. The result shares no column with them, only the bytes of histograms, except when one
// alone has rows: then it is that run. The order of runs does not matter, and runs is left as it is.
func Merge(runs []Run) Run {
	n, last := 0, 0
	for i := range runs {
		if runs[i].Len() > 0 {
			n, last = n+1, i
		}
	}
	switch n {
	case 0:
		return Run{}
	case 1: // most series of a narrow query
		return runs[last]
	}
	spans := make([]span, 0, n)
	for _, r := range runs {
		if lo, hi, ok := r.Bounds(); ok {
			spans = append(spans, span{r, lo, hi})
		}
	}
	return join(untangle(spans))
}

// span is a run with its bounds.
type span struct {
	run    Run
	lo, hi point.Nanos
}

// untangle sorts spans by time and merges those that overlap, so that each begins after the one before it ends.
func untangle(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	out := spans[:0]
	for len(spans) > 0 {
		n, hi := 1, spans[0].hi
		for n < len(spans) && spans[n].lo <= hi {
			hi = max(hi, spans[n].hi)
			n++
		}
		knot := span{lo: spans[0].lo, hi: hi}
		knot.run = settle(spans[:n])
		out, spans = append(out, knot), spans[n:]
	}
	return out
}

// settle merges spans that overlap, and reorders them.
//
// A merged run has lost the stamps of single rows: two runs may be merged only if no third has a stamp between theirs. So they are
// merged as neighbours in the order of their stamps, those of one stamp first of all. Between merged runs all of one then rank
// below all of the other, and comparing their highest stamps is enough.
// An example, stamps of three runs that overlap: 7, 3, 5. Merging 7 with 3 first would give a run of 3 to 7, which counts as 7, and its rows of 3
// would beat those of 5. In the order 3, 5, 7 each merge ranks above all before it.
func settle(spans []span) Run {
	if len(spans) == 1 {
		return spans[0].run
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.run.StampHi, b.run.StampHi) })
	ranks := spans[:0]
	for len(spans) > 0 {
		n := 1
		for n < len(spans) && spans[n].run.StampHi == spans[0].run.StampHi {
			n++
		}
		one := span{run: halve(spans[:n])}
		ranks, spans = append(ranks, one), spans[n:]
	}
	return halve(ranks)
}

// halve merges neighbours with neighbours, so that a row is copied log n times and not n times.
func halve(spans []span) Run {
	switch n := len(spans); n {
	case 1:
		return spans[0].run
	default:
		a, b := halve(spans[:n/2]), halve(spans[n/2:])
		return merge2(&a, &b)
	}
}

// join appends runs, each of which begins after the one before it ends.
func join(spans []span) Run {
	if len(spans) == 1 {
		return spans[0].run
	}
	floats, hists := 0, 0
	for i := range spans {
		floats, hists = floats+len(spans[i].run.Times), hists+len(spans[i].run.Hists)
	}
	out := Run{StampLo: spans[0].run.StampLo}
	out.grow(floats, hists)
	for i := range spans {
		r := &spans[i].run
		out.Times, out.Values = append(out.Times, r.Times...), append(out.Values, r.Values...)
		out.Hists = append(out.Hists, r.Hists...)
		out.StampLo, out.StampHi = min(out.StampLo, r.StampLo), max(out.StampHi, r.StampHi)
	}
	return out
}

// Merger merges the runs of one series after the other, as Merge does, but the results may share columns of times with
// each other: series that were written together have the same times, and a column is then joined once. For one
// goroutine; the zero Merger is ready.
type Merger struct {
	joins []joined // newest last
}

// joined is the result of joining columns of times. A flush in the middle of a scrape makes two kinds of neighbours.
type joined struct {
	parts [][]point.Nanos
	times []point.Nanos
}

// joinsMax bounds the comparisons of find: neighbours have one or two kinds of columns, and a query's page some more.
const joinsMax = 8

// Merge is like the function of that name, but the times of the result are read only, and its values may be those of the first run,
// with the others' behind them in its room. So runs that have room are merged once.
func (m *Merger) Merge(runs []Run) Run {
	if len(runs) < 2 {
		return Merge(runs)
	}
	times := m.find(runs)
	if times == nil {
		out := Merge(runs)
		m.remember(runs, &out)
		return out
	}
	return m.append(times, runs)
}

// append appends the values of runs that have these times together.
func (m *Merger) append(times []point.Nanos, runs []Run) Run {
	out := Run{Times: times, Values: runs[0].Values, StampLo: runs[0].StampLo, StampHi: runs[0].StampHi, spare: runs[0].spare}
	into := out.Extend(len(times)-len(out.Values), 0)
	for i := 1; i < len(runs); i++ {
		r := &runs[i]
		into = into[copy(into, r.Values):]
		out.StampLo, out.StampHi = min(out.StampLo, r.StampLo), max(out.StampHi, r.StampHi)
	}
	return out
}

// find returns the joined times of such runs, of floats alone; nil if they were not joined lately.
func (m *Merger) find(runs []Run) []point.Nanos {
	for i := len(m.joins) - 1; i >= 0; i-- {
		if follows(runs, m.joins[i].parts) {
			return m.joins[i].times
		}
	}
	return nil
}

func follows(runs []Run, parts [][]point.Nanos) bool {
	if len(runs) != len(parts) {
		return false
	}
	for i := range runs {
		if len(runs[i].Times) != len(parts[i]) || len(runs[i].Hists) > 0 {
			return false
		}
	}
	for i := range runs {
		if !sameTimes(runs[i].Times, parts[i]) {
			return false
		}
	}
	return true
}

// sameTimes compares addresses first: columns that are shared, as most are, cost nothing.
func sameTimes(a, b []point.Nanos) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// remember keeps the columns of runs that were only joined, in the order in which they came. If the result equals that of other columns, both share it.
func (m *Merger) remember(runs []Run, out *Run) {
	if len(out.Hists) > 0 {
		return
	}
	var parts [][]point.Nanos
	for i := range runs {
		r := &runs[i]
		if len(r.Times) == 0 || len(r.Hists) > 0 || i > 0 && r.Times[0] <= runs[i-1].Times[len(runs[i-1].Times)-1] {
			return
		}
		parts = append(parts, r.Times)
	}
	out.Times = m.keep(parts, slices.Clip(out.Times))
}

// keep remembers what columns are when they are joined, and returns that, or an equal column that is remembered.
func (m *Merger) keep(parts [][]point.Nanos, times []point.Nanos) []point.Nanos {
	for _, j := range m.joins {
		if sameTimes(j.times, times) {
			times = j.times
			break
		}
	}
	if len(m.joins) == joinsMax {
		m.joins = slices.Delete(m.joins, 0, 1)
	}
	m.joins = append(m.joins, joined{parts, times})
	return times
}

// grow allocates memory for that many rows; the run is new.
func (r *Run) grow(floats, hists int) {
	if floats > 0 {
		r.Times, r.Values = make([]point.Nanos, 0, floats), make([]float64, 0, floats)
	}
	if hists > 0 {
		r.Hists = make([]peer.Hist, 0, hists)
	}
}

// merge2 merges two runs of which one ranks above the other, or both the same, by their highest stamps.
func merge2(a, b *Run) Run {
	out := Run{StampLo: min(a.StampLo, b.StampLo), StampHi: max(a.StampHi, b.StampHi)}
	out.grow(len(a.Times)+len(b.Times), len(a.Hists)+len(b.Hists))
	mergeFloats(&out, a, b)
	mergeHists(&out, a, b)
	if len(out.Times) > 0 && len(out.Hists) > 0 {
		out.choose(a, b)
	}
	return out
}

// mergeFloats copies the rows before and after the overlap whole: late rows overlap a little more often than a lot.
func mergeFloats(out, a, b *Run) {
	i, j := 0, 0
	if len(a.Times) > 0 && len(b.Times) > 0 {
		i = sort.Search(len(a.Times), func(k int) bool { return a.Times[k] >= b.Times[0] })
		j = sort.Search(len(b.Times), func(k int) bool { return b.Times[k] >= a.Times[0] }) // one of them is 0
	}
	out.addFloats(a, 0, i)
	out.addFloats(b, 0, j)
	n := len(out.Times)
	// grow made room for both runs, so that the loop writes by index, without append's checks.
	times, values := out.Times[:cap(out.Times)], out.Values[:cap(out.Values)]
	for ; i < len(a.Times) && j < len(b.Times); n++ {
		switch ta, tb := a.Times[i], b.Times[j]; {
		case ta < tb:
			times[n], values[n] = ta, a.Values[i]
			i++
		case tb < ta:
			times[n], values[n] = tb, b.Values[j]
			j++
		default:
			times[n], values[n] = ta, a.Values[i]
			if Beats(b.Values[j], b.StampHi, a.Values[i], a.StampHi) {
				values[n] = b.Values[j]
			}
			i, j = i+1, j+1
		}
	}
	out.Times, out.Values = times[:n], values[:n]
	out.addFloats(a, i, len(a.Times))
	out.addFloats(b, j, len(b.Times))
}

func (r *Run) addFloats(from *Run, i, j int) {
	r.Times, r.Values = append(r.Times, from.Times[i:j]...), append(r.Values, from.Values[i:j]...)
}

func mergeHists(out, a, b *Run) {
	i, j := 0, 0
	for i < len(a.Hists) && j < len(b.Hists) {
		switch ha, hb := &a.Hists[i], &b.Hists[j]; {
		case ha.Time < hb.Time:
			out.Hists = append(out.Hists, *ha)
			i++
		case hb.Time < ha.Time:
			out.Hists = append(out.Hists, *hb)
			j++
		default:
			if BeatsHist(hb.H, b.StampHi, ha.H, a.StampHi) {
				ha = hb
			}
			out.Hists = append(out.Hists, *ha)
			i, j = i+1, j+1
		}
	}
	out.Hists = append(append(out.Hists, a.Hists[i:]...), b.Hists[j:]...)
}

// choose settles the times at which r, merged of a and b, has both a float and a histogram. A run has no time twice, so
// one of the two is a's and the other b's.
func (r *Run) choose(a, b *Run) {
	f, h, fs, hs, i := 0, 0, 0, 0, 0 // read and kept, of floats and histograms; place in a.Hists
	for f < len(r.Times) && h < len(r.Hists) {
		t := min(r.Times[f], r.Hists[h].Time)
		hasFloat, hasHist := r.Times[f] == t, r.Hists[h].Time == t
		keepFloat := hasFloat
		if hasFloat && hasHist {
			for i < len(a.Hists) && a.Hists[i].Time < t {
				i++
			}
			if i < len(a.Hists) && a.Hists[i].Time == t {
				keepFloat = floatBeatsHist(r.Values[f], b.StampHi, r.Hists[h].H, a.StampHi)
			} else {
				keepFloat = floatBeatsHist(r.Values[f], a.StampHi, r.Hists[h].H, b.StampHi)
			}
		}
		if keepFloat {
			r.Times[fs], r.Values[fs] = r.Times[f], r.Values[f]
			fs++
		} else {
			r.Hists[hs] = r.Hists[h]
			hs++
		}
		if hasFloat {
			f++
		}
		if hasHist {
			h++
		}
	}
	n := copy(r.Times[fs:], r.Times[f:])
	copy(r.Values[fs:], r.Values[f:])
	r.Times, r.Values = r.Times[:fs+n], r.Values[:fs+n]
	n = copy(r.Hists[hs:], r.Hists[h:])
	clear(r.Hists[hs+n:]) // do not keep the losers alive
	r.Hists = r.Hists[:hs+n]
}
