package mapstore

import (
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
)

const (
	// guardsMax bounds the partitions with lease rows that are compared and written in the swap itself: two conditions and one write
	// each, beside the table's row. etcd allows 128 of each.
	guardsMax = 60
	// marksMax bounds how often a batch of marks is tried again because one of its rows changed.
	marksMax = 4
)

// guard begins with the lease rows that the swap must compare and write, once a majority has the file.
//
//	up to guardsMax    ReadGuards ─▶ Swap: the table's row and the lease rows, in one store transaction
//	more               ReadGuards ─▶ Mark ─▶ ReadGuards ─▶ Mark … ─▶ Swap: the table's row alone
//
// A mark is the number of a transaction that is not committed yet. It keeps every process with an older map from the partition. If
// the swap is never made, any later change of the table's row, a touch too, shows that (lease.Guard).
func (t *Txn) guard() {
	t.marked, t.conflicts = 0, 0
	t.readGuards()
}

// batch returns the next guards to mark or write.
func (t *Txn) batch() []lease.Guard { return t.guards[t.marked:min(len(t.guards), t.marked+guardsMax)] }

func (t *Txn) readGuards() {
	batch := t.batch()
	if len(batch) == 0 {
		t.swap(nil, nil)
		return
	}
	keys := make([]string, 0, 2*len(batch))
	for _, g := range batch {
		k := g.Keys()
		keys = append(keys, k[:]...)
	}
	t.phase = guarding
	t.do(ReadGuards{Round: t.round, Keys: keys})
}

func (t *Txn) guardsRead(in GuardsRead) {
	if in.Err != nil {
		if t.failed++; t.failed > silenceMax {
			t.unavailable(in.Err)
			return
		}
		t.read()
		return
	}
	mark := coord.Revision(0)
	if len(t.guards) > guardsMax {
		mark = t.rev
	}
	var conditions []coord.Condition
	var writes []coord.Write
	for _, g := range t.batch() {
		c, w, err := g.Write(t.next.Seq, in.Rows, mark)
		if err != nil {
			t.refused(err)
			return
		}
		conditions, writes = append(conditions, c...), append(writes, w...)
	}
	switch {
	case mark == 0:
		t.swap(conditions, writes)
	case len(writes) == 0:
		t.markedRows(RowsMarked{Round: t.round, OK: true})
	default:
		t.phase = marking
		t.do(MarkRows{Round: t.round, Conditions: append(conditions, coord.Condition{Key: Key(t.table), Revision: t.rev}), Writes: writes})
	}
}

// refused ends a transaction that its lease rows do not allow. One of its earlier swaps may still be under way.
func (t *Txn) refused(err error) {
	if t.unknown || fault.Is(err, fault.Unavailable) {
		t.unavailable(err)
		return
	}
	t.end(fault.Annotate(err, "table %q", t.table))
}

func (t *Txn) markedRows(in RowsMarked) {
	switch {
	case in.Err != nil:
		if t.failed++; t.failed > silenceMax {
			t.unavailable(in.Err)
			return
		}
		t.read()
	case in.OK:
		t.marked += len(t.batch())
		t.conflicts = 0
		t.readGuards()
	case t.conflicts >= marksMax:
		t.read() // perhaps it is the table's row that changed
	default:
		t.conflicts++
		t.readGuards()
	}
}
