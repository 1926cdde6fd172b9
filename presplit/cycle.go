package presplit

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// A load that goes on and off within the hour has no level: each change would cut all partitions to come again, for minutes. Where partitions are as wide as a cycle, they get its mean,
// which does not change. A forecast carries both, and Plan.Suited chooses.

const (
	// turnsMin is how often a load must have turned up or down in the minutes that are known: two outages are not yet a cycle.
	turnsMin = 5
	// swingMin is how far from the middle between high and low both must be, as a share of that middle; turnAt the share of it that a rate must pass to have turned.
	swingMin = 0.25
	turnAt   = 1.0 / 3
	// swingTail is the share of minutes above high, and below low.
	swingTail = 0.03
	// patience is how many of the longest cycles seen a load may stay as it is before it counts as steady again.
	patience = 1.5
)

// cycles are the turns of a load that goes up and down, as places in its rates, newest first. Those with an even index are all up, or all down.
type cycles []int

// cyclesOf finds them; nil: the load does not go up and down. Rates are of known minutes, newest first.
func cyclesOf(rates []float64) cycles {
	if len(rates) < 4*newestFew {
		return nil
	}
	sorted := slices.Clone(rates)
	slices.Sort(sorted)
	tail := int(swingTail * float64(len(sorted)))
	low, high := sorted[tail], sorted[len(sorted)-1-tail]
	middle, swing := (high+low)/2, (high-low)/2
	if swing < swingMin*middle || middle <= 0 {
		return nil
	}
	var turns cycles
	was := 0
	for i, r := range rates {
		is := was
		switch {
		case r > middle+turnAt*swing:
			is = 1
		case r < middle-turnAt*swing:
			is = -1
		}
		if was != 0 && is != was {
			turns = append(turns, i)
		}
		was = is
	}
	if len(turns) < turnsMin || float64(turns[0]) > patience*float64(turns.longest()) {
		return nil
	}
	return turns
}

// longest is the length of the longest cycle, in minutes.
func (c cycles) longest() (n int) {
	for i := 2; i < len(c); i++ {
		n = max(n, c[i]-c[i-2])
	}
	return n
}

// whole are the places of the newest and the oldest turn of whole cycles, and how many these are.
func (c cycles) whole() (from, to, n int) {
	n = (len(c) - 1) / 2
	return c[0], c[2*n], n
}

// calm is the forecast of a load that goes up and down, by its mean over whole cycles and by past days over as long.
func (h *History) calm(now, until point.Nanos, c cycles) *Forecast {
	from, to, n := c.whole()
	cycle := point.Nanos(to-from) * fineWidth / point.Nanos(n)
	span := max((calmSpan+cycle/2)/cycle, 1) * cycle
	f := h.forecast(now, until, span)
	f.cycle = cycle
	rates, _ := h.minutes(&f)
	f.Level = mean(rates[from:to])
	return &f
}

// calmSpan is about the time over which the rates of past days are averaged.
const calmSpan = 120 * minute

// calmWidth is how much of a cycle a partition must cover to be laid out by the mean. Narrower ones would be much too large or too small.
const calmWidth = 0.75

// Suited is the forecast that the plan should go by: for a load that goes on and off, that of its mean, if a partition covers most of a cycle.
func (p Plan) Suited(f Forecast) Forecast {
	if c := f.calm; c != nil && p.Target >= calmWidth*c.Level*float64(c.cycle)/1e9 {
		return *c
	}
	return f
}
