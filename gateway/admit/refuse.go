package admit

import (
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// refuser makes one refusal of neighbouring rows that share an item and a reason: a line with twenty fields at a bad
// time is one complaint, and so is a series with a hundred old samples.
type refuser struct {
	b      *point.Batch
	w      *window
	counts Counts

	exemplars bool // they are no rows, and counted apart

	// The run that is being collected.
	rows     int
	item     int
	id       point.SeriesID // of its first row
	ahead    bool
	min, max point.Nanos
}

func (r *refuser) refuse(item int, id point.SeriesID, t point.Nanos) {
	ahead := t > r.w.Hi
	same := r.rows > 0 && ahead == r.ahead && item == r.item && (item > 0 || id == r.id)
	if !same {
		r.flush()
		r.item, r.id, r.ahead, r.min, r.max = item, id, ahead, t, t
	}
	r.rows++
	r.min, r.max = min(r.min, t), max(r.max, t)
}

func (r *refuser) finish() Counts {
	r.flush()
	return r.counts
}

func (r *refuser) flush() {
	if r.rows == 0 {
		return
	}
	if r.exemplars {
		r.counts.Exemplars += r.rows
		r.b.RefuseExemplars(r.rows, 0, r.b.Dict.Labels(r.id).Short, "exemplar: "+r.reason())
		r.rows = 0
		return
	}
	if r.ahead {
		r.counts.Ahead += r.rows
	} else {
		r.counts.Old += r.rows
	}
	var why point.Refusal
	if len(r.b.Refused) < point.RefusalsMax { // further reasons are not kept
		why = point.Refusal{Item: r.item, Text: r.b.Dict.Labels(r.id).Short(), Reason: r.reason(), Kind: fault.Invalid}
	}
	r.b.Refuse(r.rows, why)
	r.rows = 0
}

func (r *refuser) reason() string {
	at := "time " + format(r.min) + " is"
	if r.min != r.max {
		at = fmt.Sprintf("times from %s to %s are", format(r.min), format(r.max))
	}
	switch {
	case !r.ahead && r.w.past > 0:
		return fmt.Sprintf("%s too old: more than %v before now", at, r.w.past)
	case !r.ahead:
		return at + " older than what the table keeps: from " + format(r.w.Lo) + " on"
	case r.w.now != 0:
		return fmt.Sprintf("%s too far ahead: more than %v after now, %s", at, time.Duration(r.w.Hi-r.w.now), format(r.w.now))
	}
	return at + " beyond what the table keeps: up to " + format(r.w.Hi)
}

func format(t point.Nanos) string { return time.Unix(0, t).UTC().Format(time.RFC3339Nano) }
