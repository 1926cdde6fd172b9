package staging

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestNoFrameIsDueBeforeSomebodyLooks: whatever happened, before the moment that Next names nothing is due, unless it says that frames wait for something else.
func TestNoFrameIsDueBeforeSomebodyLooks(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	quiet := 0
	for range 300 {
		m, now := New(Settings{Server: "A", BytesMax: 1 << 30, GatherFor: time.Duration(random.IntN(2)) * 1500 * time.Millisecond}), time.Unix(1700000000, 0)
		var held []ID
		for n := range 60 {
			now = now.Add(time.Duration(random.IntN(5)) * time.Second)
			step(m, random, now, n+1, &held)
			at, wait := m.Next()
			if wait {
				continue
			}
			quiet++
			until := at
			if at.IsZero() {
				until = now.Add(time.Hour)
			}
			if due := m.Due(until.Add(-1)); len(due) > 0 {
				t.Fatalf("after %d steps %d frames are due before %v", n, len(due), until)
			}
			if t1 := m.tables["t"]; !at.IsZero() && len(t1.later) > 0 && t1.later[0].Due.Before(at) {
				t.Fatalf("the first frame is due at %v, not at %v", t1.later[0].Due, at)
			}
		}
	}
	if quiet < 1000 {
		t.Errorf("only %d moments were quiet", quiet)
	}
}

// step lets one thing happen to a machine.
func step(m *Machine, random *rand.Rand, now time.Time, n int, held *[]ID) {
	pick := func() ID {
		if len(*held) == 0 {
			return ID{}
		}
		return (*held)[random.IntN(len(*held))]
	}
	switch random.IntN(9) {
	case 0, 1, 2:
		f := Frame{ID: ID{point.Stamp(n), uint64(n)}, Table: "t", Bytes: 1, Rows: 1, Holders: []topology.ServerID{"A", "B"}, Since: now}
		if random.IntN(4) > 0 {
			f.Due = now.Add(time.Duration(random.IntN(30)) * time.Second)
		}
		if random.IntN(2) == 0 {
			f.Holders = []topology.ServerID{"B", "A"}
		}
		if hold, err := m.Admit(f); hold && err == nil {
			m.Logged(f.ID)
			*held = append(*held, f.ID)
		}
	case 3, 4:
		for _, f := range m.Due(now) {
			if random.IntN(3) == 0 {
				m.Postponed(now, f.ID)
			} else {
				m.Forwarded(f.ID)
			}
		}
	case 5:
		m.Forget(pick())
	case 6:
		m.Answered(now, "B", random.IntN(2) == 0)
	case 7:
		m.Leave(random.IntN(4) == 0)
	case 8:
		m.BeginDelete("t", 0, 1)
		m.EndDelete("t")
	}
}
