package main

import (
	"bytes"
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// rot damages something on a server's disk that was synced long ago: a METADATA file or a row.
func (w *world) rot(s *server, rng *rand.Rand) {
	if s.disk.fenced {
		return
	}
	if rng.IntN(2) == 0 {
		w.rotFile(s, rng)
	} else {
		w.rotRow(s, rng)
	}
}

// rotFile flips a bit of a METADATA file, or puts another one in its place. Of the committed file of a table a majority
// stays whole: more than that no sum can mend.
func (w *world) rotFile(s *server, rng *rand.Rand) {
	txns := slices.SortedFunc(maps.Keys(s.disk.files), compareTxns)
	if len(txns) == 0 {
		return
	}
	txn := txns[rng.IntN(len(txns))]
	if w.check.isCommitted(txn) && !w.check.mayLose(s) || w.check.has[s.id][txn] == nil {
		return
	}
	w.n.rots++
	old := s.disk.files[txn]
	damaged := &stored{f: old.f}
	if other := txns[rng.IntN(len(txns))]; other != txn && rng.IntN(100) < 30 {
		damaged.f = s.disk.files[other].f
	} else {
		f := *old.f
		f.Map = bytes.Clone(f.Map)
		f.Map[rng.IntN(len(f.Map))] ^= 1 << rng.IntN(8)
		damaged.f = &f
	}
	s.disk.files[txn] = damaged
	w.say("%s: the disk damages the file of transaction %d", s.id, old.f.Seq)
	w.check.fileLost(s.id, txn)
}

// rotRow flips a bit of a row's record, or puts another record in its place.
func (w *world) rotRow(s *server, rng *rand.Rand) {
	var held []lease.Partition
	for _, id := range s.disk.held() {
		if r := s.disk.copies[id]; len(r.rows) > 0 && !r.closed && r.log == nil {
			held = append(held, id)
		}
	}
	if len(held) == 0 {
		return
	}
	id := held[rng.IntN(len(held))]
	r := s.disk.copies[id]
	keys := slices.Sorted(maps.Keys(r.rows))
	key := keys[rng.IntN(len(keys))]
	c := r.rows[key]
	if c.at >= s.disk.synced || !c.whole(key) {
		return
	}
	if other := keys[rng.IntN(len(keys))]; other != key && rng.IntN(100) < 30 {
		at := c.at // where it lies, or a start would treat it as the torn end of the log
		c = r.rows[other]
		if !c.whole(other) {
			return
		}
		c.at = at
	} else {
		c.value ^= 1 << rng.IntN(64)
	}
	w.n.rots++
	w.check.rowLost(s.disk.id, id, r.rows[key].row)
	r.rows[key] = c
	r.suspect++
	w.say("%s: the disk damages a row of %s", s.id, id)
}

func compareTxns(a, b peer.TxnID) int { return bytes.Compare(a[:], b[:]) }

// scrub reads the whole disk, and so finds damage.
func (s *server) scrub() {
	for _, id := range s.disk.held() {
		if r := s.disk.copies[id]; len(r.bad()) > 0 {
			s.w.damaged(s.disk, id, r, rowDamageScrubbed)
		}
	}
	for _, txn := range slices.SortedFunc(maps.Keys(s.disk.files), func(a, b peer.TxnID) int {
		return cmp.Or(cmp.Compare(s.disk.files[a].f.Seq, s.disk.files[b].f.Seq), compareTxns(a, b))
	}) {
		for _, table := range s.w.tables {
			if _, here := s.shelf.Get(table, txn); here {
				s.file(table, txn)
			}
		}
	}
}
