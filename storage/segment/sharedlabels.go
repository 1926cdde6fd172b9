package segment

import (
	"hash/maphash"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Segments of narrow partitions define the same series over and over. Their decoded pages share one copy of the labels of each series:
//
//	page of segment 1 ──▶ [ · · · ]         a page of 256 series needs 2 KiB, its labels some 50 KiB
//	                        │ │ │
//	                        ▼ ▼ ▼
//	                        labels, counted by the pages that hold them
//	                        ▲ ▲ ▲
//	page of segment 2 ──▶ [ · · · ]

// definitions is a page of definitions, decoded. Read only.
type definitions struct {
	ids    []point.DenseID // rise strictly; nil: first and those after it, without a gap
	first  point.DenseID
	labels []*sharedLabels
}

// sharedLabels are the labels of a series that pages hold.
// Those that stay are made by share. They leave the table when the last page that holds them leaves the Cache; reads that still have them keep them.
type sharedLabels struct {
	labels point.Labels
	hash   uint64
	pages  int // guarded by the lock of the labelTable
}

func (d *definitions) len() int { return len(d.labels) }

func (d *definitions) id(i int) point.DenseID {
	if d.ids != nil {
		return d.ids[i]
	}
	return d.first + point.DenseID(i)
}

// from returns the place of the first definition that is not before id.
func (d *definitions) from(id point.DenseID) int {
	if d.ids != nil {
		i, _ := slices.BinarySearch(d.ids, id)
		return i
	}
	return sort.Search(len(d.labels), func(i int) bool { return d.id(i) >= id })
}

// find returns the labels of a series.
func (d *definitions) find(id point.DenseID) (point.Labels, bool) {
	if i := d.from(id); i < len(d.labels) && d.id(i) == id {
		return d.labels[i].labels, true
	}
	return "", false
}

// last is the highest id of a page; ok: there is one.
func (d *definitions) last() (id point.DenseID, ok bool) {
	if d.len() == 0 {
		return 0, false
	}
	return d.id(d.len() - 1), true
}

// bytes is the memory of a page without the labels.
func (d *definitions) bytes() int64 { return 128 + 8*int64(len(d.labels)) + 4*int64(len(d.ids)) }

// newDefinitions makes a page of those that were read, with labels that nothing shares yet.
func newDefinitions(defs []definition) *definitions {
	d := &definitions{labels: make([]*sharedLabels, len(defs))}
	// One allocation for all. These labels are parts of one string, the page's: share copies those that stay.
	own := make([]sharedLabels, len(defs))
	gaps := false
	for i := range defs {
		own[i].labels = defs[i].labels
		d.labels[i] = &own[i]
		gaps = gaps || defs[i].id != defs[0].id+point.DenseID(i)
	}
	if len(defs) > 0 {
		d.first = defs[0].id
	}
	if gaps {
		d.ids = make([]point.DenseID, len(defs))
		for i := range defs {
			d.ids[i] = defs[i].id
		}
	}
	return d
}

// labelTable has the labels that decoded pages hold, one copy of each. Safe for concurrent use.
// Its lock is acquired under the Cache's, or alone; it is held for a page of look-ups.
type labelTable struct {
	seed maphash.Seed
	mu   sync.Mutex
	of   map[uint64][]*sharedLabels // by hash
}

// sharedLabelsBytes is the cost of labels in the table, beside their bytes.
const sharedLabelsBytes = 96

// share returns a page with the labels that the table has, and adds those that it lacks. grown is how many bytes the table took for them.
func (t *labelTable) share(d *definitions) (shared *definitions, grown int64) {
	shared = &definitions{ids: d.ids, first: d.first, labels: make([]*sharedLabels, len(d.labels))}
	// Hashed before the lock: 50 KiB of labels a page.
	hashes := make([]uint64, len(d.labels))
	for i, l := range d.labels {
		hashes[i] = maphash.String(t.seed, string(l.labels))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, l := range d.labels {
		at := t.of[hashes[i]]
		k := slices.IndexFunc(at, func(s *sharedLabels) bool { return s.labels == l.labels })
		if k < 0 {
			s := &sharedLabels{labels: point.Labels(strings.Clone(string(l.labels))), hash: hashes[i]} // not a part of the page's bytes
			at, k = append(at, s), len(at)
			t.of[hashes[i]] = at
			grown += sharedLabelsBytes + int64(len(s.labels))
		}
		// Counted from here on, so that an eviction between share and putDefinitions cannot remove them.
		at[k].pages++
		shared.labels[i] = at[k]
	}
	return shared, grown
}

// release ends that a page holds labels. freed is how many bytes the table gave back.
func (t *labelTable) release(d *definitions) (freed int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range d.labels {
		if l.pages--; l.pages > 0 {
			continue
		}
		freed += sharedLabelsBytes + int64(len(l.labels))
		rest := slices.DeleteFunc(t.of[l.hash], func(s *sharedLabels) bool { return s == l })
		if len(rest) == 0 {
			delete(t.of, l.hash)
		} else {
			t.of[l.hash] = rest
		}
	}
	return freed
}
