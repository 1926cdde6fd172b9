package point

import (
	"cmp"
	"hash/maphash"
	"iter"
)

// Fresh is a list of label sets that are probably new, to be numbered together by Dict.InternAll. Alone, each waits for
// two or three places of large tables that are in no cache; together they wait for them at once, and acquire the Dict's lock
// once. Reuse it by Reset; not for concurrent use. The zero Fresh is empty.
type Fresh struct {
	// Text holds the sets in canonical form, one after the other: append one, then call End.
	Text []byte
	// IDs are their numbers after InternAll, in the order of the sets.
	IDs []SeriesID
	// Known counts, after InternAll, the sets that had a number before.
	Known []int

	ends   []int
	hashes []Hash
	sums   []uint64
}

// Reset empties the list and keeps its memory.
func (f *Fresh) Reset() {
	f.Text, f.IDs, f.ends, f.hashes = f.Text[:0], f.IDs[:0], f.ends[:0], f.hashes[:0]
}

// Len counts the sets.
func (f *Fresh) Len() int { return len(f.ends) }

// End makes a set of the text appended to Text since the last End. Raw bytes with hash h mean it, as in Dict.Intern; with
// the zero Hash none are remembered.
func (f *Fresh) End(h Hash) {
	f.ends, f.hashes = append(f.ends, len(f.Text)), append(f.hashes, h)
}

// Drop removes the text appended to Text since the last End.
func (f *Fresh) Drop() { f.Text = f.Text[:f.end(len(f.ends)-1)] }

// end is where set i ends; the text before the first ends at 0.
func (f *Fresh) end(i int) int {
	if i < 0 {
		return 0
	}
	return f.ends[i]
}

func (f *Fresh) labels(i int) []byte { return f.Text[f.end(i-1):f.ends[i]] }

// InternAll gives each set of f its number, a new one if need be. The error is Throttled when the Dict is full, or the Guard's error;
// then f.IDs holds the numbers of the sets before the first that found no room. A new set that exceeds the Dict's LabelLimits gets
// NoSeries, and the error is the Invalid of the first, unless there is no room. Nothing of f is kept.
func (d *Dict) InternAll(f *Fresh) error {
	f.sums, f.IDs, f.Known = f.sums[:0], f.IDs[:0], f.Known[:0]
	if d.relabeller != nil || d.twins != nil {
		return d.internRelabelled(f)
	}
	for i := range f.ends {
		f.sums = append(f.sums, maphash.Bytes(d.seeds[0], f.labels(i)))
	}
	d.canon.warm(f.sums)
	unknown := 0
	var refused error
	for i, sum := range f.sums {
		id, ok := d.canon.get(sum, f.labels(i), &d.series)
		if ok {
			f.Known = append(f.Known, i)
		} else {
			id = uint32(NoSeries)
			unknown++
			if err := d.limit(f.labels(i)); err != nil {
				id = uint32(refusedSeries)
				unknown--
				refused = cmp.Or(refused, err)
			}
		}
		f.IDs = append(f.IDs, SeriesID(id))
	}
	var err error
	if unknown > 0 {
		err = d.addAll(f)
	}
	for i, id := range f.IDs {
		if id == refusedSeries {
			f.IDs[i] = NoSeries
		} else if f.hashes[i] != (Hash{}) {
			d.remember(f.hashes[i], id, nil)
		}
	}
	return cmp.Or(err, refused)
}

// refusedSeries marks, within InternAll, a set that is new and gets no number.
const refusedSeries = NoSeries - 1

// addAll numbers the sets that have no number yet. It looks again: another goroutine may have been quicker, or a set is there twice.
func (d *Dict) addAll(f *Fresh) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range f.IDs {
		if f.IDs[i] != NoSeries {
			continue
		}
		labels := f.labels(i)
		id, ok := d.canon.get(f.sums[i], labels, &d.series)
		if !ok {
			err := d.askLocked(labels)
			if err == nil {
				id, err = d.addLocked(f.sums[i], labels, "", f.hashes[i])
			}
			if err != nil {
				f.IDs = f.IDs[:i]
				return err
			}
		}
		f.IDs[i] = SeriesID(id)
	}
	return nil
}

const (
	// SeriesIDMax bounds the numbers of a Dict, so that there are others for other uses.
	SeriesIDMax = 1 << 30
	// NoSeries is the number of no series.
	NoSeries SeriesID = 1<<32 - 1
)

// LookupAll is Lookup for several at once, which wait for the table together. It appends their numbers to ids, NoSeries
// where a hash is not found.
func (d *Dict) LookupAll(hs []Hash, ids []SeriesID) []SeriesID {
	d.raw.warm(hs)
	for _, h := range hs {
		id, ok := d.Lookup(h)
		if !ok {
			id = NoSeries
		}
		ids = append(ids, id)
	}
	return ids
}

// NewSeries gives, once each, the series of the batch's rows that its Dict numbered when it had known series or more, unless the Dict that it
// follows has them. It costs one comparison a row, and nothing where the Dict has no more series. A series that another batch brings at the same
// time is new in both.
func (b *Batch) NewSeries(known int) iter.Seq[Labels] {
	return func(yield func(Labels) bool) {
		n := b.Dict.Len() - known
		if n <= 0 {
			return
		}
		seen := make([]uint64, (n+63)/64)
		isNew := func(id SeriesID) bool {
			at := int64(id) - int64(known)
			if at < 0 || at >= int64(n) || seen[at/64]&(1<<(at%64)) != 0 {
				return false
			}
			seen[at/64] |= 1 << (at % 64)
			return !b.Dict.again([]byte(*b.Dict.series.at(uint32(id)))) // the conversion copies nothing
		}
		for _, id := range b.IDs {
			if isNew(id) && !yield(b.Dict.Labels(id)) {
				return
			}
		}
		for i := range b.Hists {
			if id := b.Hists[i].ID; isNew(id) && !yield(b.Dict.Labels(id)) {
				return
			}
		}
	}
}
