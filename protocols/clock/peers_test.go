package clock

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// world is a gateway that hears heartbeats of storage servers.
type world struct {
	t       *testing.T
	now     point.Nanos // the right time
	off     int64       // by which the gateway's clock is ahead
	servers []int64     // by which the servers' clocks are; of those that live
	late    int64       // the heartbeats
	p       Peers
	s       State
}

func newWorld(t *testing.T, off int64, servers ...int64) *world {
	return &world{t: t, now: noon, off: off, servers: servers}
}

func (w *world) steady() point.Nanos { return w.now - noon + day }

func (w *world) seconds(n int) {
	for range n {
		w.now += int64(time.Second)
		for i, off := range w.servers {
			w.p.Observe(fmt.Sprint("s", i), w.now+off-w.late, w.steady())
		}
		w.s = w.p.Look(w.now+w.off, w.steady())
	}
}

// reads checks the reading, relative to the right time.
func (w *world) reads(what string, now, earliest, latest int64) {
	w.t.Helper()
	r := w.s.Read(w.now+w.off, w.steady())
	if r.Now-w.now != now || r.Earliest-w.now != earliest || r.Latest-w.now != latest {
		w.t.Errorf("%s: now %v, from %v to %v; want %v, from %v to %v (%+v)", what, time.Duration(r.Now-w.now), time.Duration(r.Earliest-w.now), time.Duration(r.Latest-w.now),
			time.Duration(now), time.Duration(earliest), time.Duration(latest), w.s)
	}
}

func TestAMajorityOfServersOutvotesTheGatewaysClock(t *testing.T) {
	second := int64(time.Second)
	for what, c := range map[string]struct {
		off     int64
		servers []int64
		now     int64 // by which the reading is ahead; if it is the gateway's own, its clock is believed
		from    int64
		to      int64
	}{
		"all right":                            {0, []int64{0, 0, 0}, 0, 0, 0},
		"half a minute ahead":                  {30 * second, []int64{0, 0, 0}, 30 * second, 30 * second, 30 * second},
		"an hour ahead":                        {hour, []int64{0, 0, 0}, 0, 0, 0},
		"an hour behind":                       {-hour, []int64{0, 0, 0}, 0, 0, 0},
		"in 1970":                              {-noon, []int64{0, 0, 0}, 0, 0, 0},
		"in 2036":                              {3650 * day, []int64{0, 0}, 0, 0, 0},
		"one of three servers is wrong":        {-hour, []int64{0, 0, 365 * day}, 0, 0, 0},
		"one server alone says nothing":        {-hour, []int64{0}, -hour, -hour, 0},
		"one server alone says nothing, ahead": {hour, []int64{0}, hour, 0, hour},
		"one server alone agrees":              {0, []int64{0}, 0, 0, 0},
		"two servers that differ":              {hour, []int64{0, -hour}, hour, -hour, hour},
		"one of two agrees with us":            {0, []int64{0, hour}, 0, 0, 0},
		"all differ":                           {hour, []int64{0, 2 * hour, -2 * hour}, hour, 0, hour},
		"no server lives":                      {hour, nil, hour, hour, hour},
		"no server's clock was ever set":       {0, []int64{-noon, -noon, -noon}, 0, 0, 0},
		"two servers' clocks were never set":   {hour, []int64{-noon, -noon, 0}, hour, 0, hour},
	} {
		w := newWorld(t, c.off, c.servers...)
		w.seconds(1)
		w.reads(what, c.now, c.from, c.to)
		w.seconds(100)
		w.reads(what+", later", c.now, c.from, c.to)
	}
}

func TestAClockThatJumpsIsInDoubtAtOnceAndOffSoon(t *testing.T) {
	for _, by := range []int64{-hour, hour} {
		w := newWorld(t, 0, 0, 0, 0)
		w.seconds(100)
		w.off = by
		w.reads("at once", by, min(by, 0), max(by, 0))
		w.seconds(5)
		w.reads("for a moment", by, min(by, 0), max(by, 0))
		w.seconds(1)
		w.reads("soon", 0, 0, 0)
		w.off = 0
		w.reads("right again, at once", 0, 0, 0)
		w.seconds(3)
		if w.s.Verdict != Off {
			t.Error("it counts as right after three seconds")
		}
		w.seconds(3)
		if w.s.Verdict != Unsure {
			t.Error("it does not count as right again")
		}
		w.reads("right again", 0, 0, 0)
	}
}

func TestASlowDriftIsNoticed(t *testing.T) {
	w := newWorld(t, 0, 0, 0, 0)
	for w.off < 2*minute {
		w.off += int64(10 * time.Millisecond)
		w.seconds(1)
		if r := w.s.Read(w.now+w.off, w.steady()); r.Now-w.now > minute+minute/10 {
			t.Fatalf("it goes by a clock that is %v ahead", time.Duration(r.Now-w.now))
		}
	}
	w.reads("two minutes ahead", 0, 0, 0)
}

// TestLateHeartbeatsMakeNoClockWrong: after a pause of this process, or in a watch that was cut, heartbeats of minutes ago arrive.
func TestLateHeartbeatsMakeNoClockWrong(t *testing.T) {
	w := newWorld(t, 0, 0, 0, 0)
	w.seconds(100)
	w.late = 10 * minute
	w.seconds(5)
	if w.s.Verdict == Off {
		t.Error("the clock counts as wrong")
	}
	w.late = 0
	w.seconds(1)
	w.reads("heartbeats are in time again", 0, 0, 0)
}

// TestABacklogOfHeartbeatsMakesNoClockWrong: a watch that was cut for an hour sends the heartbeats of that hour, faster than they were sent, for longer than a moment.
func TestABacklogOfHeartbeatsMakesNoClockWrong(t *testing.T) {
	w := newWorld(t, 0, 0, 0, 0)
	w.seconds(100)
	for w.late = hour; w.late > 0; w.late -= 2 * minute {
		w.seconds(1)
		if w.s.Verdict == Off {
			t.Fatalf("the clock counts as wrong while heartbeats are %v late", time.Duration(w.late))
		}
	}
	w.late = 0
	w.seconds(1)
	w.reads("heartbeats are in time again", 0, 0, 0)

	w.off = hour
	w.seconds(10)
	w.servers = nil
	w.seconds(3600)
	w.servers = []int64{0, 0, 0}
	for w.late = hour; w.late > 0; w.late -= 2 * minute {
		w.seconds(1)
		w.reads(fmt.Sprintf("our clock is wrong, and heartbeats are %v late", time.Duration(w.late)), 0, 0, 0)
	}
}

// TestAClockThatWasNeverSetIsNoWitness: where the coordination store lists heartbeats of such servers, too.
func TestAClockThatWasNeverSetIsNoWitness(t *testing.T) {
	w := newWorld(t, -hour)
	w.p.Listed([]point.Nanos{minute, 0, w.now - minute, w.now - 2*minute}, w.steady())
	w.s = w.p.Look(w.now+w.off, w.steady())
	w.reads("two are right", -2*minute, -2*minute, -2*minute)
}

// TestTheLastJudgmentStaysWhileNoServerAnswers, as while the coordination store is away.
func TestTheLastJudgmentStaysWhileNoServerAnswers(t *testing.T) {
	w := newWorld(t, -hour, 0, 0, 0)
	w.seconds(10)
	w.servers = nil
	w.seconds(3600)
	w.reads("an hour later", 0, 0, 0)
	w.off = -2 * hour
	w.reads("it jumps again", 0, 0, 0)
	w.off = 0
	w.reads("it is set right", 0, 0, 0)
	w.servers = []int64{0}
	w.seconds(60)
	w.reads("one server is back", 0, 0, 0)
	w.servers = []int64{0, 0}
	w.seconds(60)
	if w.s.Verdict != Unsure {
		t.Error("it does not count as right")
	}
}

func TestServersThatAreSetBackAreFollowed(t *testing.T) {
	w := newWorld(t, 0, hour, hour, hour)
	w.seconds(100)
	w.reads("all servers are ahead", hour, hour, hour)
	w.servers = []int64{0, 0, 0}
	w.seconds(6)
	w.reads("they were set right", 0, 0, 0)
}

// TestAGatewayIsNotBehindTheHeartbeatsThatItFinds: they were sent before, whenever that was.
func TestAGatewayIsNotBehindTheHeartbeatsThatItFinds(t *testing.T) {
	list := func(off int64, times ...int64) *world {
		w := newWorld(t, off)
		for i := range times {
			times[i] += w.now
		}
		w.p.Listed(times, w.steady())
		w.s = w.p.Look(w.now+w.off, w.steady())
		return w
	}
	second := int64(time.Second)
	list(-hour, -second, -2*second, -second).reads("they live", -second, -second, -second)
	list(-day, -hour, -2*hour, 365*day).reads("they stopped, and one was wrong", -hour, -hour, -hour)
	list(-hour, -2*hour, -3*hour).reads("we are behind, and later than they", -hour, -hour, -hour)
	list(hour, 0, 0, 0).reads("we are ahead: they may be old", hour, hour, hour)
	list(-hour, 0).reads("one alone", -hour, -hour, -hour)

	w := list(hour, 0, 0, 0)
	w.servers = []int64{0, 0, 0}
	w.seconds(1)
	w.reads("they live", 0, 0, 0)
}
