package presplit

import (
	"math"

	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	// Fixed is how long before its time a partition is no longer cut again: servers begin to lead it a minute before, and a plan needs a while.
	Fixed = 2 * minute
	// Lead is how far ahead a partition that accepts rows is split: the times behind it can then still be cut.
	Lead = 2 * Fixed
	// WidthMin bounds how narrow partitions are made.
	WidthMin = point.Nanos(10e9)
)

// Plan is the target size of partitions and the bounds of their width.
type Plan struct {
	// Target is the size at which a partition should close, in bytes.
	Target float64
	// WidthMin and WidthMax bound the time that a partition covers.
	WidthMin, WidthMax point.Nanos
}

// Edges returns where partitions should end that lie behind one another from a time on, in order: all up to until, and the first behind it. The first
// of the partitions has filled bytes already. Edges are multiples of a round width, one that changes sizes by 4 % at most.
func (p Plan) Edges(f *Forecast, from, until point.Nanos, filled float64) []point.Nanos {
	var out []point.Nanos
	for from < until && len(out) < EdgesMax {
		edge := p.next(f, from, filled)
		out, from, filled = append(out, edge), edge, 0
	}
	return out
}

// EdgesMax bounds the edges of one plan.
const EdgesMax = 4096

// next is the end of a partition that begins at from.
func (p Plan) next(f *Forecast, from point.Nanos, filled float64) point.Nanos {
	least, last := from+p.WidthMin, from+p.WidthMax
	at := from
	for filled < p.Target && at < last {
		step := f.step(at, last) - at
		rate := f.Rate(at + step/2)
		if need := (p.Target - filled) / max(rate, math.SmallestNonzeroFloat64) * 1e9; need < float64(step) {
			at += point.Nanos(need)
			break
		}
		filled += rate * float64(step) / 1e9
		at += step
	}
	at = max(at, least)
	unit := round(max(at-from, p.WidthMin))
	edge := (at + unit/2) / unit * unit
	if edge < least {
		edge += unit
	}
	return min(edge, last)
}

// round is the largest round span of at most a twenty-fifth of a width.
func round(width point.Nanos) point.Nanos {
	unit := point.Nanos(1e9)
	for _, s := range [...]point.Nanos{2, 5, 10, 15, 30, 60, 120, 300, 600} {
		if s*1e9*25 > width {
			break
		}
		unit = s * 1e9
	}
	return unit
}

// Fitting counts the partitions, of those with these ends from a time on, that would close near the target, up to the first that would not. all: they reach
// until, or limit, behind which partitions cannot be changed; the last one before limit may be of any size below the target. A size that the bounds of the width
// rule out is not demanded. The further off a partition begins, the less its size has to fit: it can be cut again later.
func (p Plan) Fitting(f *Forecast, from point.Nanos, ends []point.Nanos, until, limit point.Nanos) (n int, all bool) {
	until = min(until, limit)
	for i, end := range ends {
		if from >= until {
			return i, true
		}
		size, slack := f.Bytes(from, end), tolerance(from-f.From)
		if size > p.Target*(1+slack) && end-from > p.WidthMin || size*(1+slack) < p.Target && end-from < p.WidthMax && end != limit {
			return i, false
		}
		from = end
	}
	return len(ends), from >= until
}

// tolerance is how far from the target the size of a partition may be that begins so much later: 8 % if at once, twice as much in 5 minutes, and
// so on, 50 % at most.
func tolerance(ahead point.Nanos) float64 {
	return min(0.08*(1+float64(max(ahead, 0))/float64(5*minute)), 0.5)
}

// Full returns when the partition that holds now should end, if it would grow to twice the target until its end: at the target, but not
// before earliest. A partition that accepts rows is cut by a split, which costs more than an edge to come: so small an error is left alone, and so
// is all that a short history shows.
func (p Plan) Full(f *Forecast, earliest, end point.Nanos, filled float64) (point.Nanos, bool) {
	if f.Short > 0 || earliest+p.WidthMin >= end || filled+f.Bytes(f.From, end) < 2*p.Target {
		return 0, false
	}
	at := p.next(f, f.From, filled)
	at = max(at, (earliest+1e9-1)/1e9*1e9)
	return at, at+p.WidthMin <= end
}
