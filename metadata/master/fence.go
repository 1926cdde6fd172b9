package master

import (
	"encoding/json"
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// guard is one fence that a step wants.
type guard struct {
	step *carried
	Fence
}

// keys are the rows that the fence depends on: the lease row, then the prohibitions.
func (g guard) keys() []string {
	keys := []string{lease.RowKey(g.Partition)}
	for _, s := range g.Servers {
		keys = append(keys, lease.ProhibitKey(g.Partition, s))
	}
	return keys
}

// fence puts up the fences of all steps, many in a transaction, then changes the map.
func (w *Work) fence() {
	var guards []guard
	for _, s := range w.steps {
		for _, f := range s.Fences {
			guards = append(guards, guard{s, f})
		}
	}
	w.fenceSome(guards, 0)
}

// fenceSome fences as many as fit into a transaction, then the others.
func (w *Work) fenceSome(guards []guard, tries int) {
	guards = slices.DeleteFunc(guards, func(g guard) bool { return g.step.reported })
	if len(guards) == 0 || w.lost {
		w.changeAll()
		return
	}
	n, ops := 0, 0
	for n < len(guards) && (n == 0 || ops+len(guards[n].Servers)+2 <= batchOps) {
		ops += len(guards[n].Servers) + 2 // the lease row and the born row besides
		n++
	}
	var keys []string
	for _, g := range guards[:n] {
		keys = append(keys, g.keys()...)
	}
	w.read(keys, func(in RowsRead) {
		if in.Err != nil {
			for _, g := range guards[:n] {
				w.report(g.step, in.Err)
			}
			w.fenceSome(guards[n:], 0)
			return
		}
		w.fenceThese(guards, n, in.Rows, tries)
	})
}

// fenceThese commits the fences of the first n guards, as their rows require. Steps that may not be fenced are given up.
func (w *Work) fenceThese(guards []guard, n int, rows []coord.Row, tries int) {
	var b batch
	var fenced []guard
	put, anew := map[*carried][]coord.Row{}, map[*carried][]coord.Row{}
	for _, g := range guards[:n] {
		mine := rows[:len(g.Servers)+1]
		there := map[string]bool{}
		for _, row := range mine {
			there[row.Key] = row.Revision != 0
		}
		rows = rows[len(mine):]
		one, err := w.fenceOf(g, mine)
		if err != nil {
			w.report(g.step, err)
		}
		if g.step.reported {
			continue
		}
		fenced = append(fenced, g)
		b.conditions, b.writes = append(b.conditions, one.conditions...), append(b.writes, one.writes...)
		for _, write := range one.writes {
			if _, _, ok := lease.ParseProhibitKey(write.Key); ok && there[write.Key] {
				anew[g.step] = append(anew[g.step], coord.Row{Key: write.Key})
			} else if ok {
				put[g.step] = append(put[g.step], coord.Row{Key: write.Key})
			}
		}
	}
	rest := guards[n:]
	if len(fenced) == 0 {
		w.fenceSome(rest, 0)
		return
	}
	w.commit(b, func(c Committed) {
		switch {
		case c.Err == nil && !c.OK && tries+1 < triesMax:
			w.fenceSome(append(fenced, rest...), tries+1) // see which changed
			return
		case c.Err != nil: // the fence may stand: it is deleted when it is old
			for _, g := range fenced {
				w.report(g.step, c.Err)
			}
		case !c.OK:
			for _, g := range fenced {
				w.report(g.step, fault.Errorf(fault.Stale, "the lease row of %s, or of one beside it, kept changing", g.Partition))
			}
		default:
			for _, g := range fenced {
				g.step.fenced = append(g.step.fenced, as(c.Revision, put[g.step])...)
				g.step.inherited = append(g.step.inherited, as(c.Revision, anew[g.step])...)
				delete(put, g.step)
				delete(anew, g.step)
			}
		}
		w.fenceSome(rest, 0)
	})
}

// fenceOf gives the conditions for a partition to be empty, and the writes that end its lease and keep others from
// acquiring it. Errors are Stale: it may have rows, or a person set it offline.
func (w *Work) fenceOf(g guard, rows []coord.Row) (b batch, err error) {
	if row := rows[0]; row.Revision == 0 {
		b.conditions = append(b.conditions, coord.Condition{Key: lease.RowKey(g.Partition)}, coord.Condition{Key: lease.BornKey(g.Partition)})
	} else {
		led, err := lease.DecodeLease(row.Value)
		if err != nil || !led.Empty || led.Offline != nil {
			return batch{}, fault.Errorf(fault.Stale, "%s may have rows by now", g.Partition)
		}
		b.conditions = append(b.conditions, coord.Condition{Key: row.Key, Revision: row.Revision})
		if !led.Vacant() {
			b.writes = append(b.writes, coord.Write{Key: row.Key, Value: led.Vacated().Encode()})
		}
	}
	for i, server := range g.Servers {
		write := lease.Prohibit(g.Partition, server, lease.Note{Who: Fencer, When: w.now.UTC(), Reason: g.step.What})
		b.conditions = append(b.conditions, coord.Condition{Key: write.Key, Revision: rows[i+1].Revision})
		switch row := rows[i+1]; {
		case row.Revision == 0:
			b.writes = append(b.writes, write)
		case isFence(row):
			// Another master's fence is written again with the same value, and keeps its age: that master compares the revision before it deletes the fence,
			// and so cannot delete it while this change is under way.
			b.writes = append(b.writes, coord.Write{Key: row.Key, Value: row.Value})
		default: // a person's prohibition fences as well, and stays
		}
	}
	return b, nil
}

// isFence reports whether a prohibition is a master's. One that cannot be read counts as a person's.
func isFence(row coord.Row) bool {
	var note lease.Note
	return json.Unmarshal(row.Value, &note) == nil && note.Who == Fencer
}

// as gives rows a revision.
func as(rev coord.Revision, rows []coord.Row) []coord.Row {
	for i := range rows {
		rows[i].Revision = rev
	}
	return rows
}

// unfence deletes the fences of all steps with a decided change, if they are still as they were written.
func (w *Work) unfence() {
	var rows []coord.Row
	for _, s := range w.steps {
		if !s.doubt {
			rows = append(rows, s.fenced...)
		}
	}
	w.unfenceSome(rows, batchOps, 0)
}

func (w *Work) unfenceSome(rows []coord.Row, n, tries int) {
	if len(rows) == 0 {
		w.others()
		return
	}
	n = min(n, len(rows))
	w.commit(forgotten(rows[:n]), func(c Committed) {
		switch {
		case c.Err != nil && tries+1 < triesMax:
			w.wait(tryAgain, func() { w.unfenceSome(rows, n, tries+1) })
			return
		case c.Err != nil:
			w.others() // a later master deletes them when they are old
			return
		case !c.OK && n > 1:
			w.unfenceSome(rows, 1, 0) // one row was changed: each by itself
			return
		}
		for _, row := range rows[:n] {
			w.unfenced(row)
		}
		w.unfenceSome(rows[n:], batchOps, 0)
	})
}

// unfenced notes that a prohibition is gone, or is another's by now.
func (w *Work) unfenced(row coord.Row) {
	for _, s := range w.steps {
		s.fenced = slices.DeleteFunc(s.fenced, func(r coord.Row) bool { return r.Key == row.Key })
	}
}
