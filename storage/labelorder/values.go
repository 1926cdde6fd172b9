package labelorder

import (
	"maps"
	"slices"
)

// Values gathers values of a label, of which the first Limit are wanted (0: all), each once.
type Values struct {
	Limit int

	set  map[string]struct{}
	last string // the last of the first Limit so far; "": there are not so many yet
}

// valuesSpare is how many values beyond the limit are gathered, at least, before they are left out.
const valuesSpare = 1024

// Add adds a value that is not "".
func (v *Values) Add(s string) {
	if v.last != "" && s > v.last {
		return
	}
	if v.set == nil {
		v.set = map[string]struct{}{}
	}
	v.set[s] = struct{}{}
	if v.Limit > 0 && len(v.set)-v.Limit >= max(v.Limit, valuesSpare) {
		all := slices.Sorted(maps.Keys(v.set))
		for _, s := range all[v.Limit:] {
			delete(v.set, s)
		}
		v.last = all[v.Limit-1]
	}
}

// Len is how many values are held: at most Limit and as many more, or valuesSpare.
func (v *Values) Len() int { return len(v.set) }

// Sorted returns the first Limit values.
func (v *Values) Sorted() []string {
	all := slices.Sorted(maps.Keys(v.set))
	if v.Limit > 0 && len(all) > v.Limit {
		all = slices.Clone(all[:v.Limit])
	}
	return all
}
