package partition

import (
	"context"
	"sort"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/series"
)

// A successor gets the rows of the one that unloads while writers overwrite some of them here, at higher ranks. The rank of an old row in
// a segment may be known by chunk alone: it would win against a newer row of its time in an older segment. So a row that is here already, with its rank or a higher one, is not
// added again:
//
//	x=1, rank 5, of the parent ──▶ x=2, rank 9, is in a segment: left out
//
// What is compared are the rows in segments and heads at one moment, and what is added goes into the newest of these heads, in which ranks are exact.

// missing returns the rows that the partition lacks, and the head that they may be added to. Rows that are left out are as safe as the level demands. The result shares
// columns with r, which is unchanged.
func (p *Partition) missing(r *Rows) (*Rows, *headRef, error) {
	waits := r.Waits
	if waits == nil {
		waits = func() {}
	}
	if err := p.ready(waits); err != nil {
		return nil, nil, err
	}
	v, err := p.View()
	if err != nil {
		return nil, nil, err
	}
	if v == nil {
		return nil, nil, p.gone()
	}
	defer v.Close()
	if !v.warm { // it cooled since: its series are not known by their refs
		return nil, nil, errCold
	}
	kept, err := p.lacking(v, r)
	return kept, v.heads[len(v.heads)-1], err
}

// lacking returns the rows that a view does not have.
func (p *Partition) lacking(v *View, r *Rows) (*Rows, error) {
	here, err := p.rowsOf(v, r)
	if err != nil {
		return nil, err
	}
	kept := here.without(r)
	if len(kept.Refs)+len(kept.Hists)+len(kept.Exemplars) == len(r.Refs)+len(r.Hists)+len(r.Exemplars) {
		return r, nil
	}
	last, wait, chain := p.newest()
	return kept, p.settled(r.Level, last, wait, chain)
}

// newest returns the newest frame. A view shows rows of other servers that came after it, so those that are left out may be in any frame up to here, and in one that is being applied.
func (p *Partition) newest() (point.Serial, brick.Wait, Followers) {
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.last, p.mu.wait, p.mu.chain
}

// settled waits until the frames up to last are as safe as a level demands.
func (p *Partition) settled(level point.Level, last point.Serial, wait brick.Wait, chain Followers) error {
	if level == point.Received || last == (point.Serial{}) {
		return nil
	}
	if chain != nil && level == point.All {
		return chain.Await(context.Background(), last)
	}
	return wait.Wait()
}

// known are the rows of some series at the times of an insert.
type known struct {
	rows      map[series.Ref]rows.Run
	exemplars map[series.Ref][]point.ExemplarRow
}

// rowsOf reads the rows that a view has of the series of r at its times.
// A series that the partition does not have yet has no rows, and is left out of the read. Rows in heads and segments both count.
func (p *Partition) rowsOf(v *View, r *Rows) (known, error) {
	k := known{rows: map[series.Ref]rows.Run{}, exemplars: map[series.Ref][]point.ExemplarRow{}}
	lo, hi := bounds(r)
	var ss []Series
	met := map[series.Ref]bool{}
	add := func(ref series.Ref) {
		if met[ref] {
			return
		}
		met[ref] = true
		l := p.deps.Index.Labels(ref)
		id, ok := v.ids.dense.Get(ref)
		if !ok && v.ids.quiet != nil {
			id, ok = v.ids.quiet.find(l)
		}
		if ok {
			ss = append(ss, Series{ID: id, Ref: ref, Known: true, Labels: l})
		}
	}
	for _, refs := range [][]series.Ref{r.Refs, r.HistRefs, r.ExemplarRefs} {
		for _, ref := range refs {
			add(ref)
		}
	}
	err := v.ReadRanked(ss, lo, hi, func(i int, run rows.Run) error {
		k.rows[ss[i].Ref] = run
		return nil
	})
	if err != nil || len(r.Exemplars) == 0 {
		return k, err
	}
	return k, v.Exemplars(ss, lo, hi, func(i int, ex []point.ExemplarRow) error {
		k.exemplars[ss[i].Ref] = ex
		return nil
	})
}

// bounds are the first and last time of an insert.
// One range serves all series: foreign rows of one insert lie near each other.
func bounds(r *Rows) (lo, hi point.Nanos) {
	first := true
	take := func(t point.Nanos) {
		if first || t < lo {
			lo = t
		}
		if first || t > hi {
			hi = t
		}
		first = false
	}
	for _, t := range r.Times {
		take(t)
	}
	for i := range r.Hists {
		take(r.Hists[i].Time)
	}
	for i := range r.Exemplars {
		take(r.Exemplars[i].Time)
	}
	return lo, hi
}

// without leaves out the rows that are known with their rank or a higher one.
// r itself is not changed: the caller counts its rows. The result shares its histograms and labels.
func (k *known) without(r *Rows) *Rows {
	kept := *r
	kept.Refs, kept.Times, kept.Values, kept.HistRefs, kept.Hists, kept.ExemplarRefs, kept.Exemplars = nil, nil, nil, nil, nil, nil, nil
	for i, ref := range r.Refs {
		if run := k.rows[ref]; !has(&run, r.Times[i], r.Stamp) {
			kept.Refs, kept.Times, kept.Values = append(kept.Refs, ref), append(kept.Times, r.Times[i]), append(kept.Values, r.Values[i])
		}
	}
	for i, ref := range r.HistRefs {
		if run := k.rows[ref]; !has(&run, r.Hists[i].Time, r.Stamp) {
			kept.HistRefs, kept.Hists = append(kept.HistRefs, ref), append(kept.Hists, r.Hists[i])
		}
	}
	for i, ref := range r.ExemplarRefs {
		e := &r.Exemplars[i]
		at := k.exemplars[ref]
		if n := sort.Search(len(at), func(j int) bool { return at[j].Compare(*e) >= 0 }); n == len(at) || at[n].Compare(*e) != 0 {
			kept.ExemplarRefs, kept.Exemplars = append(kept.ExemplarRefs, ref), append(kept.Exemplars, *e)
		}
	}
	return &kept
}

// has reports whether a run has a row of a time with a rank or a higher one.
func has(run *rows.Run, t point.Nanos, rank point.Stamp) bool {
	if i := sort.Search(len(run.Times), func(i int) bool { return run.Times[i] >= t }); i < len(run.Times) && run.Times[i] == t {
		return run.Ranks[i] >= rank
	}
	i := sort.Search(len(run.Hists), func(i int) bool { return run.Hists[i].Time >= t })
	return i < len(run.Hists) && run.Hists[i].Time == t && run.HistRanks[i] >= rank
}
