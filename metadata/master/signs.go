package master

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
)

// signs are the signs of life of one server: which of its heartbeats is newer than all that were seen.
//
//	boot b1  N 1, 2, 3 …   the process started anew ─▶   boot b2  N 1, 2 …
//	         └ a row of b1 with N 2, after N 3 or after b2: no news
//
// The contents of a row decide, not its revision. A list that was requested before a change came by the watch, and arrives after it, has an older row: another
// revision, but no new heartbeat. And revisions go back where the coordination store is restored from a backup: a rule that requires rising ones would count
// every server as silent until the store has as many changes again.
type signs struct {
	lived
	past []lived // of the server before that one, the newest last
}

// lived is a run of a server, with the number of its newest heartbeat.
type lived struct {
	boot lease.Boot
	n    uint64
}

// pastBootsMax bounds the runs of a server that are remembered. A row of an older one counts as a heartbeat, once: for as long as a restart does.
const pastBootsMax = 16

// news reports whether a heartbeat is newer than those before, and notes it. Runs are named at random: one that was not seen yet is the newest. So is an earlier one that
// goes on: the row of a run that had ended came between, from a backup of the coordination store.
func (s *signs) news(b lease.Beat) bool {
	i := slices.IndexFunc(s.past, func(r lived) bool { return r.boot == b.Boot })
	switch {
	case b.Boot == s.boot:
		if b.N <= s.n {
			return false
		}
	case i >= 0:
		if b.N <= s.past[i].n {
			return false
		}
		s.past = append(slices.Delete(s.past, i, i+1), s.lived)
	case s.boot != "":
		if s.past = append(s.past, s.lived); len(s.past) > pastBootsMax {
			s.past = slices.Delete(s.past, 0, 1)
		}
	}
	s.lived = lived{b.Boot, b.N}
	return true
}
