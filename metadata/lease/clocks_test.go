package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// clockWorld is one machine that receives heartbeats of others.
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
	w.want("of three, one may be years behind, or its heartbeat was late", 2*time.Millisecond)
	w.seconds(int(2*rank.LatePeriod/time.Second), time.Hour)
	w.want("it is years behind", 0)
	delete(w.off, "s3")
	w.rev++
	w.m.Step(w.now, Watched{Events: []coord.Event{{Row: coord.Row{Key: BeatKey("s3"), Revision: w.rev}, Deleted: true}}}, nil)
	w.second(time.Hour)
	w.want("that one is gone: of two the slower", 0)
	w.second(-time.Minute)
	w.want("our clock was set back: of two the slower", -time.Minute)
}

// TestTheLatestTimeIsOurOwnClocksWithinBounds: a clock that jumped is no reason to accept stamps of years ahead until it is known to be off, and with two servers it never is.
func TestTheLatestTimeIsOurOwnClocksWithinBounds(t *testing.T) {
	w := newClockWorld(t)
	latest := func(what string, own, want time.Duration) {
		t.Helper()
		if got := time.Duration(w.m.Latest(w.now, w.true().Add(own).UnixNano()) - w.true().UnixNano()); got != want {
			t.Errorf("%s: %v ahead, want %v", what, got, want)
		}
	}
	latest("before any clock was read", time.Hour, time.Hour)
	w.off["s2"] = -2 * time.Second // its heartbeats are late
	w.seconds(5, 0)
	latest("all heartbeats are late", 0, 0)
	latest("our clock jumped", time.Hour, -2*time.Second+TakeAfterDefault)
	w.off["s2"], w.off["s3"] = 0, 0
	w.seconds(60, 2*time.Second)
	w.isOff("two seconds ahead", true)
	latest("our clock is known to be off", 2*time.Second, 0)
}

// TestTheClocksOfLiveServersAreKnownBeforeTheyCount: for a second after its start a server has its own clock alone, and a row
// that it finds may be of any age.
func TestTheClocksOfLiveServersAreKnownBeforeTheyCount(t *testing.T) {
	w := newClockWorld(t)
	known := func(what string, want bool) {
		t.Helper()
		if got := w.m.ClocksKnown(); got != want {
			t.Errorf("%s: all clocks are known: %t, want %t", what, got, want)
		}
	}
	known("before any clock was read", false)
	w.second(-time.Hour)
	known("the rows were not listed yet", false)
	w.off["s2"], w.off["s3"] = 0, 0
	w.rev = 1
	w.m.floor = 1
	w.second(-time.Hour)
	known("the rows of two others were found", false)
	delete(w.off, "s3")
	w.second(-time.Hour)
	known("one of them beats", false)
	w.off["s3"] = 0
	w.second(-time.Hour)
	known("both do", true)
	if got := time.Duration(w.m.Latest(w.now, w.true().Add(-time.Hour).UnixNano()) - w.true().UnixNano()); got != 0 {
		t.Errorf("by all clocks it is %v ahead", got)
	}
}

// TestAGatewayWhoseClockIsAheadReceivesTheTimeWhateverBecomesOfOtherServers: while a server was started anew and anew, or the
// coordination store was away for as long as clocks are remembered, its inserts were refused without a time, until it gave up.
func TestAGatewayWhoseClockIsAheadReceivesTheTimeWhateverBecomesOfOtherServers(t *testing.T) {
	begin := func(others ...topology.ServerID) (w *clockWorld, known func(what string, want bool)) {
		w = newClockWorld(t)
		w.m.floor = 1
		for _, s := range others {
			w.off[s] = 0
		}
		return w, func(what string, want bool) {
			t.Helper()
			if got := w.m.ClocksKnown(); got != want {
				t.Errorf("%s: the clocks are known: %t, want %t", what, got, want)
			}
		}
	}
	w, known := begin()
	w.second(0)
	known("no other has a row", true)

	boots := 0
	crash := func(w *clockWorld, s topology.ServerID) {
		boots++
		w.rev++
		b := Beat{Server: s, Boot: Boot(fmt.Sprint("again", boots)), Store: StoreID(s), N: 1, Time: w.true()}
		w.m.Step(w.now, Watched{Events: []coord.Event{{Row: coord.Row{Key: BeatKey(s), Value: b.Encode(), Revision: w.rev}}}}, nil)
	}
	w, known = begin("s2")
	known("before the first second", false)
	w.seconds(3, 0)
	known("the other beats", true)
	crash(w, "s3")
	w.second(0)
	known("a third was started", true)
	delete(w.off, "s2")
	w.seconds(int(rank.ForgetAfter/time.Second)+10, 0)
	known("nothing came for as long as clocks are remembered", true)

	w, known = begin("s2")
	for i := range 15 {
		crash(w, "s3")
		w.m.answered()
		w.second(0)
		if i == 3 {
			known("a server beats once each time it is started", false)
		}
	}
	known("it has for a quarter of a minute", true)
}

// TestHeartbeatsCarryTheTimeTheyAreSent, not that of the last tick.
func TestHeartbeatsCarryTheTimeTheyAreSent(t *testing.T) {
	w := newClockWorld(t)
	w.m.Step(w.now, Tick{Wall: w.true()}, nil)
	w.now += 700 * time.Millisecond
	w.m.Step(w.now, Loaded{}, nil)
	if got := w.m.wallNow(); !got.Equal(w.true()) {
		t.Errorf("the heartbeat would carry %v, it is %v", got, w.true())
	}
}

// seconds lets time pass.
func (w *clockWorld) seconds(n int, own time.Duration) {
	for range n {
		w.second(own)
	}
}

func (w *clockWorld) isOff(what string, want bool) {
	w.t.Helper()
	if got := w.m.Status().ClockOff; got != want {
		w.t.Errorf("%s: the clock is off: %t, want %t (%v ahead)", what, got, want, w.m.ClockAhead())
	}
}

// TestAClockThatIsOffIsNoticedSlowly: a moment is no reason to release leases, and one that is nearly right again no reason to go on.
func TestAClockThatIsOffIsNoticedSlowly(t *testing.T) {
	w := newClockWorld(t)
	w.off["s2"], w.off["s3"] = 0, 20*time.Millisecond
	w.seconds(60, 900*time.Millisecond)
	w.isOff("0.9 s ahead", false)
	w.seconds(9, 2*time.Second)
	w.isOff("for a moment", false)
	w.seconds(5, 0)
	w.seconds(9, -2*time.Second)
	w.isOff("for a moment again", false)
	w.seconds(5, -2*time.Second)
	w.isOff("for longer", true)
	w.seconds(60, -700*time.Millisecond)
	w.isOff("nearly right", true)
	w.seconds(25, 0)
	w.isOff("right for a while", true)
	w.second(-2 * time.Second)
	w.seconds(25, 0)
	w.isOff("right for a while again", true)
	w.seconds(10, 0)
	w.isOff("right", false)
}

// TestAClockIsOffOnlyByAMedianThatMeansSomething: two clocks do not show which is wrong, nor do five that all differ.
func TestAClockIsOffOnlyByAMedianThatMeansSomething(t *testing.T) {
	w := newClockWorld(t)
	w.seconds(60, time.Hour)
	w.isOff("alone", false)
	w.off["s2"] = 0
	w.seconds(60, time.Hour)
	w.isOff("one of two", false)
	w.off["s3"] = 0
	w.seconds(20, time.Hour)
	w.isOff("one of three", true)
	delete(w.off, "s3")
	w.seconds(5, time.Hour)
	w.isOff("the third is gone", false)
	w.off["s3"], w.off["s4"], w.off["s5"] = 10*time.Minute, 20*time.Minute, 30*time.Minute
	w.seconds(60, time.Hour)
	w.isOff("all differ", false)
}

// TestNotAllServersGiveUpForTheirClocks: of five two are wrong, and only those are off.
func TestNotAllServersGiveUpForTheirClocks(t *testing.T) {
	offs := []time.Duration{-time.Hour, 0, 300 * time.Millisecond, 2 * time.Hour, 10 * time.Millisecond}
	off := 0
	for i, own := range offs {
		w := newClockWorld(t)
		j := 2
		for k, other := range offs {
			if k != i {
				w.off[topology.ServerID(fmt.Sprint("s", j))] = other
				j++
			}
		}
		w.seconds(40, own)
		if w.m.Status().ClockOff {
			off++
			if own.Abs() < time.Minute {
				t.Errorf("%v is off", own)
			}
		}
	}
	if off != 2 {
		t.Errorf("%d of 5 are off", off)
	}
}
