package follow

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Spread is the order in which the copies of a partition are asked. The copies of different partitions begin with different servers, so that a query
// over many partitions is answered by all; those of one always begin with the same, so that its caches stay warm. Servers that are listed in sync come first.
func Spread(p *topology.Partition, listed []topology.ServerID) []topology.ServerID {
	var first, rest []topology.ServerID
	for _, pl := range p.Placements {
		if slices.Contains(listed, pl.Server) {
			first = append(first, pl.Server)
		} else {
			rest = append(rest, pl.Server)
		}
	}
	slices.Sort(first)
	slices.Sort(rest)
	if n := uint64(len(first)); n > 0 {
		by := int(mixed(p.ID) % n)
		first = append(first[by:len(first):len(first)], first[:by]...)
	}
	return append(first, rest...)
}

// SilentLast moves servers that give no sign of life behind the others. The result may be servers.
func SilentLast(servers []topology.ServerID, silent func(topology.ServerID) bool) []topology.ServerID {
	if !slices.ContainsFunc(servers, silent) {
		return servers
	}
	var first, last []topology.ServerID
	for _, s := range servers {
		if silent(s) {
			last = append(last, s)
		} else {
			first = append(first, s)
		}
	}
	return append(first, last...)
}

// mixed spreads neighbouring numbers (the finalizer of splitmix64): partitions are numbered in the order of their times.
func mixed(id point.PartitionID) uint64 {
	x := uint64(id) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Bounds of the time after which a copy is late, and another is asked too.
const (
	LateMin = 20 * time.Millisecond
	LateMax = time.Second
	// lateShare of the questions may be asked twice before LateMax, and lateSpare more: so copies that are slow because all are busy do not get double work.
	lateShare = 0.1
	lateSpare = 20
	// A server that is away, or was late strikesMax times, is asked last for shunFor.
	strikesMax = 3
	shunFor    = 2 * time.Second
	// tookCount is how many of the newest answers are measured.
	tookCount = 256
)

// Hedge decides after how long a copy is late, and which servers are asked last. The zero Hedge measures; it belongs to one goroutine at a time.
type Hedge struct {
	// After is a fixed time, within the bounds; 0: the time in which 19 of 20 of the newest answers began.
	After time.Duration

	times   []time.Duration // of the newest answers, a ring
	at      int
	fresh   int // answers since late was computed
	late    time.Duration
	spent   float64
	shunned map[topology.ServerID]time.Time // until when
	strikes map[topology.ServerID]int       // times late since the last answer
}

// Late returns how long to wait for a copy that is about to be asked.
func (h *Hedge) Late() time.Duration {
	h.spent = max(0, h.spent-lateShare)
	switch {
	case h.After > 0:
		return min(max(h.After, LateMin), LateMax)
	case h.spent > lateSpare-1:
		return LateMax
	case h.late == 0:
		return LateMax / 4
	}
	return h.late
}

// Hedged records that a second copy is asked because the first one is late.
func (h *Hedge) Hedged() { h.spent = min(h.spent+1, lateSpare) }

func (h *Hedge) took(d time.Duration) {
	if len(h.times) < tookCount {
		h.times = append(h.times, d)
	} else {
		h.times[h.at%tookCount] = d
	}
	h.at++
	if h.fresh++; h.fresh*8 < len(h.times) {
		return
	}
	h.fresh = 0
	sorted := slices.Sorted(slices.Values(h.times))
	h.late = min(max(sorted[len(sorted)*19/20], LateMin), LateMax)
}

// WasLate records that a server was late. After strikesMax times without an answer between, it is asked last for a while.
func (h *Hedge) WasLate(now time.Time, s topology.ServerID) {
	if h.strikes == nil {
		h.strikes = map[topology.ServerID]int{}
	}
	if h.strikes[s]++; h.strikes[s] >= strikesMax {
		h.Shun(now, s)
	}
}

// Shun makes a server that is away the last that is asked, for a while.
func (h *Hedge) Shun(now time.Time, s topology.ServerID) {
	if h.shunned == nil {
		h.shunned = map[topology.ServerID]time.Time{}
	}
	h.shunned[s] = now.Add(shunFor)
}

// Answered records that a server answered, after a time: it is asked in its turn again.
func (h *Hedge) Answered(s topology.ServerID, after time.Duration) {
	delete(h.strikes, s)
	delete(h.shunned, s)
	h.took(after)
}

// Order moves the shunned servers to the end.
func (h *Hedge) Order(now time.Time, servers []topology.ServerID) []topology.ServerID {
	if len(h.shunned) == 0 {
		return servers
	}
	var first, last []topology.ServerID
	for _, s := range servers {
		if until, ok := h.shunned[s]; ok && now.Before(until) {
			last = append(last, s)
		} else {
			first = append(first, s)
		}
	}
	return append(first, last...)
}
