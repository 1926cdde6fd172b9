package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/storage/staging"
)

// holds notes that a store has frames, durably.
func (c *checker) holds(store lease.StoreID, all []stagedRow) {
	for _, f := range all {
		stores := c.held[f.row.value]
		if stores == nil {
			stores = map[lease.StoreID]map[staging.ID]bool{}
			c.held[f.row.value] = stores
		}
		if stores[store] == nil {
			stores[store] = map[staging.ID]bool{}
		}
		stores[store][f.ID] = true
	}
}

// releases checks that a frame is forgotten only when a leader acked its row, when another frame or server holds it, or when its table was dropped. A row that was tried again when its
// table had been made anew is in two frames of a store, one for each of the tables.
func (c *checker) releases(store lease.StoreID, f stagedRow) {
	stores := c.held[f.row.value]
	if delete(stores[store], f.ID); len(stores[store]) == 0 {
		delete(stores, store)
	}
	if len(stores) > 0 {
		return
	}
	delete(c.held, f.row.value)
	if c.heldLess[f.row.value] > 0 && f.Before(c.at(f.Table).row.Begun) { // of an earlier try, when the table was another one; the acked one burnt
		c.burntStaged[f.row.value] = true
		return
	}
	p := c.w.history.find(f.row.key, f.row.value)
	if p != nil && p.staged && p.in == (lease.Partition{}) && !c.w.history.endedWithTable(f.row.key, p) {
		c.w.fail("I1: the staged value %x of key %d, which was acked, is forgotten, and no leader acked it", f.row.value, f.row.key)
	}
}

// burnStaged notes that a store was lost.
func (c *checker) burnStaged(store lease.StoreID) {
	for value, stores := range c.held { // each by itself
		if len(stores[store]) > 0 {
			c.heldLess[value] = c.w.now
		}
		if delete(stores, store); len(stores) == 0 {
			delete(c.held, value)
			c.burntStaged[value] = true
		}
	}
}

// ackedStaged notes that a row is acked, and waits for its leader.
func (h *history) ackedStaged(in row, seq uint64) {
	if p := h.find(in.key, in.value); p != nil {
		p.acked, p.staged, p.seq = h.w.now, true, seq
	}
}

// forwarded notes that a leader acked a staged row.
func (h *history) forwarded(k keyID, value uint64, id lease.Partition, store lease.StoreID) {
	if p := h.find(k, value); p != nil {
		p.in, p.store = id, store
		p.dropped = p.dropped || h.w.check.dropped[id]
	}
}

// endedWithTable reports whether a staged row was written by a map of a table that was dropped.
func (h *history) endedWithTable(k keyID, p *written) bool {
	row := h.w.check.at(h.keys[k].table).row
	return row.Dropped || row.Dropping || p.seq < row.Begun
}

// excusedStaged reports whether a read may lack a row that was acked when it was staged.
func (h *history) excusedStaged(r *read, k keyID, p, got *written) bool {
	c := h.w.check
	switch {
	case got != nil && (p.staged || got.staged) && p.began-got.acked < skewMax+stagedSkew: // clocks decide
		h.w.n.skewed++
		return true
	case !p.staged:
		return false
	case h.endedWithTable(k, p):
		return true
	case p.in == (lease.Partition{}) && c.burntStaged[p.value]:
		return true
	case c.heldLess[p.value] > 0 && (c.w.now-c.heldLess[p.value] < repairMax || !c.couldRepair(p.value)): // a holder lost its disk, and the others may be silent
		return true
	case r.began-p.acked < follow.DoubtAge*6/5 && !c.askedHolders(r, p.value): // an announcement is on its way
		h.w.n.young++
		return true
	}
	return false
}

// askedHolders reports whether a reader asked all servers that have a staged value.
func (c *checker) askedHolders(r *read, value uint64) bool {
	return !slices.ContainsFunc(c.w.servers, func(s *server) bool { return len(c.held[value][s.disk.id]) > 0 && !slices.Contains(r.holders, s.id) })
}

// couldRepair reports whether a server that has a staged value ran for so long that it is on another one too.
func (c *checker) couldRepair(value uint64) bool {
	return slices.ContainsFunc(c.w.servers, func(s *server) bool {
		return len(c.held[value][s.disk.id]) > 0 && !s.dead && c.w.now-s.origin > repairMax+time.Second
	})
}

// repairMax is how long it may need until a frame of which a holder lost its disk is on another one.
const repairMax = 15 * time.Second

// stagedSkew is how much sooner or later than others a process with a fast or slow clock stages a row.
const stagedSkew = 200 * time.Millisecond

// nothingStaged reports the rows that still wait at servers.
func (w *world) nothingStaged() string {
	for _, s := range w.servers {
		if x := s.stager; x != nil && !s.dead && w.without == "" && x.m.Len() > 0 {
			return "staged rows wait on " + string(s.id)
		}
	}
	return ""
}
