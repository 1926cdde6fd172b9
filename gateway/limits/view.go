package limits

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// view is the part of a table's state that is shown. Guarded by the registry's lock.
type view struct {
	seen  numbers // when rates were last worked out
	rates rates
	shown shown

	history *history // nil: nothing happened yet

	gone bool // it did not exist at the last look
}

// numbers are the counters of a table at one moment.
type numbers struct {
	samples, bytes, series, queries, requests int64
	refused, refusedSamples                   [modes][limitsNum]int64
}

func (c *counts) read() (n numbers) {
	n = numbers{samples: c.samples.Load(), bytes: c.bytes.Load(), series: c.series.Load(), queries: c.queries.Load(), requests: c.requests.Load()}
	for m := range modes {
		for l := range limitsNum {
			n.refused[m][l] = c.refused[m][l].Load()
			n.refusedSamples[m][l] = c.refusedSamples[m][l].Load()
		}
	}
	return n
}

func (n *numbers) add(from, to *numbers) {
	n.samples += to.samples - from.samples
	n.bytes += to.bytes - from.bytes
	n.series += to.series - from.series
	n.queries += to.queries - from.queries
	n.requests += to.requests - from.requests
	for m := range modes {
		for l := range limitsNum {
			n.refused[m][l] += to.refused[m][l] - from.refused[m][l]
			n.refusedSamples[m][l] += to.refusedSamples[m][l] - from.refusedSamples[m][l]
		}
	}
}

// rates are those of a table, by the second, smoothed.
type rates struct {
	Samples, Bytes, NewSeries, Queries, Requests float64
	Refused                                      [modes][limitsNum]float64
}

// rateAge is the time by which an old rate is forgotten to a third.
const rateAge = 15 * time.Second

func (r *rates) update(was, is *numbers, d time.Duration) {
	keep := math.Exp(-d.Seconds() / rateAge.Seconds())
	smooth := func(at *float64, from, to int64) {
		if *at = *at*keep + float64(to-from)/d.Seconds()*(1-keep); *at < 1e-3 {
			*at = 0
		}
	}
	smooth(&r.Samples, was.samples, is.samples)
	smooth(&r.Bytes, was.bytes, is.bytes)
	smooth(&r.NewSeries, was.series, is.series)
	smooth(&r.Queries, was.queries, is.queries)
	smooth(&r.Requests, was.requests, is.requests)
	for m := range modes {
		for l := range limitsNum {
			smooth(&r.Refused[m][l], was.refused[m][l], is.refused[m][l])
		}
	}
}

// look works out rates.
func (r *Registry) look(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := now.Sub(r.mu.viewed)
	first := r.mu.viewed.IsZero()
	if !first && d < viewPeriod/2 {
		return // ticks that were late come close together
	}
	r.mu.viewed = now
	r.mu.period = now.Unix() / int64(historyPeriod/time.Second)
	if r.mu.firstPeriod == 0 {
		r.mu.firstPeriod = r.mu.period
	}
	for _, t := range r.mu.tables {
		if r.isGoneLocked(t) {
			r.freeLocked(t)
			continue
		}
		is := t.counts.read()
		if !first {
			t.view.rates.update(&t.view.seen, &is, d)
			t.view.remember(r.mu.period, r)
		}
		t.view.seen = is
	}
}

// isGoneLocked reports whether a table does not exist, now and at the look before, and nothing uses its state.
func (r *Registry) isGoneLocked(t *Table) bool {
	was := t.view.gone
	t.view.gone = r.exists != nil && !r.exists(t.name) && (r.held == nil || !r.held(t.name)) && t.requests.Load() == 0 && t.queries.running.Load() == 0
	return was && t.view.gone
}

// freeLocked removes a table's state. Its counts without a label of their own stay.
func (r *Registry) freeLocked(t *Table) {
	if !t.view.shown.own {
		is := t.counts.read()
		r.mu.other.add(&t.view.shown.counted, &is)
	}
	if t.view.history != nil {
		r.mu.histories--
	}
	delete(r.mu.tables, t.name)
}

// TableUse is a table's use of the gateway, for people and programs that look.
type TableUse struct {
	Table              string             `json:"table"`
	SamplesPerSecond   float64            `json:"samplesPerSecond"`
	BytesPerSecond     float64            `json:"bytesPerSecond"`
	ActiveSeries       int64              `json:"activeSeries"`
	NewSeriesPerSecond float64            `json:"newSeriesPerSecond"`
	QueriesPerSecond   float64            `json:"queriesPerSecond"`
	QueriesRunning     int64              `json:"queriesRunning"`
	RequestsUnderWay   int64              `json:"requestsUnderWay"`
	DryRun             bool               `json:"dryRun,omitempty"`
	RefusedPerSecond   map[string]float64 `json:"refusedPerSecond"` // by limit
	WouldRefuse        map[string]float64 `json:"wouldRefusePerSecond,omitempty"`

	Samples int64            `json:"samples"`
	Bytes   int64            `json:"bytes"`
	Queries int64            `json:"queries"`
	Refused map[string]int64 `json:"refused"` // since the start, by limit: requests, series and queries
	// RefusedSamples counts only refusals with a known number of samples.
	RefusedSamples map[string]int64 `json:"refusedSamples"`
	Near           []Use            `json:"near"` // limits of which most is used
	Uses           []Use            `json:"uses"` // all limits of rates, series and queries that are set, the nearest first
}

// Use is how much of a limit is used.
type Use struct {
	Limit string  `json:"limit"`
	Value float64 `json:"value"`
	Max   float64 `json:"max"`
	Used  float64 `json:"used"` // share of Max
	// DryRun: nothing is refused at the limit.
	DryRun bool `json:"dryRun,omitempty"`
}

// nearShare is from which share on a limit counts as near.
const nearShare = 0.8

// TopOf lists at most n of the tables that shown names (0: all), the largest first: by samples accepted, then by samples refused.
func (r *Registry) TopOf(n int, shown func(table string) bool) []TableUse {
	if r == nil {
		return []TableUse{}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := slices.SortedFunc(maps.Values(r.mu.tables), func(a, b *Table) int {
		return cmp.Or(cmp.Compare(b.view.rates.weight(), a.view.rates.weight()), cmp.Compare(a.name, b.name))
	})
	all = slices.DeleteFunc(all, func(t *Table) bool { return !shown(t.name) })
	if n > 0 && len(all) > n {
		all = all[:n]
	}
	out := make([]TableUse, len(all))
	for i, t := range all {
		out[i] = t.useLocked()
	}
	return out
}

// weight orders tables: samples, and those that were asked for and refused.
func (r *rates) weight() float64 {
	w := r.Samples + r.Queries
	for l := range limitsNum {
		w += r.Refused[enforced][l]
	}
	return w
}

func (t *Table) useLocked() TableUse {
	is, v, rs := t.counts.read(), t.Values(), &t.view.rates
	u := TableUse{
		Table: t.name, SamplesPerSecond: rs.Samples, BytesPerSecond: rs.Bytes, ActiveSeries: t.series.Load(),
		NewSeriesPerSecond: rs.NewSeries, QueriesPerSecond: rs.Queries, QueriesRunning: t.queries.running.Load(),
		RequestsUnderWay: t.requests.Load(), DryRun: v.DryRun, RefusedPerSecond: map[string]float64{}, WouldRefuse: map[string]float64{},
		Samples: is.samples, Bytes: is.bytes, Queries: is.queries, Refused: map[string]int64{}, RefusedSamples: map[string]int64{}, Near: []Use{},
	}
	for l := range limitsNum {
		for m, to := range [modes]map[string]float64{u.RefusedPerSecond, u.WouldRefuse} {
			if at := rs.Refused[m][l]; at > 0 {
				to[l.String()] = at
			}
		}
		if n := is.refused[enforced][l]; n > 0 {
			u.Refused[l.String()] = n
		}
		if n := is.refusedSamples[enforced][l]; n > 0 {
			u.RefusedSamples[l.String()] = n
		}
	}
	u.Uses = t.usesLocked()
	for _, use := range u.Uses {
		if use.Used >= nearShare {
			u.Near = append(u.Near, use)
		}
	}
	return u
}

// Uses says how much of each limit of a table is used, the nearest first.
func (r *Registry) Uses(table string) []Use {
	t := r.Known(table)
	if t == nil {
		return []Use{}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return t.usesLocked()
}

func (t *Table) usesLocked() []Use {
	v, rs, uses := t.Values(), &t.view.rates, []Use{}
	for _, u := range []struct {
		limit Limit
		value float64
		max   int64
	}{
		{SamplesPerSecond, rs.Samples, int64(v.SamplesPerSecond)},
		{BytesPerSecond, rs.Bytes, int64(v.BytesPerSecond)},
		{RequestConcurrency, float64(t.requests.Load()), int64(v.RequestConcurrency)},
		{ActiveSeries, float64(t.series.Load()), int64(v.ActiveSeries)},
		{NewSeriesPerSecond, rs.NewSeries, int64(v.NewSeriesPerSecond)},
		{QueryConcurrency, float64(t.queries.running.Load()), int64(v.QueryConcurrency)},
	} {
		if u.max > 0 {
			uses = append(uses, Use{Limit: u.limit.String(), Value: u.value, Max: float64(u.max), Used: u.value / float64(u.max), DryRun: v.DryRun})
		}
	}
	slices.SortStableFunc(uses, func(a, b Use) int { return cmp.Compare(b.Used, a.Used) })
	return uses
}
