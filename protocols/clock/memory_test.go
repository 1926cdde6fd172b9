package clock

import (
	"math"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).UnixNano()

const (
	minute = int64(time.Minute)
	hour   = int64(time.Hour)
	day    = 24 * hour
)

// host is a machine on which one process after the other runs.
type host struct {
	t         *testing.T
	now       point.Nanos // the right time
	off       int64       // by which the machine's clock is ahead
	boot      point.Nanos // the right time when the process began
	m         Memory
	rows      Rows
	confirmed bool
}

func newHost(t *testing.T, off int64) *host {
	h := &host{t: t, now: noon, off: off}
	h.start(0)
	return h
}

func (h *host) start(stored point.Nanos) { h.boot, h.m = h.now, Remembered(stored, 0) }

func (h *host) steady() point.Nanos { return h.now - h.boot }

// restart ends the process and begins another after some time.
func (h *host) restart(after int64) {
	stored := h.m.Stored(h.steady())
	h.now += after
	h.start(stored)
}

// minutes lets the process run; rounds are a minute apart, and one is now.
func (h *host) minutes(n int) {
	for i := range n + 1 {
		if i > 0 {
			h.now += minute
		}
		h.m.Look(h.now+h.off, h.steady(), h.rows, h.confirmed)
	}
}

func (h *host) read() Reading { return h.m.State().Read(h.now+h.off, h.steady()) }

// reads checks the reading, relative to the right time.
func (h *host) reads(what string, now, earliest, latest int64) {
	h.t.Helper()
	r := h.read()
	rel := func(t point.Nanos) int64 {
		if t == math.MaxInt64 {
			return t
		}
		return t - h.now
	}
	if rel(r.Now) != now || rel(r.Earliest) != earliest || rel(r.Latest) != latest {
		h.t.Errorf("%s: now %v, from %v to %v; want %v, from %v to %v", what, time.Duration(rel(r.Now)), time.Duration(rel(r.Earliest)), time.Duration(rel(r.Latest)),
			time.Duration(now), time.Duration(earliest), time.Duration(latest))
	}
}

// remembers checks the clock that is remembered, relative to the right time.
func (h *host) remembers(what string, want int64) {
	h.t.Helper()
	if got := h.m.Stored(h.steady()) - h.now; got != want {
		h.t.Errorf("%s: %v from the right time is remembered, want %v", what, time.Duration(got), time.Duration(want))
	}
}

func TestAClockThatIsRightIsRemembered(t *testing.T) {
	h := newHost(t, 0)
	h.reads("before the first round", 0, 0, 0)
	h.minutes(0)
	h.remembers("after the first round", 0)
	h.minutes(100)
	h.restart(3 * day)
	h.reads("after three days off", 0, -3*day, 0)
	h.minutes(9)
	h.remembers("for a while it is not sure", -3*day)
	h.minutes(1)
	h.remembers("then it is", 0)
	h.reads("then it is", 0, 0, 0)
}

func TestAClockThatDriftsIsFollowed(t *testing.T) {
	for _, rate := range []int64{-minute / 10, minute / 10} { // a tenth
		h := newHost(t, 0)
		for range 1000 {
			h.minutes(1)
			h.off += rate
		}
		h.reads("after 1,000 minutes", h.off, h.off, h.off)
		h.remembers("after 1,000 minutes", h.off-rate)
	}
}

// TestRightRowsAreAcceptedAfterEachStartWithAClockSetBack: the second start forgot where the clock was.
func TestRightRowsAreAcceptedAfterEachStartWithAClockSetBack(t *testing.T) {
	h := newHost(t, 0)
	h.minutes(20)
	h.off = -30 * hour
	h.reads("while it runs", -30*hour, -30*hour, 0)
	h.minutes(20)
	h.reads("and stays so", -30*hour, -30*hour, 0)
	for range 3 {
		h.restart(hour)
		back := h.m.Stored(0) - h.now
		h.reads("after a start", -30*hour, -30*hour, back+int64(JumpMax))
		h.minutes(20)
		h.reads("and later", -30*hour, -30*hour, back+int64(JumpMax))
		if h.read().Latest < h.now {
			t.Error("right rows are refused")
		}
	}
	h.off = 0
	h.reads("it is right again, and was off for three hours", 0, -3*hour, 0)
	h.minutes(10)
	h.remembers("it is right again", 0)
	h.reads("it is right again", 0, 0, 0)
}

// TestAClockThatWasAheadForAMinuteIsForgotten: the bound would be raised for ever.
func TestAClockThatWasAheadForAMinuteIsForgotten(t *testing.T) {
	for _, ahead := range []int64{hour, 6 * day, 10 * 365 * day} {
		h := newHost(t, 0)
		h.minutes(20)
		h.off = ahead
		h.reads("while it is ahead", ahead, 0, ahead)
		h.minutes(8)
		h.remembers("while it is ahead", 0)
		h.off = 0
		h.reads("right again", 0, 0, 0)
		h.off = ahead
		h.minutes(1)
		h.restart(minute)
		h.minutes(5)
		h.off = 0
		h.minutes(0)
		h.reads("right again after a start", 0, 0, 0)
		h.remembers("right again after a start", 0)
	}
}

func TestAHostThatBootsIn2036HasNoMemoryOfIt(t *testing.T) {
	h := newHost(t, 10*365*day)
	h.minutes(3)
	h.off = 0
	h.minutes(1)
	h.reads("NTP came", 0, 0, 0)
	h.remembers("NTP came", 0)
}

// TestAClockThatWasAheadForLongIsCorrectedByRows of senders, after restarts too.
func TestAClockThatWasAheadForLongIsCorrectedByRows(t *testing.T) {
	ahead := func() *host {
		h := newHost(t, 5*hour)
		h.minutes(100)
		h.off = 0
		return h
	}
	h := ahead()
	h.reads("right again", 0, 0, 5*hour)
	h.minutes(1000)
	h.reads("no rows come", 0, 0, 5*hour)
	h.rows = Rows{Near: true}
	h.minutes(CorrectAfter)
	h.reads("rows of now came", 0, 0, 0)
	h.remembers("rows of now came", 0)

	h = ahead()
	h.restart(minute)
	h.rows = Rows{Near: true}
	h.minutes(CorrectAfter / 2)
	h.restart(minute)
	h.minutes(CorrectAfter - 2)
	h.reads("not long enough in one process", 0, 0, 5*hour-2*minute+int64(JumpMax))
	h.minutes(1)
	h.reads("long enough", 0, 0, 0)

	h = ahead()
	h.rows = Rows{Near: true, Ahead: true}
	h.minutes(10 * CorrectAfter)
	h.reads("some senders are ahead: they may be right", 0, 0, 5*hour)
}

func TestAClockThatWasNeverSetIsReplacedByTheMemory(t *testing.T) {
	h := newHost(t, -noon+minute) // 1970
	h.reads("the first start of all", -noon+minute, -noon+minute, math.MaxInt64)
	h.minutes(20)
	if h.m.Stored(h.steady()) != 0 {
		t.Error("it is remembered")
	}
	h.off = 0
	h.minutes(20)
	h.restart(2 * day)
	h.off = -6 * 365 * day
	h.minutes(20)
	h.reads("a later boot in 2020", -2*day, -6*365*day, math.MaxInt64)
	h.restart(minute)
	h.off = 0
	h.minutes(10)
	h.reads("NTP came", 0, 0, 0)
}

func TestAPersonConfirmsAJump(t *testing.T) {
	h := newHost(t, 0)
	h.minutes(20)
	h.restart(30 * day) // or a store that was restored from a backup
	h.minutes(100)
	h.remembers("off for a month", -30*day)
	h.reads("off for a month", 0, -30*day, 0)
	h.confirmed = true
	h.minutes(0)
	h.remembers("confirmed", 0)
	h.off = -hour
	h.minutes(20)
	h.remembers("a clock set back is not what was confirmed", 0)
}

func TestRememberedClocksOfBuildsThatKeptUnsetOnesCountAsNone(t *testing.T) {
	if m := Remembered(minute, 0); m.Stored(hour) != 0 || m.State() != (State{}) {
		t.Errorf("%+v", m)
	}
}
