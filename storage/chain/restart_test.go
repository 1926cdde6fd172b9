package chain

import (
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestARestartedHeadWaitsForWhatItsFormerProcessMadeSure: the head removed a placement, which the map had no more, from the chain, its process ended at once, and
// the next one acquired the lease again. It had no record of that placement, and acknowledged a row which a read there, still sure, did not have. A placement that is new waits for
// nothing: no process before it made any other sure.
func TestARestartedHeadWaitsForWhatItsFormerProcessMadeSure(t *testing.T) {
	self := Member{Placement: 1, Server: "a", Store: "d"}
	for _, c := range []struct {
		name  string
		epoch point.Epoch
		ends  []point.EpochEnd
		waits bool
	}{
		{"new", 0, nil, false},
		{"with a log", 6, []point.EpochEnd{{Epoch: 6, Seq: 9}}, true},
		{"that led without a row", 6, nil, true},
	} {
		now := 10 * time.Second
		m := New(now, self, c.epoch, c.ends, Settings{})
		acked := func(in Input) bool {
			return slices.ContainsFunc(m.Step(now, in, nil), func(e Effect) bool { _, ok := e.(Acked); return ok })
		}
		now += 100 * time.Millisecond
		acked(Lead{Epoch: 7, List: []Member{self}})
		f := point.Serial{Epoch: 7, Seq: m.end.Seq + 1}
		acked(Appended{Serial: f, Prev: m.end, Bytes: 1})
		if got := acked(Synced{f}); got == c.waits {
			t.Errorf("%s: acknowledged at once: %v", c.name, got)
		}
		if now = 10*time.Second + unsureAfter - 1; acked(Tick{}) {
			t.Errorf("%s: acknowledged before the other's time was over", c.name)
		}
		if now += 1; acked(Tick{}) != c.waits {
			t.Errorf("%s: never acknowledged", c.name)
		}
	}
}

// TestFramesThatCameSinceTheEndsWereReadAreKept: the ends of the log were read while another epoch began here, and came behind its first frame. The log seemed shorter
// than it was, and the next frame to follow none.
func TestFramesThatCameSinceTheEndsWereReadAreKept(t *testing.T) {
	self := Member{Placement: 1, Server: "s1"}
	m := New(0, self, 0, nil, Settings{})
	m.Step(1, Lead{Epoch: 2, List: []Member{self}}, nil)
	m.Step(2, Appended{Serial: point.Serial{Epoch: 2, Seq: 1}, Bytes: 1}, nil)
	m.Step(3, Adopted{Ends: []point.EpochEnd{{Epoch: 1, Seq: 9}}}, nil)
	m.Step(4, Appended{Serial: point.Serial{Epoch: 2, Seq: 2}, Prev: point.Serial{Epoch: 2, Seq: 1}, Bytes: 1}, nil)
	if end, _ := m.End(); end != (point.Serial{Epoch: 2, Seq: 2}) {
		t.Errorf("the log ends with %v", end)
	}
}
