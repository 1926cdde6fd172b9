package follow

import "time"

// Absence remembers since when the leaders of partitions are away, over all requests: a request that comes later does not wait for as
// long as the first one. The zero Absence is ready; it belongs to one goroutine at a time.
type Absence struct {
	of map[PartitionOf]*absent
}

// PartitionOf names a partition of a table.
type PartitionOf struct {
	Table string
	ID    uint64
}

type absent struct {
	since, last time.Time
	deaf        bool // it received a question and did not answer
	probed      time.Time
}

// Bounds of an Absence.
const (
	absencesMax = 1 << 16
	// absenceFor is how long a failure counts: a partition that is not written to is not away for ever.
	absenceFor = 5 * time.Second
	// probeAfter is how often one request asks a server that said nothing.
	probeAfter = 500 * time.Millisecond
)

// Len is the number of partitions with leaders that are away.
func (a *Absence) Len() int { return len(a.of) }

// Failed records that a partition's leader did not accept the rows of a try that began at a time. It returns since when the leader is away: a leader that answered
// after a while that it cannot act was away for that while, too.
func (a *Absence) Failed(now, began time.Time, p PartitionOf, f *Failure) (since time.Time) {
	at := a.of[p]
	if at == nil || now.Sub(at.last) > absenceFor {
		if at == nil && len(a.of) >= absencesMax {
			a.prune(now)
			if len(a.of) >= absencesMax {
				return now
			}
		}
		at = &absent{since: now, probed: now}
		switch {
		case f.Deaf:
			at.since = now.Add(-SilenceMax) // it was silent for so long before
		case f.Sent && f.Reason == Unanswered && began.Before(now):
			at.since = began
		}
		if a.of == nil {
			a.of = map[PartitionOf]*absent{}
		}
		a.of[p] = at
	}
	at.last, at.deaf = now, f.Deaf
	return at.since
}

// Skip reports whether a partition's leader said nothing so lately that it is not asked now.
func (a *Absence) Skip(now time.Time, p PartitionOf) bool {
	at := a.of[p]
	if at == nil || !at.deaf || now.Sub(at.last) > absenceFor {
		return false
	}
	if now.Sub(at.probed) < probeAfter {
		return true
	}
	at.probed = now // by this request
	return false
}

// Answered records that a partition's leader accepted rows.
func (a *Absence) Answered(p PartitionOf) { delete(a.of, p) }

func (a *Absence) prune(now time.Time) {
	for p, at := range a.of {
		if now.Sub(at.last) > absenceFor {
			delete(a.of, p)
		}
	}
}
