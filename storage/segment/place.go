package segment

import (
	"cmp"
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// place is where a series' rows lie: group and slot in one number, group × 128 + slot.
// Group 2, slot 5 is the place 2·128+5 = 261; in a page with places of two bytes: 05 01.
type place uint32

// groupsMax keeps a place below the mark of absence in every width.
const groupsMax = 1 << 24

func makePlace(group uint32, slot int) place { return place(group)*GroupSeriesMax + place(slot) }

func (p place) group() uint32 { return uint32(p) / GroupSeriesMax }

func (p place) slot() int { return int(p % GroupSeriesMax) }

// pagePlaces ids share a page, which is an array: a look-up decompresses nothing. Pages without any series are left out.
const pagePlaces = 1024

// placed is what the writer keeps of each series until Finish: 8 bytes.
type placed struct {
	id point.DenseID
	at place
}

// writePlaces writes the pages. Page: the width of a place in bytes, then 1024 little-endian places, all ones for an
// absent series; trailing absent ones are cut.
func writePlaces(all []placed, put func(key, value []byte) error) error {
	all = sortPlaced(all)
	for len(all) > 0 {
		page := uint32(all[0].id) / pagePlaces
		n := 0
		top := place(0)
		for n < len(all) && uint32(all[n].id)/pagePlaces == page {
			top = max(top, all[n].at)
			n++
		}
		// One more than the highest place: all ones then is no place of this page.
		width := widthOf(uint64(top) + 1)
		last := int(all[n-1].id % pagePlaces)
		value := slices.Repeat([]byte{0xff}, 1+width*(last+1))
		value[0] = byte(width)
		for _, p := range all[:n] {
			at := value[1+width*int(p.id%pagePlaces):]
			for k := range width {
				at[k] = byte(p.at >> uint(8*k))
			}
		}
		if err := put(key32(nil, keyPlace, page), value); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// sortPlaced sorts by ids, each of which is there once. If most ids between the lowest and the highest occur, each is
// put directly into its place.
func sortPlaced(all []placed) []placed {
	if len(all) == 0 {
		return all
	}
	lo, hi := all[0].id, all[0].id
	for _, p := range all {
		lo, hi = min(lo, p.id), max(hi, p.id)
	}
	// Rows come in label order, so ids come shuffled: an array over their span costs one pass.
	if span := int(hi-lo) + 1; span <= 2*len(all) {
		at := make([]uint64, span) // place + 1
		for _, p := range all {
			at[p.id-lo] = uint64(p.at) + 1
		}
		all = all[:0]
		for i, v := range at {
			if v != 0 {
				all = append(all, placed{lo + point.DenseID(i), place(v - 1)})
			}
		}
		return all
	}
	slices.SortFunc(all, func(a, b placed) int { return cmp.Compare(a.id, b.id) })
	return all
}

// nearPlaces is a page of places that a read has at hand: series in label order go to and fro between a few pages.
type nearPlaces struct {
	number uint32
	held   bool
	page   []byte // nil: there is none, and no series of it has rows
	own    []byte // the memory of a page that does not stay in the Cache
}

// nearPages is how many a read has at hand, by their numbers.
const nearPages = 8

// load puts a page at hand: from the Cache, or from the file, and then it stays in the Cache if there is room and keep is set.
func (n *nearPlaces) load(t *tableIter, number uint32, keep bool) error {
	n.number, n.held = number, true
	c, k := t.r.cache, pageKey{reader: t.r, group: placesGroup, page: number}
	if p, ok := c.page(k); ok {
		n.page = p.raw
		return nil
	}
	n.page = nil
	if found := t.find(key32(nil, keyPlace, number)); found {
		n.page = t.val
	}
	if err := t.failed(); err != nil {
		return err
	}
	bytes := entryBytes + int64(len(n.page))
	if keep && c.admitsPlaces(bytes) {
		n.page = slices.Clone(n.page)
		c.put(&cached{key: k, raw: n.page, bytes: bytes})
	} else if n.page != nil {
		n.own = append(n.own[:0], n.page...)
		n.page = n.own
	}
	return nil
}

// lookupPlace finds a series in its page.
func lookupPlace(page []byte, id point.DenseID) (at place, ok bool, err error) {
	if len(page) == 0 || page[0] == 0 || page[0] > 4 || (len(page)-1)%int(page[0]) != 0 {
		return 0, false, errForm("page of places")
	}
	width, i := int(page[0]), int(id%pagePlaces)
	if 1+width*(i+1) > len(page) {
		return 0, false, nil
	}
	var v uint64
	for k, c := range page[1+width*i : 1+width*(i+1)] {
		v |= uint64(c) << uint(8*k)
	}
	if v == 1<<uint(8*width)-1 {
		return 0, false, nil
	}
	return place(v), true, nil
}

// findPlaces fills s.places with the places of the series, in file order, without doubles and without series that have no rows here.
func (s *readState) findPlaces(t *tableIter, ids []point.DenseID) error {
	for i := range s.near {
		s.near[i].held = false
	}
	all := s.places[:0]
	for i, id := range ids {
		number := uint32(id) / pagePlaces
		near := &s.near[number%nearPages]
		if !near.held || near.number != number {
			if err := near.load(t, number, !s.once); err != nil {
				return err
			}
		}
		if near.page == nil {
			continue
		}
		at, ok, err := lookupPlace(near.page, id)
		if err != nil {
			return t.r.corrupt(key32(nil, keyPlace, number), err)
		}
		if ok {
			all = append(all, wanted{placed{id, at}, int32(i)})
		}
	}
	s.places = inFileOrder(all)
	return nil
}

// eachPlace calls f for each of the series that has rows here.
func (r *Reader) eachPlace(t *tableIter, ids []point.DenseID, f func(i int, at place)) error {
	var key []byte
	held, last := false, uint32(0)
	for i, id := range ids {
		if page := uint32(id) / pagePlaces; i == 0 || page != last {
			key, last = key32(key, keyPlace, page), page
			held = t.find(key)
			if err := t.failed(); err != nil {
				return err
			}
		}
		if !held {
			continue
		}
		at, ok, err := lookupPlace(t.val, id)
		if err != nil {
			return r.corrupt(key, err)
		}
		if ok {
			f(i, at)
		}
	}
	return nil
}
