package limits

import (
	"cmp"
	"slices"
	"time"
)

// Of each table the rates of the last half hour are kept, one point every historyPeriod: some 3 KB. Tables that were not
// in use meanwhile have none, dropped ones among them, and beyond historyTablesMax tables the others have none.
const (
	historyPeriod    = 2 * viewPeriod
	historyPoints    = 180
	historyTablesMax = 1000
)

// history is a ring of points. Guarded by the registry's lock.
type history struct {
	points [historyPoints]moment
	begun  int64 // of historyPeriod since 1970: the first point there is
	used   int64 // the newest point that is not zero
}

// moment is the rates at one moment.
type moment struct{ samples, queries, refused, newSeries float32 }

func (r *rates) moment() moment {
	p := moment{samples: float32(r.Samples), queries: float32(r.Queries), newSeries: float32(r.NewSeries)}
	for l := range limitsNum {
		p.refused += float32(r.Refused[enforced][l])
	}
	return p
}

// remember puts a point into a table's history at the number of a period.
func (v *view) remember(n int64, r *Registry) {
	p := v.rates.moment()
	if v.history == nil {
		if p == (moment{}) || r.mu.histories >= historyTablesMax {
			return
		}
		v.history = &history{begun: n}
		r.mu.histories++
	}
	switch {
	case p != (moment{}):
		v.history.used = n
	case n-v.history.used >= historyPoints:
		v.history = nil
		r.mu.histories--
		return
	}
	v.history.points[n%historyPoints] = p
}

// Rates are those of a table over time.
type Rates struct {
	Table     string    `json:"table"`
	Samples   []float32 `json:"samplesPerSecond"`
	Queries   []float32 `json:"queriesPerSecond"`
	Refused   []float32 `json:"refusedPerSecond"`
	NewSeries []float32 `json:"newSeriesPerSecond"`
}

// History is the rates of tables over the same times.
type History struct {
	Times  []int64 `json:"times"` // Unix seconds, rising
	Tables []Rates `json:"tables"`
}

// History gives the rates of the tables that shown names: those of the last half hour, or since the start if that is later.
func (r *Registry) History(shown func(table string) bool) History {
	out := History{Times: []int64{}, Tables: []Rates{}}
	if r == nil {
		return out
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	last := r.mu.period
	if last == 0 {
		return out
	}
	first := max(last-historyPoints+1, r.mu.firstPeriod)
	for n := first; n <= last; n++ {
		out.Times = append(out.Times, n*int64(historyPeriod/time.Second))
	}
	for _, t := range r.mu.tables {
		if h := t.view.history; h != nil && shown(t.name) {
			out.Tables = append(out.Tables, h.rates(t.name, first, last))
		}
	}
	slices.SortFunc(out.Tables, func(a, b Rates) int { return cmp.Compare(a.Table, b.Table) })
	return out
}

func (h *history) rates(table string, first, last int64) Rates {
	out := Rates{Table: table}
	for n := first; n <= last; n++ {
		var p moment // before it was begun the rates were 0
		if n >= h.begun {
			p = h.points[n%historyPoints]
		}
		out.Samples, out.Queries = append(out.Samples, p.samples), append(out.Queries, p.queries)
		out.Refused, out.NewSeries = append(out.Refused, p.refused), append(out.NewSeries, p.newSeries)
	}
	return out
}
