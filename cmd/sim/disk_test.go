package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
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

// TestARowBelowALateSecondTryMayBeMissingWhereTheAnswerSaysSo: a gateway of the version before writes a row, and a newer one of the same key. Then its late second try of the first
// is logged, over the newer one, and a disk damages it. Setting it aside loses both. A row of a gateway of this version is not logged twice.
func TestARowBelowALateSecondTryMayBeMissingWhereTheAnswerSaysSo(t *testing.T) {
	in := lease.Partition{Table: "net", ID: 1}
	m, err := topology.New(in.Table, topology.Config{PartitionWidth: time.Hour, Replicas: 1})
	if err == nil {
		m, err = m.Apply(topology.Create{Partitions: []topology.Partition{{ID: in.ID, TimeHi: point.Nanos(time.Hour), Placements: []topology.Placement{{ID: 1, Server: "s1"}}}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ older, warned, excused bool }{{true, true, true}, {true, false, false}, {false, true, false}} {
		w := newDiskStory().w
		first := &written{value: 46, began: 1000, acked: 2000, in: in, older: x.older}
		newer := &written{value: 96, began: 3000, acked: 4000, in: in, older: x.older}
		w.check.damaged[first.value] = true
		r := &read{began: 5000, m: m, warned: x.warned}
		if got := w.history.excused(r, []*written{first, newer}, newer, nil); got != x.excused {
			t.Errorf("%+v: the answer without the newer row is excused: %v", x, got)
		}
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
