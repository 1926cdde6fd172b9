package partition

import (
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/lane"
)

// applying sees whether rows count as writes when they reach a head.
type applying struct {
	headBytes
	writes       *lane.Writes
	busy, unbusy atomic.Int64
}

func (a *applying) Add(n int64) {
	if a.writes.Busy() {
		a.busy.Add(1)
	} else {
		a.unbusy.Add(1)
	}
	a.headBytes.Add(n)
}

// TestFramesOfALeaderCountAsWrites: on a follower a query leaves processors to them, when they are applied at once and when they are applied later, because there are many. What a query
// applies, before it reads, is its own work.
func TestFramesOfALeaderCountAsWrites(t *testing.T) {
	h, _ := leading(t, vfs.NewMem(), 1)
	defer h.close()
	h.must(h.put("a", 1, 1))
	for name, apply := range map[string]func(m *bench){
		"a frame that is applied at once": func(m *bench) {
			m.mu.late.cost = lateMost
			m.must(m.catchUp(h, 1))
		},
		"late frames": func(m *bench) {
			m.must(m.catchUp(h, 1))
			m.mu.late.cost = lateDue
			m.must(m.catchUpDue())
		},
		"before a view": func(m *bench) {
			m.must(m.catchUp(h, 1))
			m.must(m.Partition.catchUp())
		},
	} {
		m := following(t, vfs.NewMem(), 1)
		seen := &applying{writes: new(lane.Writes)}
		m.deps.HeadBytes, m.deps.Writes = seen, seen.writes
		apply(m)
		ofAQuery := name == "before a view"
		if busy, unbusy := seen.busy.Load(), seen.unbusy.Load(); ofAQuery != (busy == 0) || ofAQuery == (unbusy == 0) || seen.writes.Busy() {
			t.Errorf("%s: seen %d times as a write, %d times not; behind it %v", name, busy, unbusy, seen.writes.Busy())
		}
		m.close()
	}
}
