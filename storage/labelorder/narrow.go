// Package labelorder finds the first series in label order by their postings, so that a look-up of a few of a million series reads the labels of a few.
//
//	first three of {job="api"}                 __name__   "cpu" ─▶ 1 series      in
//	                                                      "mem" ─▶ 10,000        too many: one label further
//	                                                      "net" ─▶ 10,000        behind
//	   of those of __name__="mem"              host       "h1"  ─▶ 1             in
//	                                                      "h2"  ─▶ 1             in
//
// Order is that of point.Labels.Compare: label by label, names before values, the shorter set first.
package labelorder

import "github.com/RoaringBitmap/roaring/v2"

// Few is how many series are not narrowed further: reading their labels costs about as much as the postings of a label.
const Few = 256

// Each calls f for the values of a label name, in order: with the series of rest that have the value, where there are any. f may change rest and keep has. It
// ends when f returns false.
type Each func(name int, rest *roaring.Bitmap, f func(has *roaring.Bitmap) (more bool)) error

// Narrow returns some of the series in within, which it does not change: among them the first n in label order, and not many more (Few at a label). names is how
// many label names there are; each knows them by their places in their order. All series have the name at every (-1: none is known), so no set of labels ends before it. Errors are those of each.
func Narrow(within *roaring.Bitmap, n, names, every int, each Each) (*roaring.Bitmap, error) {
	out := roaring.New()
	left := uint64(max(n, 0))
	// Invariant: the series of group are equal in all names before the one that is looked at, out has those before them, and those behind them are not among the first n.
	group := within
	for name := 0; name < names && group.GetCardinality() > left+Few; name++ {
		rest := group.Clone()
		var next *roaring.Bitmap // the first that are not in as a whole
		err := each(name, rest, func(has *roaring.Bitmap) bool {
			rest.AndNot(has)
			switch n := has.GetCardinality(); {
			case next != nil: // behind
			case n < left:
				out.Or(has)
				left -= n
			default:
				next = has
			}
			return !rest.IsEmpty() && (next == nil || name > every)
		})
		if err != nil {
			return nil, err
		}
		if next == nil { // those without the name come behind those that have it
			group = rest
			continue
		}
		group = next
		if name <= every {
			continue
		}
		// One that has no further label at all comes before all others.
		short, err := without(rest, name+1, names, each)
		if err != nil {
			return nil, err
		}
		out.Or(short)
	}
	out.Or(group)
	return out, nil
}

// without leaves in rest the series that have none of the names from one on, or few.
func without(rest *roaring.Bitmap, name, names int, each Each) (*roaring.Bitmap, error) {
	for ; name < names && rest.GetCardinality() > Few; name++ {
		err := each(name, rest, func(has *roaring.Bitmap) bool {
			rest.AndNot(has)
			return !rest.IsEmpty()
		})
		if err != nil {
			return nil, err
		}
	}
	return rest, nil
}
