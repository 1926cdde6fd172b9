package point

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Relabeller rewrites or drops the series of a Dict when they are new.
type Relabeller interface {
	// Relabel returns the labels under which a series is stored, or keep as false. Errors are Invalid. It may be called from several
	// goroutines, and keeps nothing of the labels.
	Relabel(labels Labels) (out Labels, keep bool, err error)
}

// Relabel sets the Dict's Relabeller, before the Dict is used. Nil: series are stored as they come.
func (d *Dict) Relabel(r Relabeller) { d.relabeller = r }

// droppedLabels are the labels of the one number that all dropped series of a Dict have. No series has them: it has a name.
const droppedLabels Labels = ""

// relabel gives a set that came from outside the labels under which it is stored.
func (d *Dict) relabel(labels []byte) (Labels, error) {
	out, keep, err := d.relabeller.Relabel(Labels(labels))
	if err != nil {
		return "", err
	}
	if !keep {
		return droppedLabels, nil
	}
	return out, nil
}

// internRelabelled is InternAll for a Dict with a Relabeller or ReplicaLabels. Known stays empty: several sets may well become one.
func (d *Dict) internRelabelled(f *Fresh) error {
	var refused error
	for i := range f.ends {
		id, err := d.number(f.labels(i), "", f.hashes[i], true)
		switch {
		case fault.Is(err, fault.Invalid):
			id = NoSeries
			if refused == nil {
				refused = err
			}
		case err != nil:
			return err
		case f.hashes[i] != (Hash{}):
			d.remember(f.hashes[i], id, nil)
		}
		f.IDs = append(f.IDs, id)
	}
	return refused
}

// Dropped counts rows that a batch lost because their series is dropped.
type Dropped struct{ Floats, Hists, Exemplars int }

// DroppedRows counts the rows that RemoveDropped removed from batches of this Dict.
func (d *Dict) DroppedRows() uint64 { return d.droppedRows.Load() }

// RemoveDropped removes the rows of dropped series from the batch. The others keep their order, and b.Item keeps finding their item.
func (b *Batch) RemoveDropped() (n Dropped) {
	if b.Dict == nil || b.Dict.relabeller == nil || b.Dict.dropped.Load() == 0 {
		return n
	}
	id := SeriesID(b.Dict.dropped.Load() - 1)
	n.Floats = b.keepRows(func(_ int, of *SeriesID) bool { return *of != id })
	n.Hists, n.Exemplars = len(b.Hists), len(b.Exemplars)
	b.Hists = slices.DeleteFunc(b.Hists, func(h HistRow) bool { return h.ID == id })
	b.Exemplars = slices.DeleteFunc(b.Exemplars, func(e ExemplarRow) bool { return e.ID == id })
	n.Hists, n.Exemplars = n.Hists-len(b.Hists), n.Exemplars-len(b.Exemplars)
	b.Dict.droppedRows.Add(uint64(n.Floats + n.Hists))
	return n
}

// keepRows removes the float rows for which keep is false, and returns their number. It is given the number of the row's item, as b.Item
// returns it, and the series, which it may change. The others keep their order, and b.Item keeps finding their item.
func (b *Batch) keepRows(keep func(item int, id *SeriesID) bool) (removed int) {
	kept, item := 0, 0
	for i := range b.IDs {
		for ; item < len(b.ItemRows) && b.ItemRows[item] == uint32(i); item++ {
			b.ItemRows[item] = uint32(kept)
		}
		if !keep(item, &b.IDs[i]) {
			continue
		}
		b.IDs[kept], b.Times[kept], b.Values[kept] = b.IDs[i], b.Times[i], b.Values[i]
		kept++
	}
	for ; item < len(b.ItemRows); item++ {
		b.ItemRows[item] = uint32(kept)
	}
	removed = len(b.IDs) - kept
	b.Truncate(kept)
	return removed
}
