package server

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// A select over narrow partitions has hundreds of them, mostly with the same series. Each view gives lists of its series, and lists with the same labels become
// one:
//
//	view 1 ── part ids ─┐
//	view 2 ── part ids ─┼─▶ list 0 of labels ─┬─▶ found: list 0 at 3, list 1 at 2
//	view 3 ── part ids ─┘                     │
//	view 4 ── part ids ───▶ list 1 of labels ─┘
//
// So a series is looked up once for each list, not for each view.

// part is series of a view: numbers in the order of a list, and places where they are known.
type part struct {
	view   int
	list   int
	ids    []point.DenseID
	places []segment.Place // nil: they are not known
	found  *segment.Found  // has ids and places; nil: they are not known
}

// series is the one at a place of the list.
func (p *part) series(at int, l point.Labels) partition.Series {
	s := partition.Series{ID: p.ids[at], Labels: l}
	if p.places != nil {
		s.At = p.places[at]
	}
	return s
}

// merger joins the series of several views: by number in the index if all views have it, else by labels.
type merger struct {
	sn  *snapshot
	all []found
	// It stays true while there is one list, a segment's, which is sorted; most selects then need no sort at all.
	inOrder bool             // of labels
	listed  []*segment.Found // by list; nil: a view's own
	indexed bool             // all views have numbers in the index
	byRef   map[series.Ref]int32
	byLabel map[point.Labels]int32 // nil: not needed yet
}

func newMerger(sn *snapshot) *merger {
	sn.parts, sn.first = nil, nil
	m := &merger{sn: sn, indexed: !slices.ContainsFunc(sn.views, func(v *partition.View) bool { return !v.Indexed() })}
	return m
}

// view adds the series of a view, and returns how many there are.
func (m *merger) view(i int, v *partition.View, of *segment.Selector) (n int, err error) {
	lists, ok, err := v.Found(of)
	if err != nil {
		return 0, err
	}
	if !ok {
		ss, err := v.Match(m.sn.matchers)
		if err == nil {
			m.add(i, ss)
		}
		return len(ss), err
	}
	for _, f := range lists {
		if len(f.IDs) == 0 {
			continue
		}
		// Same compares addresses, not labels: segments whose series are alike share one decoded list.
		list := slices.IndexFunc(m.listed, func(g *segment.Found) bool { return g != nil && g.Same(f) })
		if list < 0 {
			if err := v.Grow(len(f.IDs)); err != nil {
				return 0, err
			}
			list = m.list(f, len(f.IDs), func(j int) found { return found{labels: f.Labels(j)} })
			m.inOrder = list == 0
		}
		p := part{view: i, list: list, ids: f.IDs}
		if v.Placed() {
			p.places, p.found = f.Places, f
		}
		m.sn.parts = append(m.sn.parts, p)
		n += len(f.IDs)
	}
	return n, nil
}

// add adds series that are in no shared list.
func (m *merger) add(view int, ss []partition.Series) {
	if len(ss) == 0 {
		return
	}
	p := part{view: view, ids: make([]point.DenseID, len(ss))}
	for j := range ss {
		p.ids[j] = ss[j].ID
	}
	p.list = m.list(nil, len(ss), func(j int) found { return found{labels: ss[j].Labels, ref: ss[j].Ref, known: ss[j].Known} })
	m.inOrder = false
	m.sn.parts = append(m.sn.parts, p)
}

// list adds a list of n series, for the part that comes next, and returns its number.
func (m *merger) list(of *segment.Found, n int, series func(j int) found) int {
	list := len(m.listed)
	m.listed = append(m.listed, of)
	m.sn.first = append(m.sn.first, len(m.sn.parts))
	if list == 0 { // most often the only one
		m.all = make([]found, n)
		// One allocation for all: each series gets a slice of one with capacity one, so that appending another member
		// copies it and never touches its neighbour's.
		members := make([]member, n)
		for j := range n {
			members[j] = member{0, int32(j)}
			m.all[j] = series(j)
			m.all[j].in = members[j : j+1 : j+1]
		}
		return list
	}
	m.join()
	for j := range n {
		s := series(j)
		f := &m.all[m.place(&s)]
		f.in = append(f.in, member{int32(list), int32(j)})
		if s.known {
			f.ref, f.known = s.ref, true
		}
	}
	return list
}

// join prepares to find the series that there are.
func (m *merger) join() {
	if m.byRef != nil || m.byLabel != nil {
		return
	}
	if m.indexed {
		m.byRef = make(map[series.Ref]int32, len(m.all))
	} else {
		m.byLabel = make(map[point.Labels]int32, len(m.all))
	}
	for i := range m.all {
		if m.indexed {
			m.byRef[m.all[i].ref] = int32(i)
		} else {
			m.byLabel[m.all[i].labels] = int32(i)
		}
	}
}

// place finds the series among those found, or adds it.
func (m *merger) place(s *found) int32 {
	next := int32(len(m.all))
	var j int32
	var ok bool
	if m.indexed {
		if j, ok = m.byRef[s.ref]; !ok {
			m.byRef[s.ref] = next
		}
	} else if j, ok = m.byLabel[s.labels]; !ok {
		m.byLabel[s.labels] = next
	}
	if ok {
		return j
	}
	m.all = append(m.all, found{labels: s.labels})
	return next
}
