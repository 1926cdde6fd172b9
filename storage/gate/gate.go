// Package gate is the door of a partition for changes, as a value: its leader closes it before its heirs lead.
//
//	        sealed: by the map, in which heirs accept the rows
//	        handing: heirs are about to lead, and the outcome is still open
//	           │
//	Enter ─▶ refused while either holds, else one more inside ─▶ … the change … ─▶ Leave ─▶ idle when none is inside
//
// It has no lock and wakes nothing: storage/server puts a lock around it, cmd/sim runs it as it is.
package gate

// Gate is a partition's door. The zero value is open.
type Gate struct {
	inside  int
	sealed  bool
	handing bool
	doubt   uint64
}

// Enter reports whether a change may begin. One that begins ends with Leave.
func (g *Gate) Enter() bool {
	if g.sealed || g.handing {
		return false
	}
	g.inside++
	return true
}

// Join begins a change that is allowed through a closed gate: a deletion of rows that are still read here.
func (g *Gate) Join() { g.inside++ }

// Leave ends a change and reports whether none is under way any more.
func (g *Gate) Leave() (idle bool) {
	g.inside--
	return g.inside == 0
}

// Quiet reports whether no change is under way, and none may begin any more. A hand-over alone is not enough: Doubt and TakeBack end it.
func (g *Gate) Quiet() bool { return g.inside == 0 && g.sealed }

// Idle reports whether no change is under way.
func (g *Gate) Idle() bool { return g.inside == 0 }

// Seal refuses changes because by the map heirs accept them; Open undoes it.
func (g *Gate) Seal() { g.sealed = true }

// Open undoes a Seal, but not a HandOver.
func (g *Gate) Open() { g.sealed = false }

// HandOver refuses changes while heirs are about to lead; TakeBack and Doubt end that.
func (g *Gate) HandOver() { g.handing = true }

// Undecided reports whether heirs are about to lead, and the outcome is still open: a change that waits for it may yet be accepted here.
func (g *Gate) Undecided() bool { return g.handing && !g.sealed }

// TakeBack lets changes in again: the heirs do not lead and will not.
func (g *Gate) TakeBack() { g.handing = false }

// Doubt lets changes in again, or never kept them out, although heirs may lead: a map newer than seq says so, or rules it out.
func (g *Gate) Doubt(seq uint64) {
	g.handing = false
	g.doubt = max(g.doubt, seq)
}

// Settle ends the doubt about transactions up to seq: they made no heir lead.
func (g *Gate) Settle(seq uint64) {
	if g.doubt <= seq {
		g.doubt = 0
	}
}

// Doubtful reports whether heirs may lead although the map seq, the newest here, does not say so.
func (g *Gate) Doubtful(seq uint64) bool { return g.handing || g.doubt > 0 && seq <= g.doubt }
