package clock

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

const (
	// OffMax is how far the machine's clock may be off the median of the storage servers' before it counts as wrong. Storage servers allow themselves a
	// second (metadata/lease): they order rows by their clocks. Smaller: gateways on machines without a time service change their time all the while.
	OffMax = time.Minute
	// rightMax is how near it must come again.
	rightMax = OffMax / 2
	// turnAfter is for how long it must be so. Heartbeats that arrive late, after a pause of this process or in a watch that was cut, make all servers seem slow.
	turnAfter = 5 * time.Second
	// stepMax is how far the median moves between two looks at most while heartbeats are of their moment. Those of a backlog come faster than they were sent.
	stepMax = 5 * time.Second
	// fresh is the maximum age of a heartbeat that counts.
	fresh = 5 * time.Second
	// peersMin is the number of storage servers that outvote the machine's clock.
	peersMin = 2
)

// Peers judges the machine's clock by those of the living storage servers. For one caller at a time; the zero Peers is ready.
//
//	         majority of >= 2 servers, > OffMax away, for turnAfter (at once where it is the first judgment)
//	right ────────────────────────────────────────────────────────────────────────────────────────────────▶ off
//	      ◀──────────────────────── majority, within rightMax, for turnAfter ───────────────────────────────
//
// Without a majority (one server, servers that differ, a coordination store that is away) the last judgment stays: the reference goes on by the steady clock. A clock that is
// right and then jumps is in doubt at once. A median that moves does not count before it stands still for turnAfter: a watch that was cut for an hour sends the heartbeats of that hour.
// Heartbeats before point.ClockFirst do not count: the clocks of their servers were never set.
type Peers struct {
	servers rank.Servers
	newest  map[string]point.Nanos // steady: the newest heartbeat
	state   State
	judged  bool        // by a majority, once
	turn    point.Nanos // steady, since when the judgment is another; 0: it is not
	median  int64       // minus the steady clock, at the last look
	moved   point.Nanos // steady, when the median last moved by more than stepMax
}

// Listed observes the times in heartbeats of any age, as a first look at the coordination store shows them. Where most servers' clocks were right when they were sent, the median has passed.
func (p *Peers) Listed(times []point.Nanos, steady point.Nanos) {
	times = slices.Sorted(slices.Values(times))
	set, _ := slices.BinarySearch(times, point.ClockFirst)
	if times = times[set:]; p.judged || len(times) < peersMin {
		return
	}
	p.state = State{Verdict: Floor, Ref: times[(len(times)-1)/2] - steady, Within: OffMax, Unjudged: p.state.Unjudged}
}

// Observe records that it was wall at a server just now.
func (p *Peers) Observe(server string, wall, steady point.Nanos) {
	if wall < point.ClockFirst {
		return
	}
	if p.newest == nil {
		p.newest = map[string]point.Nanos{}
	}
	p.servers.Observe(server, wall, steady)
	p.newest[server] = steady
}

// Look judges the machine's clock. Call it about once a second.
func (p *Peers) Look(wall, steady point.Nanos) State {
	for s, at := range p.newest {
		if steady-at > int64(fresh) {
			delete(p.newest, s)
			p.servers.Forget(s)
		}
	}
	ref, ok := p.servers.Newest(steady)
	if !ok {
		p.turn = 0
		return p.state
	}
	if step := ref - p.median; step < -int64(stepMax) || step > int64(stepMax) {
		p.moved = steady
	}
	p.median = ref
	ahead := wall - steady - ref
	if near, known := p.servers.Near(steady, fresh, ref, OffMax); near < peersMin || 2*near <= known {
		p.turn = 0
		if !p.judged {
			p.state = State{Verdict: Unsure, Ref: ref, Within: OffMax}
		}
		return p.state
	}
	if fastest, _ := p.servers.Offset(steady); fastest-ref <= int64(rightMax) { // else a clock was set back
		ref = max(ref, fastest)
	}
	limit := OffMax
	was, stands := p.state.Verdict == Off, steady-p.moved >= int64(turnAfter)
	if was && !stands && ref < p.state.Ref-int64(rightMax) { // late heartbeats, more likely than servers that were set back
		p.turn = 0
		return p.state
	}
	if was {
		limit = rightMax
	}
	off := ahead < -int64(limit) || ahead > int64(limit)
	switch {
	case !p.judged, off != was && stands && p.turn != 0 && steady-p.turn >= int64(turnAfter):
		was, p.turn = off, 0
	case off == was:
		p.turn = 0
	case p.turn == 0:
		p.turn = steady
	}
	p.judged = true
	p.state = State{Verdict: Unsure, Ref: ref, Within: OffMax}
	if was {
		p.state.Verdict = Off
	}
	return p.state
}
