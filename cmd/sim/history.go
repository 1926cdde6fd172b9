package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// history is the record of the clients' writes and reads: for each key the writes, when each began and when it was
// acked. A read must give the value of the last write that was acked before the read began, or of one that was under
// way beside it.
//
//	          began      acked
//	write A   ├────────────┤
//	write B                     ├───────┤
//	read                                   ├─────┤   B, and neither A nor nothing
type history struct {
	w    *world
	keys []key
	of   map[string][]keyID // of each table, by time
	past [][]*written       // of each key, in the order in which they began
	next uint64             // value
	// forgone is when a restore of the store, last, removed the content of partitions.
	forgone map[lease.Partition]time.Duration
}

// key is a series and a time.
type key struct {
	table string
	ring  uint64
	t     point.Nanos
}

type written struct {
	value        uint64
	began, acked time.Duration // acked 0: not yet
	in           lease.Partition
	store        lease.StoreID
	moved        lease.Partition // to which a partition that unloads gave it
	movedTo      lease.StoreID
	dropped      bool   // on purpose, with its partition
	older        bool   // by a gateway of the version before
	staged       bool   // acked when it was staged; in is empty until a leader acks it
	seq          uint64 // of the map that it was staged by
}

const (
	seriesMax  = 8 // of a table
	slotsMax   = 3 // times in an hour
	youngMax   = 10 * time.Second
	skewMax    = 2 * aheadMax
	pastMax    = 24
	hoursAsked = 4
)

func newHistory(w *world) *history {
	h := &history{w: w, of: map[string][]keyID{}, forgone: map[lease.Partition]time.Duration{}}
	for _, table := range w.tables {
		rings := make([]uint64, seriesMax)
		for i := range rings {
			rings[i] = w.rng.Uint64()
		}
		for slot := range int64(w.widths * slotsMax) {
			for _, ring := range rings {
				h.of[table] = append(h.of[table], keyID(len(h.keys)))
				h.keys = append(h.keys, key{table, ring, slot * (width / slotsMax)})
			}
		}
	}
	h.past = make([][]*written, len(h.keys))
	return h
}

// draw begins a write. Some keys are written again and again.
func (h *history) draw() row {
	k := keyID(h.w.rng.IntN(len(h.keys)))
	if h.w.chance(30) {
		k &^= 15
	}
	return h.begin(k)
}

// begin begins a write of a key.
func (h *history) begin(k keyID) row {
	h.next++
	if past := h.past[k]; len(past) >= pastMax {
		h.past[k] = slices.Delete(past, 0, 1)
	}
	h.past[k] = append(h.past[k], &written{value: h.next, began: h.w.now})
	return row{key: k, value: h.next}
}

func (h *history) find(k keyID, value uint64) *written {
	for _, p := range h.past[k] {
		if p.value == value {
			return p
		}
	}
	return nil
}

func (h *history) acked(in row, id lease.Partition, a answer) {
	if p := h.find(in.key, in.value); p != nil {
		p.acked, p.in, p.store = h.w.now, id, a.store
		gone, forgone := h.forgone[id]
		p.dropped = h.w.check.dropped[id] || forgone && a.at <= gone // the ack was on its way
	}
}

// dropped notes that a partition was dropped with its rows.
func (h *history) dropped(id lease.Partition) {
	for _, k := range h.of[id.Table] {
		for _, p := range h.past[k] {
			p.dropped = p.dropped || p.in == id || p.moved == id
		}
	}
}

// read is a select of a gateway: its state when it asked, and its answer.
type read struct {
	began  time.Duration
	m      *topology.Map
	warned bool            // the answer says that it is incomplete
	old    bool            // the answer says that there may be newer partitions
	asked  []*topology.Map // by which servers answered
	by     string

	holders []topology.ServerID // that were asked for staged rows
}

// saw checks a read's value of a key against the history.
func (h *history) saw(r *read, k keyID, value uint64) {
	var got *written
	if value != 0 {
		if got = h.find(k, value); got == nil {
			h.w.fail("H: %s reads value %x of key %d, which no client wrote, or which was overwritten long ago", r.by, value, k)
			return
		}
	}
	for _, p := range h.past[k] {
		if p == got || p.acked == 0 || p.acked >= r.began || p.dropped {
			continue
		}
		if got != nil && (got.acked == 0 || got.acked >= p.began) {
			continue // it came later, or beside it
		}
		if !h.excusedStaged(r, k, p, got) && !h.excused(r, h.past[k], p, got) {
			before := uint64(0)
			if got != nil {
				before = got.value
			}
			h.w.fail("H: %s reads key %d as %x by map %d, and %x was acked in %s %v before", r.by, k, before, r.m.Seq, p.value, p.in, r.began-p.acked)
			return
		}
	}
}

// excused reports whether a read may lack a write that was acked before it.
func (h *history) excused(r *read, past []*written, p, got *written) bool {
	c := h.w.check
	_, known := r.m.ByID(p.in.ID)
	if p.in == (lease.Partition{}) { // it is staged
		return false
	}
	switch {
	case c.isLost(p.in, p.store), p.moved != (lease.Partition{}) && c.isLost(p.moved, p.movedTo):
		return true
	case r.warned && slices.ContainsFunc(past, func(q *written) bool { // it, or one that lay over it: of an older gateway, perhaps by a late second try
		return c.damaged[q.value] && (q.acked == 0 || q.acked >= p.began || q.older)
	}):
		h.w.n.warned++
		return true
	case !known && r.old:
		h.w.n.olds++
		return true
	case !known && r.began-c.born[p.in] < youngMax && !slices.ContainsFunc(r.asked, func(m *topology.Map) bool {
		_, knew := m.ByID(p.in.ID)
		return knew
	}): // no server that was asked has it
		h.w.n.young++
		return true
	case got != nil && got.older: // it may have been tried twice, and the leader cannot detect it
		h.w.n.byOlder++
		return true
	case got != nil && got.in != p.in && p.began-got.acked < skewMax: // between partitions clocks decide
		h.w.n.skewed++
		return true
	}
	return false
}
