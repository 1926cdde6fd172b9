package forward

import (
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A gateway knows the limits of tables and its own series; how many series a storage server has memory for, that server knows: it refuses
// those of tables above their share (peer.Offerer). Their rows leave the share that they came in, which goes on without them, and are refused
// in the batch as if the gateway had refused them.

// unkept collects the rows of a write that servers refused, of all its tries.
type unkept struct {
	rows map[rowAt]string // why
}

// rowAt names the rows of a series at a time: all of them went to one partition.
type rowAt struct {
	id   point.SeriesID
	at   point.Nanos
	hist bool
}

// refuse removes the rows of refused series from a share. The share gets new columns, since others may use the old ones. Rows that were acked before (rest.acked) stay
// counted: the rank of a piece follows from its place in the share. An atomic write ends with an error.
func (w *attempt) refuse(refused peer.Refused, rest *pieces) error {
	not := make(map[point.SeriesID]struct{}, len(refused.IDs))
	for _, id := range refused.IDs {
		not[id] = struct{}{}
	}
	w.t.f.metrics.refusedSeries.Add(float64(len(not)))
	if w.whole != nil {
		return fault.Errorf(fault.Invalid, "an atomic request is kept whole or not at all, and %d of its series are refused: %s: %s",
			len(not), w.g.dict.Labels(refused.IDs[0]).Short(), refused.Reason)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unkept.rows == nil {
		w.unkept.rows = map[rowAt]string{}
	}
	left := pieces{acked: rest.acked}
	for i, id := range rest.ids {
		if _, is := not[id]; is {
			w.unkept.rows[rowAt{id, rest.times[i], false}] = refused.Reason
			continue
		}
		left.ids, left.times, left.values = append(left.ids, id), append(left.times, rest.times[i]), append(left.values, rest.values[i])
	}
	for _, h := range rest.hists {
		if _, is := not[h.ID]; is {
			w.unkept.rows[rowAt{h.ID, h.Time, true}] = refused.Reason
			continue
		}
		left.hists = append(left.hists, h)
	}
	for _, e := range rest.exemplars { // they count as no rows
		if _, is := not[e.ID]; !is {
			left.exemplars = append(left.exemplars, e)
		}
	}
	*rest = left
	return nil
}

// report refuses the rows in b, whose rows have the same places as those of rows, by whose dictionary they are numbered.
func (u *unkept) report(b, rows *point.Batch) {
	if len(u.rows) == 0 {
		return
	}
	var of point.SeriesID
	var next point.Refusal
	n := 0
	flush := func() {
		if n > 0 {
			b.Refuse(n, next)
		}
		n = 0
	}
	note := func(at rowAt, item int) {
		reason, is := u.rows[at]
		if !is {
			return
		}
		if n == 0 || at.id != of || item != next.Item {
			flush()
			of, next = at.id, point.Refusal{Item: item, Text: rows.Dict.Labels(at.id).Short(), Reason: reason, Kind: fault.Invalid}
		}
		n++
	}
	for i, id := range rows.IDs {
		at := rowAt{id, rows.Times[i], false}
		if _, is := u.rows[at]; is {
			b.Unkept.Floats = append(b.Unkept.Floats, i)
			note(at, b.Item(i))
		}
	}
	for i, h := range rows.Hists {
		at := rowAt{h.ID, h.Time, true}
		if _, is := u.rows[at]; is {
			b.Unkept.Hists = append(b.Unkept.Hists, i)
			note(at, 0)
		}
	}
	flush()
}
