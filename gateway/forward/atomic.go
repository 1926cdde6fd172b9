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
	return w.elsewhere()
}

// lies is where a row belongs: a partition, or one that would be made for its time.
type lies struct {
	id     point.PartitionID // 0: there is none yet
	lo, hi point.Nanos
}

func (w *attempt) lies(labels point.Labels, at point.Nanos) lies {
	if p, ok := w.m.Find(w.m.PointOf(labels), at); ok {
		return lies{p.ID, p.TimeLo, p.TimeHi}
	}
	lo, hi := w.m.Config.Aligned(at)
	return lies{0, lo, hi}
}

func (l lies) String() string {
	if l.id == 0 {
		return "a new one"
	}
	return fmt.Sprintf("partition %d", l.id)
}

// elsewhere is the error that names rows which lie in another partition than the first.
func (w *attempt) elsewhere() error {
	first, found, far, named := lies{}, false, 0, []string(nil)
	look := func(item int, id point.SeriesID, at point.Nanos) {
		labels := w.g.dict.Labels(id)
		l := w.lies(labels, at)
		if !found {
			first, found = l, true
		}
		if l == first {
			return
		}
		if far++; far > apartMax {
			return
		}
		name := fmt.Sprintf("%.200s at %s (%s)", labels, clock(at), l)
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
	return fault.Errorf(fault.Invalid, "an atomic request must lie in one partition, and nothing of it is kept: its first row is in %s, of the times from %s to %s, elsewhere lie %s%s",
		first, clock(first.lo), clock(first.hi), strings.Join(named, "; "), more)
}

func clock(t point.Nanos) string { return time.Unix(0, t).UTC().Format("2006-01-02T15:04:05Z") }
