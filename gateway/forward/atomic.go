package forward

import (
	"fmt"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// An atomic write (C94) is one frame: a server logs, passes on and applies a frame whole, and a try that failed is repeated whole, under the same
// rank. So its rows must lie in one partition, and fit into one frame.

// apartMax bounds the rows that an error names.
const apartMax = 5

// apart is the error of an atomic write with rows in more than one partition, or in one that cannot be made. Nothing of it was sent.
func (w *attempt) apart(uncovered int) error {
	if err := w.fresh.err(&w.t.f.settings, w.t.name); err != nil { // its text says that other rows are kept
		return fault.Errorf(fault.KindOf(err), "an atomic request needs partitions of table %q that do not exist yet, and cannot all be made now; nothing of it is kept: send it again", w.t.name)
	}
	if uncovered > 0 {
		return fault.Errorf(fault.Invalid, "an atomic request has %d rows at times that no partition can hold; nothing of it is kept", uncovered)
	}
	home, where, far, named := point.PartitionID(0), "", 0, []string(nil)
	look := func(item int, id point.SeriesID, at point.Nanos) {
		labels := w.g.dict.Labels(id)
		p, ok := w.m.Find(w.m.PointOf(labels), at)
		switch {
		case !ok:
			return
		case where == "":
			home, where = p.ID, fmt.Sprintf("%d, of the times from %s to %s", p.ID, clock(p.TimeLo), clock(p.TimeHi))
			return
		case p.ID == home:
			return
		}
		if far++; far > apartMax {
			return
		}
		name := fmt.Sprintf("%.200s at %s (partition %d)", labels, clock(at), p.ID)
		if item > 0 {
			name = fmt.Sprintf("number %d, %s", item, name)
		}
		named = append(named, name)
	}
	for i, id := range w.rest.IDs {
		look(w.whole.Item(i), id, w.rest.Times[i])
	}
	for _, h := range w.rest.Hists {
		look(0, h.ID, h.Time)
	}
	for _, e := range w.rest.Exemplars {
		look(0, e.ID, e.Time)
	}
	more := ""
	if far > len(named) {
		more = fmt.Sprintf(" and %d more", far-len(named))
	}
	return fault.Errorf(fault.Invalid, "an atomic request must lie in one partition, and nothing of it is kept: its first row is in partition %s, elsewhere lie %s%s",
		where, strings.Join(named, "; "), more)
}

func clock(t point.Nanos) string { return time.Unix(0, t).UTC().Format("2006-01-02T15:04:05Z") }
