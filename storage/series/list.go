package series

import (
	"cmp"
	"maps"
	"slices"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/labelorder"
)

// LabelNamesChecked gives the names of the labels of the series in within, or of all if it is nil; sorted. The refs must be held
// by references or by a Pin. check can end it.
func (x *Index) LabelNamesChecked(within *roaring.Bitmap, check Check) ([]string, error) {
	x.catchUp()
	x.mu.RLock()
	all := slices.Collect(maps.Values(x.mu.names))
	x.mu.RUnlock()
	if within != nil {
		return x.namesWithin(within, all, check)
	}
	out := make([]string, len(all))
	for i, n := range all {
		out[i] = n.text
	}
	slices.Sort(out)
	return out, check(int64(len(out)) * listedBytes)
}

// namesWithin reads the labels if there are few series. For many it reads the postings, where mostly the first or
// second value of a name decides.
func (x *Index) namesWithin(within *roaring.Bitmap, all []*name, check Check) ([]string, error) {
	var out []string
	if within.GetCardinality() <= 1000 {
		seen := make(map[string]bool, len(all))
		for it := within.Iterator(); it.HasNext(); {
			x.Labels(Ref(it.Next())).Range(func(n, _ string) bool { seen[n] = true; return true })
		}
		return slices.Sorted(maps.Keys(seen)), nil
	}
	for _, n := range all {
		meets, err := x.anyMeets(x.values(n.text), within, check)
		if err != nil {
			return nil, err
		}
		if meets {
			out = append(out, n.text)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (x *Index) anyMeets(list []*value, within *roaring.Bitmap, check Check) (bool, error) {
	for section := range slices.Chunk(list, gatherSection) {
		if err := check(0); err != nil {
			return false, err
		}
		if x.sectionMeets(section, within) {
			return true, nil
		}
	}
	return false, nil
}

func (x *Index) sectionMeets(section []*value, within *roaring.Bitmap) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.ContainsFunc(section, func(v *value) bool { return v.meets(within) })
}

// The size of a value in a list, and in a set that is listed later.
const (
	listedBytes = 32
	seenBytes   = 100
)

// LabelValuesChecked gives the values that a label has among the series in within, or among all if it is nil; sorted, without
// "" for the series that lack it, the first limit of them (0: all). The refs must be held by references or by a Pin. check can end it.
func (x *Index) LabelValuesChecked(label string, within *roaring.Bitmap, limit int, check Check) ([]string, error) {
	x.catchUp()
	list := x.values(label)
	if within != nil && filterIsCheaper(within, len(list)) {
		return x.valuesOf(label, within, limit, check)
	}
	var out []string
	last := "" // the last of the first limit so far; "": there are not so many yet
	for section := range slices.Chunk(list, gatherSection) {
		before := len(out)
		out = x.appendTexts(out, section, within, last)
		if err := check(int64(len(out)-before) * listedBytes); err != nil {
			return nil, err
		}
		if limit > 0 && len(out)-limit >= max(limit, gatherSection) {
			before := len(out)
			out = firstOf(out, limit)
			if err := check(int64(len(out)-before) * listedBytes); err != nil {
				return nil, err
			}
			if len(out) == limit {
				last = out[limit-1]
			}
		}
	}
	return firstOf(out, limit), nil
}

// firstOf sorts values and returns the first limit (0: all). A value that went and came while we looked is listed twice.
func firstOf(values []string, limit int) []string {
	slices.Sort(values)
	values = slices.Compact(values)
	if limit > 0 && len(values) > limit {
		values = values[:limit]
	}
	return values
}

// appendTexts appends the values of a section that series in within have, or any series if it is nil; not those from last on, if it is not "".
func (x *Index) appendTexts(out []string, section []*value, within *roaring.Bitmap, last string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, v := range section {
		if v.len() > 0 && (last == "" || v.text < last) && (within == nil || v.meets(within)) {
			out = append(out, v.text)
		}
	}
	return out
}

// valuesOf reads the labels of each series.
func (x *Index) valuesOf(label string, within *roaring.Bitmap, limit int, check Check) ([]string, error) {
	seen, booked := labelorder.Values{Limit: limit}, 0
	for n, it := 1, within.Iterator(); it.HasNext(); n++ {
		if n%checkEvery == 0 {
			if err := check(0); err != nil {
				return nil, err
			}
		}
		if v := x.Labels(Ref(it.Next())).Get(label); v != "" {
			seen.Add(v)
		}
		if seen.Len()-booked > gatherSection {
			booked = seen.Len()
			if err := check(gatherSection * seenBytes); err != nil {
				return nil, err
			}
		}
	}
	return seen.Sorted(), check(0)
}

// Stats fills the figures of peer.Stats that follow from labels: Series, LabelPairs and the top lists, topN lines each, the
// largest first.
func (x *Index) Stats(topN int) peer.Stats {
	x.catchUp()
	x.mu.RLock()
	all := slices.Collect(maps.Values(x.mu.names))
	st := peer.Stats{Series: x.mu.all.GetCardinality()}
	x.mu.RUnlock()
	byName, byLabel, bytes, byPair := top{n: topN}, top{n: topN}, top{n: topN}, top{n: topN}
	for _, n := range all {
		var values, size uint64
		for section := range slices.Chunk(x.values(n.text), gatherSection) {
			x.mu.RLock()
			for _, v := range section {
				count := uint64(v.len())
				if count == 0 {
					continue
				}
				values++
				size += uint64(len(v.text))
				byPair.offerPair(n.text, v.text, count)
				if n.text == point.MetricName {
					byName.offer(v.text, count)
				}
			}
			x.mu.RUnlock()
		}
		if values > 0 {
			st.LabelPairs += values
			byLabel.offer(n.text, values)
			bytes.offer(n.text, size)
		}
	}
	st.SeriesByName, st.ValuesByLabel, st.BytesByLabel, st.SeriesByPair = byName.list, byLabel.list, bytes.list, byPair.list
	return st
}

// top keeps the n largest of the entries offered to it, the largest first, equal ones by name.
type top struct {
	n    int
	list []peer.NameCount
}

func (t *top) full(count uint64) bool {
	return t.n <= 0 || len(t.list) == t.n && count < t.list[t.n-1].Count
}

func (t *top) offerPair(n, v string, count uint64) {
	if !t.full(count) { // most are not among the largest: their string is not made
		t.offer(n+"="+v, count)
	}
}

func (t *top) offer(n string, count uint64) {
	if t.full(count) {
		return
	}
	nc := peer.NameCount{Name: n, Count: count}
	at, _ := slices.BinarySearchFunc(t.list, nc, func(a, b peer.NameCount) int {
		return cmp.Or(-cmp.Compare(a.Count, b.Count), cmp.Compare(a.Name, b.Name))
	})
	t.list = slices.Insert(t.list, at, nc)
	t.list = t.list[:min(len(t.list), t.n)]
}
