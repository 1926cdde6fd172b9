package labelorder

import "github.com/RoaringBitmap/roaring/v2"

// Few is how many series are not narrowed further: reading their labels costs about as much as the postings of a label.
const Few = 256

// Each calls f for the values of a label name, in order: with the series of rest that have the value, where there are any. f may change rest and keep has. It
// ends when f returns false.
type Each func(name int, rest *roaring.Bitmap, f func(has *roaring.Bitmap) (more bool)) error

// wholeMax bounds the series of which all labels are read because that costs less than postings: some 20 MB.
const wholeMax = 1 << 16

// costly reports whether reading so many postings costs more than reading the labels of the series, of which each costs about four postings.
func costly(postings int, series *roaring.Bitmap) bool {
	n := series.GetCardinality()
	return n <= wholeMax && n*4 <= uint64(postings)
}

// Narrow returns some of the series in within, which it does not change: among them the first n in label order, and not many more (Few at a label, or a quarter of
// its values, up to wholeMax). values is how many values each label name has, in the order of names; each knows them by their places in it. All series have the name at every
// (-1: none is known), so no set of labels ends before it. Errors are those of each.
func Narrow(within *roaring.Bitmap, n int, values []int, every int, each Each) (*roaring.Bitmap, error) {
	out := roaring.New()
	left := uint64(max(n, 0))
	// Invariant: the series of group are equal in all names before the one that is looked at, out has those before them, and those behind them are not among the first n.
	group := within
	for name := 0; name < len(values) && group.GetCardinality() > left+Few && !costly(values[name], group); name++ {
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
		short, err := without(rest, name+1, values, each)
		if err != nil {
			return nil, err
		}
		out.Or(short)
	}
	out.Or(group)
	return out, nil
}

// without leaves in rest the series that have none of the names from one on, and others where they are few.
func without(rest *roaring.Bitmap, name int, values []int, each Each) (*roaring.Bitmap, error) {
	for ; name < len(values) && rest.GetCardinality() > Few; name++ {
		if costly(values[name], rest) {
			continue
		}
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
