package rank_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

const noon = point.Nanos(1_790_000_000e9)

func TestTicksRiseWhateverTheClockDoes(t *testing.T) {
	c := rank.NewClock(7)
	last := point.Stamp(0)
	for _, x := range []struct {
		now point.Nanos
		n   int
	}{{noon, 1}, {noon, 1}, {noon - int64(time.Hour), 3}, {noon + 1, 1}, {noon + int64(time.Second), 1000}, {noon + int64(time.Second) + 5, 1}, {-5, 1}} {
		s := c.Tick(x.now, x.n)
		if s <= last || s%rank.Step != 7 {
			t.Errorf("at %d the rank %d after %d", x.now, s, last)
		}
		last = s + point.Stamp(x.n-1)*rank.Step
	}
}

func TestATickIsOfItsMoment(t *testing.T) {
	c := rank.NewClock(1023)
	if s := c.Tick(noon, 1); rank.Time(s) != noon&^(rank.Step-1) {
		t.Errorf("at %d the rank's time is %d", noon, rank.Time(s))
	}
	c.Observe(rank.At(noon + int64(time.Minute)))
	if s := c.Tick(noon, 1); s <= rank.At(noon+int64(time.Minute)) {
		t.Error("a rank below one that was observed")
	}
}

func TestARefusedGatewayGoesByTheServersTimeUntilItsClockIsTriedAgain(t *testing.T) {
	hour := int64(time.Hour)
	c := rank.NewClock(0)
	if s := c.Tick(noon+hour, 5); !rank.Ahead(s, noon) {
		t.Fatal("an hour ahead is not refused")
	}
	c.Refused(noon+hour, noon)
	for i := range int64(10) {
		if s := c.Tick(noon+hour+i*1e9, 1); rank.Ahead(s, noon+i*1e9) || rank.Time(s) < noon+i*1e9-rank.Step {
			t.Errorf("%d s after the refusal the rank's time is %v off", i, time.Duration(rank.Time(s)-noon-i*1e9))
		}
	}
	if s := c.Tick(noon+10e9+1e9, 1); rank.Time(s) < noon+11e9-rank.Step {
		t.Error("the clock was set right, and its ranks stay behind")
	}
	c.Refused(noon+11e9, noon+12e9) // a server with a clock ahead of ours does not make us faster
	if s := c.Tick(noon+11e9, 1); rank.Time(s) > noon+11e9+rank.Step {
		t.Errorf("our ranks are ahead of our clock")
	}
}

func TestAhead(t *testing.T) {
	f := func(ahead time.Duration, want bool) {
		t.Helper()
		if got := rank.Ahead(point.Stamp(noon+int64(ahead)), noon); got != want {
			t.Errorf("%v ahead: refused %v", ahead, got)
		}
	}
	f(0, false)
	f(-365*24*time.Hour, false)
	f(900*time.Millisecond, false)
	f(time.Second, false)
	f(time.Second+time.Microsecond, true)
	f(100*365*24*time.Hour, true)
	if rank.Ahead(0, -1) || !rank.Ahead(math.MaxUint64, 0) || rank.Ahead(math.MaxInt64, math.MaxInt64) {
		t.Error("the ends of time")
	}
}

func TestWhatIsTakenLaterRanksHigher(t *testing.T) {
	var o rank.Order
	rng := rand.New(rand.NewPCG(1, 2))
	last := point.Stamp(0)
	for range 10_000 {
		s := point.Stamp(noon + rng.Int64N(4e9) - 2e9)
		got := o.Next(s)
		if got <= last || got%rank.Step != s%rank.Step || s > last && got != s {
			t.Fatalf("%d after %d became %d", s, last, got)
		}
		last = got
	}
	o.Observe(last + 5*rank.Step)
	if got := o.Next(3); got != (last+6*rank.Step)&^(rank.Step-1)|3 {
		t.Errorf("after a frame that kept its rank %d follows, want above %d", got, last+5*rank.Step)
	}
}

// TestOneFutureRankCostsOneStepAFrame: ranks count on from one that a wrong clock once left behind, and the cost does not repeat.
func TestOneFutureRankCostsOneStepAFrame(t *testing.T) {
	var o rank.Order
	future := rank.At(noon + 365*24*int64(time.Hour))
	o.Observe(future)
	for i := range 1000 {
		if got, want := o.Next(rank.At(noon+int64(i))), future+point.Stamp(i+1)*rank.Step; got != want {
			t.Fatalf("frame %d has the rank %d, want %d", i, got, want)
		}
	}
}

func TestTheHighestRankIsNotPassed(t *testing.T) {
	var o rank.Order
	o.Observe(math.MaxUint64 - 1)
	for range 3 {
		if got := o.Next(5); got < math.MaxUint64-1 {
			t.Errorf("after the end comes %d", got)
		}
	}
	c := rank.NewClock(3)
	c.Observe(math.MaxUint64)
	if a, b := c.Tick(noon, 10), c.Tick(noon, 1); a > b {
		t.Errorf("%d, then %d", a, b)
	}
}

func TestMedianOfTheServersClocks(t *testing.T) {
	hour := int64(time.Hour)
	f := func(want int64, offsets ...int64) {
		t.Helper()
		var s rank.Servers
		for i, o := range offsets {
			s.Observe(fmt.Sprint("s", i), noon+o, 1000)
		}
		got, ok := s.Offset(2000)
		if !ok || got != noon-1000+want {
			t.Errorf("offsets %v: median %v off, %v", offsets, time.Duration(got-noon+1000), ok)
		}
	}
	f(0, 0)
	f(hour, hour)
	f(0, 0, hour)
	f(-hour, -hour, 0)
	f(3, 0, 3, 365*24*hour)
	f(3, -hour, 3, 5)
	f(1, hour, hour, 1, 0, -hour)

	var s rank.Servers
	if _, ok := s.Offset(0); ok {
		t.Error("a median of no clocks")
	}
	s.Observe("s1", noon, 0)
	s.Observe("s2", noon+hour, 0)
	s.Observe("s3", noon+hour, 0)
	if o, _ := s.Offset(1); o != noon+hour {
		t.Error("two of three do not decide")
	}
	s.Forget("s2")
	s.Observe("s1", noon+60e9, 60e9)
	s.Observe("s3", noon+60e9, 60e9) // was set right
	if o, _ := s.Offset(60e9); o != noon {
		t.Error("what was heard before still counts")
	}
	if _, ok := s.Offset(60e9 + int64(rank.ForgetAfter) + 1); ok {
		t.Error("servers that are gone still count")
	}
}

// TestLateHeartbeatsSlowNoClock: an overloaded store delivers heartbeats seconds late. By a median that followed them, gateways would be refused and stamp
// rows earlier than those that another gateway staged before.
func TestLateHeartbeatsSlowNoClock(t *testing.T) {
	var s rank.Servers
	rng := rand.New(rand.NewPCG(3, 4))
	for at := int64(0); at < 600e9; at += 1e9 {
		late := rng.Int64N(5e9)
		if at%20e9 == 0 {
			late = 50e6
		}
		s.Own("s1", noon+at, at)
		s.Observe("s2", noon+at-late, at)
		if o, _ := s.Offset(at); o < noon-50e6 || o > noon {
			t.Fatalf("after %v the clocks seem to be %v off", time.Duration(at), time.Duration(o-noon))
		}
	}
	for at := int64(600e9); at < 700e9; at += 1e9 { // s2 is set back by an hour
		s.Own("s1", noon+at, at)
		s.Observe("s2", noon+at-3600e9, at)
		if o, _ := s.Offset(at); o != noon-3600e9 && at >= 600e9+2*int64(rank.LatePeriod) {
			t.Fatalf("a clock that was set back is still believed, %v off", time.Duration(o-noon))
		}
	}
	s.Own("s1", noon-3600e9, 700e9)
	if o, _ := s.Offset(700e9); o > noon-3600e9-700e9+1e9 {
		t.Errorf("our own clock was set back, and is %v off", time.Duration(o-noon))
	}
}

func TestRaisingARankAllocatesNothing(t *testing.T) {
	var o rank.Order
	c := rank.NewClock(1)
	if n := testing.AllocsPerRun(100, func() { o.Next(c.Tick(noon, 3)) }); n > 0 {
		t.Errorf("%v allocations a frame", n)
	}
}

// TestAGatewayWhoseStampsGoBackHasAnotherNumber: under the old one partitions remember newer stamps, and would refuse all its inserts.
func TestAGatewayWhoseStampsGoBackHasAnotherNumber(t *testing.T) {
	c := rank.NewClock(7)
	var seen rank.Seen
	for i := range int64(2000) {
		seen.Take(c.Tick(noon+i*1e6, 1))
	}
	c.Refused(noon+2e9, noon-3600e9)
	if s := c.Tick(noon+2e9, 1); rank.Ahead(s, noon-3600e9) || !seen.Take(s) {
		t.Errorf("the stamp %d is not taken at a server whose clock was set back", s)
	}
	numbers := map[point.Stamp]bool{}
	for range rank.Gateways {
		c.Renumber()
		numbers[c.Tick(noon, 1)%rank.Step] = true
	}
	if len(numbers) != rank.Gateways {
		t.Errorf("%d numbers of %d are tried", len(numbers), rank.Gateways)
	}
}
