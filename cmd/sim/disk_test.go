package main

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/metadata/lease"
)

// diskStory is a partition on the disk of s1, which leads it.
type diskStory struct {
	w  *world
	s  *server
	id lease.Partition
	r  *replica
}

func newDiskStory() *diskStory {
	w := newWorld(options(1, 1))
	w.boot(0, true)
	x := &diskStory{w: w, s: w.servers[0], id: lease.Partition{Table: "net", ID: 13}}
	x.r = x.s.disk.raise(x.id, 1, 1)
	x.synced()
	return x
}

// synced has an fsync return.
func (x *diskStory) synced() {
	d := x.s.disk
	d.synced, d.log = d.synced+uint64(len(d.log)), nil
}

func (x *diskStory) logs(r row) { x.s.disk.append(x.r, r, 1) }

func (x *diskStory) acks(r row) {
	x.logs(r)
	x.synced()
	x.w.check.acked(x.s, x.id, r, r.rank)
}

// rots has the disk flip a bit of the key's newest record.
func (x *diskStory) rots(key keyID) {
	c := x.r.rows[key]
	x.w.check.rowLost(x.s.disk.id, x.id, c.row)
	c.value ^= 1
	x.r.rows[key] = c
	x.r.suspect++
}

// reads has the checker see an answer from the disk's content.
func (x *diskStory) reads(key keyID, incomplete bool) string {
	x.w.check.read(x.s, question{id: x.id, keys: []keyID{key}}, found{may: true, rows: []row{x.r.rows[key].row}, incomplete: incomplete})
	return x.w.broken
}

// TestARowBelowADamagedOneMayBeMissingWhereTheAnswerSaysSo: a row is acked, a second one of its key is durable but was never acked, and a disk
// damages that. Setting it aside loses both.
func TestARowBelowADamagedOneMayBeMissingWhereTheAnswerSaysSo(t *testing.T) {
	const key = 388
	story := func() *diskStory {
		x := newDiskStory()
		x.acks(row{key, 0x1aa, 1000})
		x.logs(row{key, 0x1e7, 2000})
		x.synced()
		x.rots(key)
		x.s.disk.repair(x.r)
		return x
	}
	if broken := story().reads(key, true); broken != "" {
		t.Errorf("the answer says that it is incomplete: %s", broken)
	}
	if broken := story().reads(key, false); !strings.HasPrefix(broken, "I1") {
		t.Errorf("the answer does not say that it is incomplete: %q", broken)
	}
	x := story()
	x.acks(row{key, 0x1ff, 3000})
	delete(x.r.rows, key)
	if broken := x.reads(key, true); !strings.HasPrefix(broken, "I1") {
		t.Errorf("a row that was acked after the damage is missing: %q", broken)
	}
	x = newDiskStory()
	x.logs(row{key, 0x1e7, 2000})
	x.synced()
	x.rots(key)
	x.acks(row{key, 0x1ff, 3000})
	x.acks(row{key + 1, 0x200, 3000})
	delete(x.r.rows, key+1)
	if broken := x.reads(key+1, true); !strings.HasPrefix(broken, "I1") {
		t.Errorf("a row of another key is missing: %q", broken)
	}
}

// TestDamageBelowATornRecordIsFound: a start that cuts a torn record looks at the one below.
func TestDamageBelowATornRecordIsFound(t *testing.T) {
	const key = 7
	x := newDiskStory()
	x.acks(row{key, 0x1aa, 1000})
	x.rots(key)
	x.logs(row{key, 0x1e7, 2000})
	d := x.s.disk
	d.log[0].tear()
	d.log = nil
	d.replay(x.w)
	if !x.r.closed || x.r.suspect != 1 {
		t.Errorf("closed %v, %d suspect", x.r.closed, x.r.suspect)
	}
	d.repair(x.r)
	if _, there := x.r.rows[key]; there || !x.r.incomplete {
		t.Errorf("the damaged row is there: %v; incomplete: %v", there, x.r.incomplete)
	}
}
