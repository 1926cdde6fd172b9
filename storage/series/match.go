package series

import (
	"slices"
	"strings"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"
)

// Check is called now and then during a look-up in an index, with the bytes by which the answer has grown since the
// last call; negative: memory is given back, without an error. Its error ends the look-up, which returns it.
type Check func(bytes int64) error

// checkEvery is how many values or series are looked at between two checks. A costly regular expression needs
// milliseconds for each.
const checkEvery = 64

// MatchChecked gives the series for which all matchers hold, as Prometheus defines it: an absent label is "", regular expressions are anchored at
// both ends. No matcher gives every series. The bitmap is the caller's. Its refs mean the matched series as long as references on them or a
// Pin acquired before are held. check can end it.
func (x *Index) MatchChecked(ms []*labels.Matcher, check Check) (*roaring.Bitmap, error) {
	pin := x.Pin()
	defer pin.Unpin()
	x.catchUp()
	q := plan(ms)
	b, sweeps := x.begin(q.exact)
	for _, m := range q.open {
		var err error
		if b, err = x.keep(b, m, check); err != nil {
			return nil, err
		}
	}
	if b == nil {
		b, sweeps = x.everything()
	}
	for _, m := range q.without {
		if err := x.drop(b, m, check); err != nil {
			return nil, err
		}
	}
	x.dropFreed(b, sweeps)
	return b, check(0)
}

// query is a set of matchers by how they are evaluated. Those that "" satisfies cannot use postings to find series,
// because postings list only series that have the label: they remove series.
type query struct {
	exact   []term            // one of few values
	open    []*labels.Matcher // not satisfied by ""
	without []*labels.Matcher // satisfied by ""
}

// term is a matcher that lists its values.
type term struct {
	name   string
	values []string
}

func plan(ms []*labels.Matcher) (q query) {
	for _, m := range ms {
		switch values := m.SetMatches(); {
		case m.Matches(""):
			if !matchesAll(m) {
				q.without = append(q.without, m)
			}
		case m.Type == labels.MatchEqual:
			q.exact = append(q.exact, term{m.Name, []string{m.Value}})
		case m.Type == labels.MatchRegexp && len(values) > 0:
			q.exact = append(q.exact, term{m.Name, values})
		default:
			q.open = append(q.open, m)
		}
	}
	return q
}

// matchesAll recognises the usual forms of "any value or none".
func matchesAll(m *labels.Matcher) bool {
	return m.Type == labels.MatchRegexp && (m.Value == ".*" || m.Value == "^.*$" || m.Value == "(.*)")
}

// matchesPresent recognises the usual forms of "any value".
func matchesPresent(m *labels.Matcher) bool {
	return m.Type == labels.MatchNotEqual && m.Value == "" || m.Type == labels.MatchRegexp && m.Value == ".+" ||
		m.Type == labels.MatchNotRegexp && m.Value == ""
}

// begin intersects the terms, the smallest first; nil if there are none. The size of a term is the sum of those of its values, so an empty term ends the search before any bitmap is made.
// The number of sweeps is read under the same lock: a later sweep may free refs that were found, and dropFreed removes those.
func (x *Index) begin(terms []term) (*roaring.Bitmap, uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(terms) == 0 {
		return nil, x.mu.sweeps
	}
	type operand struct {
		pairs []*value
		size  int
	}
	operands := make([]operand, len(terms))
	for i, t := range terms {
		for _, v := range t.values {
			if pair := x.mu.find(t.name, v); pair != nil {
				operands[i].pairs = append(operands[i].pairs, pair)
				operands[i].size += pair.len()
			}
		}
		if operands[i].size == 0 {
			return roaring.New(), x.mu.sweeps
		}
	}
	slices.SortFunc(operands, func(a, b operand) int { return a.size - b.size })
	b := union(operands[0].pairs)
	for _, o := range operands[1:] {
		if b.IsEmpty() {
			break
		}
		if len(o.pairs) == 1 {
			o.pairs[0].and(b)
		} else {
			b.And(union(o.pairs))
		}
	}
	return b, x.mu.sweeps
}

func union(pairs []*value) *roaring.Bitmap {
	b := roaring.New()
	for _, p := range pairs {
		p.or(b)
	}
	return b
}

func (x *Index) everything() (*roaring.Bitmap, uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.mu.all.Clone(), x.mu.sweeps
}

// keep leaves in b, or makes if b is nil, the series that have the label with a value that satisfies m.
func (x *Index) keep(b *roaring.Bitmap, m *labels.Matcher, check Check) (*roaring.Bitmap, error) {
	list := x.values(m.Name)
	if b != nil && filterIsCheaper(b, len(list)) {
		return x.filter(b, m, check)
	}
	found, err := x.gather(list, m, true, check)
	if b == nil || err != nil {
		return found, err
	}
	b.And(found)
	return b, nil
}

// drop removes from b the series that have the label with a value that does not satisfy m.
func (x *Index) drop(b *roaring.Bitmap, m *labels.Matcher, check Check) error {
	if few, ok := refusedValues(m); ok {
		x.mu.RLock()
		defer x.mu.RUnlock()
		for _, v := range few {
			if pair := x.mu.find(m.Name, v); pair != nil {
				pair.andNot(b)
			}
		}
		return nil
	}
	list := x.values(m.Name)
	if filterIsCheaper(b, len(list)) {
		kept, err := x.filter(b, m, check)
		if err == nil {
			b.And(kept)
		}
		return err
	}
	refused, err := x.gather(list, m, false, check)
	if err == nil {
		b.AndNot(refused)
	}
	return err
}

// refusedValues lists the values that m refuses, if they can be listed.
func refusedValues(m *labels.Matcher) ([]string, bool) {
	switch m.Type {
	case labels.MatchNotEqual:
		return []string{m.Value}, true
	case labels.MatchNotRegexp:
		values := m.SetMatches()
		return values, len(values) > 0
	}
	return nil, false
}

// filterIsCheaper weighs reading the labels of each series in b (about 250 ns, mostly waiting for memory) against
// looking at each value and gathering the series of those that are accepted (about 60 ns).
func filterIsCheaper(b *roaring.Bitmap, values int) bool {
	return b.GetCardinality()*4 <= uint64(values)
}

// filter returns the series of b for which m accepts the label, "" if absent.
func (x *Index) filter(b *roaring.Bitmap, m *labels.Matcher, check Check) (*roaring.Bitmap, error) {
	kept := make([]uint32, 0, 64)
	n := 0
	for it := b.Iterator(); it.HasNext(); {
		ref := it.Next()
		if n++; n%checkEvery == 0 {
			if err := check(0); err != nil {
				return nil, err
			}
		}
		if m.Matches(x.Labels(Ref(ref)).Get(m.Name)) {
			kept = append(kept, ref)
		}
	}
	return roaring.BitmapOf(kept...), nil
}

// values gives the pairs of a name as they are now. The list may be read without a lock, the series in it may not.
func (x *Index) values(n string) []*value {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if of := x.mu.names[n]; of != nil {
		return of.list[:len(of.list):len(of.list)]
	}
	return nil
}

// gatherSection bounds the pairs that are gathered under one lock, so that new series wait for microseconds.
const gatherSection = 1024

// gather gives the series of those pairs of list that m accepts, or refuses if accept is false. Expressions are
// evaluated without the lock.
func (x *Index) gather(list []*value, m *labels.Matcher, accept bool, check Check) (*roaring.Bitmap, error) {
	b := roaring.New()
	section := make([]*value, 0, min(len(list), gatherSection))
	flush := func() {
		x.mu.RLock()
		defer x.mu.RUnlock()
		for _, pair := range section {
			pair.or(b)
		}
		section = section[:0]
	}
	any, prefix := accept && matchesPresent(m), ""
	if m.Type == labels.MatchRegexp {
		prefix = m.Prefix()
	}
	for i, pair := range list {
		if i%checkEvery == 0 {
			if err := check(0); err != nil {
				return nil, err
			}
		}
		if !any && (strings.HasPrefix(pair.text, prefix) && m.Matches(pair.text)) != accept {
			continue
		}
		if section = append(section, pair); len(section) == cap(section) {
			flush()
		}
	}
	flush()
	return b, nil
}

// dropFreed removes the series that a sweep freed during the Match: they left the postings between two looks at these,
// so they can seem to lack a label. No other series can have got their refs: Match holds a Pin.
func (x *Index) dropFreed(b *roaring.Bitmap, sweeps uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.mu.sweeps != sweeps {
		b.And(x.mu.all)
	}
}
