package lease

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// clockWorld is one machine that hears heartbeats of others.
type clockWorld struct {
	t   *testing.T
	m   *Machine
	now Time
	rev coord.Revision
	off map[topology.ServerID]time.Duration // of others' clocks
}

func newClockWorld(t *testing.T) *clockWorld {
	m, err := New(Self{Server: "s1", Boot: "b1", Store: "d1"}, Settings{}, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	return &clockWorld{t: t, m: m, now: time.Hour, off: map[topology.ServerID]time.Duration{}}
}

func (w *clockWorld) true() time.Time { return noon.Add(w.now) }

// second lets a second pass in which every server renews its heartbeat; own is how far our clock is ahead.
func (w *clockWorld) second(own time.Duration) {
	w.now += time.Second
	var events []coord.Event
	for _, s := range []topology.ServerID{"s2", "s3", "s4", "s5"} {
		off, ok := w.off[s]
		if !ok {
			continue
		}
		w.rev++
		b := Beat{Server: s, Boot: "b" + Boot(s), Store: StoreID(s), N: uint64(w.rev), Time: w.true().Add(off)}
		events = append(events, coord.Event{Row: coord.Row{Key: BeatKey(s), Value: b.Encode(), Revision: w.rev}})
	}
	w.m.Step(w.now, Watched{Events: events}, nil)
	w.m.Step(w.now, Tick{Wall: w.true().Add(own)}, nil)
}

// want is how far the median is ahead of the truth.
func (w *clockWorld) want(what string, want time.Duration) {
	w.t.Helper()
	now, ok := w.m.Clock(w.now + 250*time.Millisecond)
	if got := time.Duration(now - w.true().UnixNano() - int64(250*time.Millisecond)); !ok || got != want {
		w.t.Errorf("%s: the median is %v ahead, want %v", what, got, want)
	}
}

func TestTheServersMedianIsOfThoseThatAreAlive(t *testing.T) {
	w := newClockWorld(t)
	if _, ok := w.m.Clock(w.now); ok {
		t.Error("a time before any clock was read")
	}
	w.second(time.Hour)
	w.want("alone, and an hour ahead", time.Hour)
	if w.m.ClockAhead() != 0 {
		t.Error("ahead of itself")
	}
	w.off["s2"], w.off["s3"] = 0, 2*time.Millisecond
	w.second(time.Hour)
	w.want("rows that were found may be of any age", time.Hour)
	w.second(time.Hour)
	w.want("two others are right", 2*time.Millisecond)
	if got := w.m.ClockAhead(); got != time.Hour-2*time.Millisecond {
		t.Errorf("we are %v ahead", got)
	}
	w.off["s3"] = -365 * 24 * time.Hour
	w.second(time.Hour)
	w.want("of three, one is years behind", 0)
	delete(w.off, "s3")
	for range 8 {
		w.second(time.Hour)
	}
	w.want("that one is gone: of two the slower", 0)
	w.second(-time.Minute)
	w.want("our clock was set back: of two the slower", -time.Minute)
}

// TestHeartbeatsTellTheTimeTheyAreSent, not that of the last tick.
func TestHeartbeatsTellTheTimeTheyAreSent(t *testing.T) {
	w := newClockWorld(t)
	w.m.Step(w.now, Tick{Wall: w.true()}, nil)
	w.now += 700 * time.Millisecond
	w.m.Step(w.now, Loaded{}, nil)
	if got := w.m.wallNow(); !got.Equal(w.true()) {
		t.Errorf("the heartbeat would tell %v, it is %v", got, w.true())
	}
}
