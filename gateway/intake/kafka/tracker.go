package kafka

import (
	"cmp"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// partition names one of a member's. It is a key, and the order in which partitions are listed.
type partition struct {
	member int // number of the cluster in Settings
	topic  string
	id     int32
}

func (p partition) compare(o partition) int {
	return cmp.Or(cmp.Compare(p.member, o.member), cmp.Compare(p.topic, o.topic), cmp.Compare(p.id, o.id))
}

// tracker decides which offsets may be committed. It is pure: no clock, no lock, no I/O.
//
// A span is the result of one poll for a partition, cut to a size; spans are finished in any order. done moves over the
// finished spans at the front, and never over an unfinished one:
//
//	polled:      ├── span 4 ──┼── span 5 ──┼── span 6 ──┼── span 7 ──┤
//	             finished     finished     under way    finished
//	                                     ▲
//	                                    done: 4 and 5 may be committed, 7 must wait for 6
//
// Invariant: committed ≤ done ≤ polled, in the order of polling. Offsets within a partition have holes (compaction,
// markers of transactions), and may even go back when a broker lost its log, so it is spans that are counted.
//
// Each assignment of a partition is separate: work begun under one that ends under a later one moves nothing.
type tracker struct {
	parts       map[partition]*progress
	assignments uint64
}

type progress struct {
	assignment uint64
	spans      []span // from the first that is not finished on
	first      uint64 // number of spans[0]

	done      position // behind the finished prefix
	polled    int64    // behind the last record that was polled; -1: none
	committed position // the offset that the broker has confirmed
}

// position is an offset with the epoch of the leader that wrote the record before it. Offset -1: none yet.
type position struct {
	offset int64
	epoch  int32
}

type span struct {
	end      position
	finished bool
}

// ticket is a span's name.
type ticket struct {
	partition  partition
	assignment uint64
	span       uint64
}

// commit is a partition's offset to be committed.
type commit struct {
	partition  partition
	assignment uint64
	at         position
}

func newTracker() *tracker { return &tracker{parts: map[partition]*progress{}} }

var noOffset = position{-1, -1}

// assign begins a partition's next assignment.
func (t *tracker) assign(p partition) {
	t.assignments++
	t.parts[p] = &progress{assignment: t.assignments, done: noOffset, polled: -1, committed: noOffset}
}

// resume records the offset that the group had committed before, if any.
func (t *tracker) resume(p partition, at position) {
	if g := t.parts[p]; g != nil && g.committed == noOffset {
		g.committed = at
	}
}

// poll adds a span with its last record at offset last. ok is false for a partition that is not ours: its records must be
// dropped, because another member owns them now.
func (t *tracker) poll(p partition, last int64, epoch int32) (k ticket, ok bool) {
	g := t.parts[p]
	if g == nil {
		return ticket{}, false
	}
	g.spans = append(g.spans, span{end: position{last + 1, epoch}})
	g.polled = last + 1
	return ticket{p, g.assignment, g.first + uint64(len(g.spans)) - 1}, true
}

// finish notes that all records of a span are settled.
func (t *tracker) finish(k ticket) {
	g := t.parts[k.partition]
	if g == nil || g.assignment != k.assignment {
		return
	}
	if k.span < g.first || g.spans[k.span-g.first].finished {
		fault.Bug("span %d of %v finished twice", k.span, k.partition)
	}
	g.spans[k.span-g.first].finished = true
	n := 0
	for n < len(g.spans) && g.spans[n].finished {
		g.done = g.spans[n].end
		n++
	}
	g.spans = slices.Delete(g.spans, 0, n)
	g.first += uint64(n)
}

// drop ends a partition's assignment, by revocation or loss.
func (t *tracker) drop(p partition) { delete(t.parts, p) }

// commits lists the offsets that may be committed and are not yet, of the partitions that want selects, in order.
func (t *tracker) commits(want func(partition) bool) []commit {
	var out []commit
	for p, g := range t.parts {
		if g.done != noOffset && g.done != g.committed && want(p) {
			out = append(out, commit{p, g.assignment, g.done})
		}
	}
	slices.SortFunc(out, func(a, b commit) int { return a.partition.compare(b.partition) })
	return out
}

// committed records the offset that the broker has confirmed.
func (t *tracker) committed(c commit) {
	if g := t.parts[c.partition]; g != nil && g.assignment == c.assignment {
		g.committed = c.at
	}
}

// behind reports whether something was polled that is not committed.
func (g *progress) behind() bool { return g.polled >= 0 && g.committed.offset != g.polled }
