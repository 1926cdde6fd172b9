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
// It goes by what a row says, and not by its revision. A list that was asked for before a change came by the watch, and arrives after it, has an
// older row: another revision, and no heartbeat. And revisions go back where the coordination store is restored from a backup: a rule that
// wants them to rise would count every server as silent until the store has as many changes again.
type signs struct {
	boot lease.Boot
	n    uint64
	past []lease.Boot // runs of the server before that one, the newest last
}

// pastBootsMax bounds the runs of a server that are remembered. A row of an older one counts as a heartbeat, once: for as long as a restart does.
const pastBootsMax = 16

// news reports whether a heartbeat is newer than those before, and notes it. Runs are named at random: one that was not seen yet is the newest.
func (s *signs) news(b lease.Beat) bool {
	switch {
	case b.Boot == s.boot && b.N <= s.n, slices.Contains(s.past, b.Boot):
		return false
	case b.Boot != s.boot && s.boot != "":
		s.past = append(s.past, s.boot)
		if len(s.past) > pastBootsMax {
			s.past = slices.Delete(s.past, 0, 1)
		}
	}
	s.boot, s.n = b.Boot, b.N
	return true
}
