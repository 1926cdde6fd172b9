package master

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Work carries out the steps of one table's plan: Step(now, input) effects. It has no clock, lock, I/O or goroutine and belongs
// to one goroutine.
//
// A partition without rows may be moved, split or merged freely; but rows might be acked between the look and the commit. So it
// is fenced:
//
//	Read ─▶ Commit: prohibited on its servers, the in-sync list empty ─▶ Change ─▶ Commit: prohibitions deleted ─▶ map servers, sweep ─▶ Ended
//	 ▲        │ compares that there is no lease row and never was one, or the row that says `empty`
//	 └────────┘ conflict: those that changed leave, the others are fenced without them
//
// An acquisition of a lease compares that the partition is not prohibited (C122), so none succeeds from the first Commit to the last.
// A leader changes the very row that the first Commit compares before its first ack, so that one of both fails; after the fence it
// stops. The next leader, once the old one has stopped or is silent for long enough, is one that the changed map names. If the
// answer to Change is lost, the fence stays until it is older than any change under way; a later master finds it by its note.
type Work struct {
	// Constant after NewWork.
	table  string
	steps  []*carried
	mapped bool                            // the table has a map
	rows   map[lease.Partition][]coord.Row // those to sweep

	seq    uint64 // the map's, as of our own changes
	lost   bool
	ended  bool
	nextID uint64
	then   func(Input) // handles the answer to the effect nextID; nil: none is under way

	// As of this Step.
	now time.Time
	out []Effect
}

// carried is a step and its progress.
type carried struct {
	Step
	reported bool
	doubt    bool        // its change may yet be committed
	fenced   []coord.Row // prohibitions to delete
	// inherited are fences of an earlier master that were written again: its change may still be committed, unless this step's is committed first.
	inherited []coord.Row
}

const (
	// Fencer is the author of a fence, in the note of the prohibition.
	Fencer = "master"
	// changeTimeout bounds one change of a map.
	changeTimeout = 15 * time.Second
	// fenceAge is the age from which a fence counts as left behind.
	fenceAge = 4 * changeTimeout
	// batchOps bounds the conditions, and the writes, of one transaction: etcd allows 128 of each.
	batchOps = 120
	// triesMax bounds how often a transaction is tried.
	triesMax = 3
	// tryAgain is the pause before a prohibition is deleted again.
	tryAgain = time.Second
)

// NewWork makes the work of one table. seq is that of the map on which the steps were planned, 0 where the table has none; rows
// are those of the partitions to sweep, as they were seen.
func NewWork(table string, seq uint64, steps []Step, rows map[lease.Partition][]coord.Row) *Work {
	w := &Work{table: table, seq: seq, mapped: seq > 0, rows: rows}
	for _, s := range steps {
		w.steps = append(w.steps, &carried{Step: s})
	}
	return w
}

// Fenced are the partitions that its steps fence.
func (w *Work) Fenced() (out []lease.Partition) {
	for _, s := range w.steps {
		for _, f := range s.Fences {
			out = append(out, f.Partition)
		}
	}
	return out
}

// Step handles the next input and appends the effects to perform. The first input is Begin.
func (w *Work) Step(now time.Time, in Input, out []Effect) []Effect {
	w.now, w.out = now, out
	switch in := in.(type) {
	case Begin:
		w.fence()
	case Lost:
		w.lost = true
	case Expired:
		w.expire()
	default:
		if then := w.then; then != nil && answers(in) == w.nextID {
			w.then = nil
			then(in)
		}
	}
	out, w.out = w.out, nil
	return out
}

// answers gives the effect that an input answers.
func answers(in Input) uint64 {
	switch in := in.(type) {
	case RowsRead:
		return in.ID
	case Committed:
		return in.ID
	case Changed:
		return in.ID
	case Waited:
		return in.ID
	}
	return 0
}

func (w *Work) read(keys []string, then func(RowsRead)) {
	w.nextID++
	w.then = func(in Input) { then(in.(RowsRead)) }
	w.out = append(w.out, Read{ID: w.nextID, Keys: keys})
}

func (w *Work) commit(b batch, then func(Committed)) {
	w.nextID++
	w.then = func(in Input) { then(in.(Committed)) }
	w.out = append(w.out, Commit{ID: w.nextID, Conditions: b.conditions, Writes: b.writes})
}

func (w *Work) change(make func(id uint64) Effect, then func(Changed)) {
	w.nextID++
	w.then = func(in Input) { then(in.(Changed)) }
	w.out = append(w.out, make(w.nextID))
}

func (w *Work) wait(d time.Duration, then func()) {
	w.nextID++
	w.then = func(Input) { then() }
	w.out = append(w.out, Wait{ID: w.nextID, For: d})
}

func (w *Work) report(s *carried, err error) {
	if s.reported {
		return
	}
	s.reported = true
	w.out = append(w.out, Report{Step: s.Step, Err: err})
}

func (w *Work) end() {
	w.ended, w.then = true, nil
	var left []string
	for _, s := range w.steps {
		for _, row := range slices.Concat(s.fenced, s.inherited) {
			left = append(left, row.Key)
		}
	}
	w.out = append(w.out, Ended{Left: left})
}

func (w *Work) expire() {
	if w.ended {
		return
	}
	for _, s := range w.steps {
		w.report(s, fault.Errorf(fault.Unavailable, "there was no more time for it"))
	}
	w.end()
}

// pending returns the steps not reported yet that satisfy is.
func (w *Work) pending(is func(*carried) bool) (out []*carried) {
	for _, s := range w.steps {
		if !s.reported && is(s) {
			out = append(out, s)
		}
	}
	return out
}

// Changing the map.

// changeAll commits all steps in one transaction; if that is refused, one by one.
func (w *Work) changeAll() {
	steps := w.pending(func(s *carried) bool { return len(s.Ops) > 0 })
	w.changeThese(steps, func(c Changed) {
		if fault.Is(c.Err, fault.Invalid) && len(steps) > 1 {
			w.changeEach(steps)
			return
		}
		w.changed(steps, c)
		w.unfence()
	})
}

func (w *Work) changeEach(steps []*carried) {
	if len(steps) == 0 {
		w.unfence()
		return
	}
	w.changeThese(steps[:1], func(c Changed) {
		w.changed(steps[:1], c)
		w.changeEach(steps[1:])
	})
}

// changeThese proposes the ops of steps as one transaction.
func (w *Work) changeThese(steps []*carried, then func(Changed)) {
	if len(steps) == 0 || w.lost {
		then(Changed{Seq: w.seq, Err: fault.Wrap(errLost, fault.Stale, "not begun")})
		return
	}
	var ops []topology.Op
	for _, s := range steps {
		ops = append(ops, s.Ops...)
		s.doubt = true // until the answer is here
	}
	w.change(func(id uint64) Effect { return Change{ID: id, Table: w.table, Seq: w.seq, Ops: ops} }, func(c Changed) {
		for _, s := range steps {
			s.doubt = inDoubt(c.Err)
		}
		then(c)
	})
}

func (w *Work) changed(steps []*carried, c Changed) {
	if c.Err == nil {
		w.seq = c.Seq
	}
	for _, s := range steps {
		if c.Err == nil {
			s.fenced, s.inherited = append(s.fenced, s.inherited...), nil
		}
		w.report(s, c.Err)
	}
}

// inDoubt reports whether a change may yet be committed.
func inDoubt(err error) bool {
	return err != nil && !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Stale) && !fault.Is(err, fault.NotFound)
}

// The table as a whole.

// others carries out the steps that change no partitions: metadata servers, the end of a drop, leads handed over, reliefs, sweeping.
func (w *Work) others() {
	for _, s := range w.pending(func(s *carried) bool { return s.MapServer != nil || s.Drop }) {
		if w.lost {
			w.report(s, fault.Wrap(errLost, fault.Stale, "not begun"))
			continue
		}
		w.change(func(id uint64) Effect {
			if s.Drop {
				return DropTable{ID: id, Table: w.table}
			}
			return ChangeMapServer{ID: id, Table: w.table, MapServer: *s.MapServer}
		}, func(c Changed) {
			w.report(s, c.Err)
			w.others()
		})
		return
	}
	if hands := w.pending(func(s *carried) bool { return s.Hand != nil }); len(hands) > 0 {
		w.hand(hands[0])
		return
	}
	if reliefs := w.pending(func(s *carried) bool { return s.Relief != nil }); len(reliefs) > 0 {
		w.relieve(reliefs[0])
		return
	}
	sweeps := w.pending(func(s *carried) bool { return len(s.Sweep) > 0 })
	if len(sweeps) == 0 {
		w.end()
		return
	}
	w.sweep(sweeps[0])
}

// hand asks the holder of a lease to hand it over, in the row, which must be of the lease that the plan saw.
func (w *Work) hand(s *carried) {
	end := func(err error) {
		w.report(s, err)
		w.others()
	}
	if w.lost {
		end(fault.Wrap(errLost, fault.Stale, "not begun"))
		return
	}
	key := lease.RowKey(s.Hand.Partition)
	w.read([]string{key}, func(in RowsRead) {
		if in.Err != nil {
			end(in.Err)
			return
		}
		row, err := lease.DecodeLease(in.Rows[0].Value)
		if err != nil || w.lost || row.State != lease.Held || row.Holder != s.Hand.From || row.Epoch != s.Hand.Epoch {
			end(errOr(nil, "its lease row changed"))
			return
		}
		row = row.HandedTo(lease.Next{Server: s.Hand.To, Note: lease.Note{Who: Fencer, When: w.now, Reason: s.Why}})
		w.commit(batch{conditions: []coord.Condition{{Key: key, Revision: in.Rows[0].Revision}}, writes: []coord.Write{{Key: key, Value: row.Encode()}}}, func(c Committed) {
			if c.Err == nil && !c.OK {
				c.Err = errOr(nil, "its lease row changed")
			}
			end(c.Err)
		})
	})
}

// relieve writes a relief into the registry row of the server that a copy is to leave, or deletes it there. It reads the rows of all servers anew, since one relief is under
// way at a time, as a rule: only the row that is written is compared, so that two masters may begin one each.
func (w *Work) relieve(s *carried) {
	end := func(err error) {
		w.report(s, err)
		w.others()
	}
	if w.lost {
		end(fault.Wrap(errLost, fault.Stale, "not begun"))
		return
	}
	keys := []string{registry.Key(s.Relief.From)}
	for _, srv := range s.Relief.Servers {
		if srv != s.Relief.From {
			keys = append(keys, registry.Key(srv))
		}
	}
	w.read(keys, func(in RowsRead) {
		if in.Err != nil || w.lost {
			end(errOr(in.Err, "not begun"))
			return
		}
		next, why := s.Relief.in(in.Rows, lease.Note{Who: Fencer, When: w.now, Reason: s.Why})
		if why != "" {
			end(errOr(nil, why))
			return
		}
		w.commit(batch{conditions: []coord.Condition{{Key: keys[0], Revision: in.Rows[0].Revision}}, writes: []coord.Write{{Key: keys[0], Value: next.Encode()}}}, func(c Committed) {
			if c.Err == nil && !c.OK {
				c.Err = errOr(nil, "the server's row changed")
			}
			end(c.Err)
		})
	})
}

// in returns the registry row of the server with the relief, or without it where it ends, from the rows of all servers, its own first; or why that cannot be.
func (r *Relief) in(rows []coord.Row, note lease.Note) (next registry.Server, why string) {
	target := false
	for i, row := range rows {
		srv, err := registry.Decode(row)
		switch {
		case i == 0 && (row.Revision == 0 || err != nil):
			return next, "the server's row is gone, or cannot be read"
		case i == 0:
			next = srv
		}
		target = target || err == nil && row.Revision != 0 && srv.ID == r.Move.To && srv.Drain == nil
		if !r.End && slices.ContainsFunc(srv.Moves, isRelief) {
			return next, "another copy is being moved for load"
		}
	}
	_, moves := next.MoveOf(r.Move.Table, r.Move.Placement)
	switch {
	case r.End:
		kept := slices.DeleteFunc(slices.Clone(next.Moves), func(m registry.Move) bool {
			return isRelief(m) && m.Table == r.Move.Table && m.Placement == r.Move.Placement
		})
		if len(kept) == len(next.Moves) {
			return next, "it has ended"
		}
		if next.Moves = kept; r.Unfilled {
			m := r.Move
			m.Note = note
			next.AddUnfilled(m, note.When.Add(-movedMax))
		}
	case !target:
		return next, fmt.Sprintf("%s is drained, or its row is gone", r.Move.To)
	case moves:
		return next, "a person moves it away from there"
	default:
		m := r.Move
		m.Note = note
		stands := func(old registry.Move) bool {
			return !slices.ContainsFunc(r.Over, func(x registry.Move) bool { return x.Table == old.Table && x.Placement == old.Placement })
		}
		if err := next.Add(m, stands); err != nil {
			return next, err.Error()
		}
	}
	return next, ""
}

// sweep deletes the lease rows of partitions that are no more. Where the table has no map, its row must say that it was
// dropped: a map that merely cannot be fetched proves nothing. The first transaction notes in the table's Swept row as of which map rows
// are missing: an acquisition that finds no row compares this, so that none by an older map succeeds, whether it is under way or comes later.
func (w *Work) sweep(s *carried) {
	swept, table := lease.SweptKey(w.table), mapstore.Key(w.table)
	w.read([]string{swept, table}, func(in RowsRead) {
		if in.Err != nil || !w.mapped && !tableGone(in.Rows[1]) {
			w.report(s, errOr(in.Err, "the table is there"))
			w.others()
			return
		}
		var guard, first batch
		seq := w.seq
		if !w.mapped {
			guard.conditions = append(guard.conditions, coord.Condition{Key: table, Revision: in.Rows[1].Revision})
			if row, err := mapstore.DecodeRow(in.Rows[1]); err == nil {
				seq = row.Seq
			}
		}
		if known, err := lease.DecodeSwept(in.Rows[0].Value); err != nil || known.Seq < seq {
			first.conditions = append(first.conditions, coord.Condition{Key: swept, Revision: in.Rows[0].Revision})
			first.writes = append(first.writes, coord.Write{Key: swept, Value: lease.Swept{Seq: seq}.Encode()})
		}
		w.sweepSome(s, guard, first, s.Sweep, 0)
	})
}

// sweepSome sweeps as many partitions as fit into a transaction, then the others. guard is part of every transaction, first of
// the first one only.
func (w *Work) sweepSome(s *carried, guard, first batch, parts []lease.Partition, tries int) {
	b, n := batch{conditions: slices.Concat(guard.conditions, first.conditions), writes: slices.Clone(first.writes)}, 0
	for ; n < len(parts) && b.add(forgotten(w.rows[parts[n]])); n++ {
	}
	if n == 0 || w.lost {
		if len(parts) == 0 {
			w.report(s, nil)
		} else {
			w.report(s, fault.Wrap(errLost, fault.Stale, "not all were swept"))
		}
		w.others()
		return
	}
	w.commit(b, func(c Committed) {
		switch {
		case c.Err != nil:
			w.report(s, c.Err)
			w.others()
		case c.OK:
			w.sweepSome(s, guard, batch{}, parts[n:], 0)
		case tries+1 >= triesMax:
			w.report(s, errOr(nil, "its rows changed"))
			w.others()
		default:
			w.sweepOthers(s, guard, first, parts, n, tries+1)
		}
	})
}

// sweepOthers leaves out those of the first n partitions with changed rows, and sweeps the rest.
func (w *Work) sweepOthers(s *carried, guard, first batch, parts []lease.Partition, n, tries int) {
	var keys []string
	for _, p := range parts[:n] {
		for _, row := range w.rows[p] {
			keys = append(keys, row.Key)
		}
	}
	w.read(keys, func(in RowsRead) {
		if in.Err != nil {
			w.report(s, in.Err)
			w.others()
			return
		}
		rest, at := []lease.Partition(nil), 0
		for _, p := range parts[:n] {
			same := true
			for _, row := range w.rows[p] {
				same = same && in.Rows[at].Revision == row.Revision
				at++
			}
			if same {
				rest = append(rest, p)
			}
		}
		if len(rest) < n { // the next round sees their new state
			tries = 0
		}
		w.sweepSome(s, guard, first, append(rest, parts[n:]...), tries)
	})
}

// tableGone reports whether a table was dropped: its row says so, or there is none.
func tableGone(row coord.Row) bool {
	if row.Revision == 0 {
		return true
	}
	r, err := mapstore.DecodeRow(row)
	return err == nil && r.Dropped // a row that cannot be read is no reason to forget anything
}

// forgotten is the transaction that deletes rows that are still as they were seen; those of revision 0 were not there.
func forgotten(rows []coord.Row) (b batch) {
	for _, row := range rows {
		b.conditions = append(b.conditions, coord.Condition{Key: row.Key, Revision: row.Revision})
		if row.Revision != 0 {
			b.writes = append(b.writes, coord.Write{Key: row.Key, Delete: true})
		}
	}
	return b
}

// batch is a transaction of the coordination store that is being put together.
type batch struct {
	conditions []coord.Condition
	writes     []coord.Write
	parts      int
}

// add adds another transaction if there is room.
func (b *batch) add(more batch) bool {
	if b.parts > 0 && (len(b.conditions)+len(more.conditions) > batchOps || len(b.writes)+len(more.writes) > batchOps) {
		return false
	}
	b.conditions, b.writes = append(b.conditions, more.conditions...), append(b.writes, more.writes...)
	b.parts++
	return true
}

func errOr(err error, text string) error {
	if err == nil {
		return fault.Errorf(fault.Stale, "%s", text)
	}
	return err
}
