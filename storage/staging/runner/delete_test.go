package runner

import (
	"context"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// these asks for the series of those numbers.
func these(n ...int) *Query {
	return &Query{Table: "t", Lo: math.MinInt64, Hi: math.MaxInt64, Match: func(l point.Labels) bool {
		i, err := strconv.Atoi(l.Get("n"))
		return err == nil && slices.Contains(n, i)
	}}
}

// several is a frame with a row of each of some series, at the time of its number, with the series' number as its value.
func several(frameN int, of ...int) (*peer.Staging, *frame.Frame) {
	_, st, f := row("t", frameN)
	f.Defs, f.IDs, f.Times, f.Values = nil, nil, nil, nil
	for i, n := range of {
		f.Defs = append(f.Defs, point.MakeLabels("__name__", "m", "n", strconv.Itoa(n)))
		f.IDs, f.Times, f.Values = append(f.IDs, point.DenseID(i)), append(f.Times, point.Nanos(frameN)), append(f.Values, float64(n))
	}
	return st, f
}

// TestDeletedRowsDoNotComeBackWithTheirFrame: of three frames one loses all rows, one some, one none, and a power cut right after the deletion changes nothing. The leader
// gets the rest, with its rank.
func TestDeletedRowsDoNotComeBackWithTheirFrame(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	for n, of := range map[int][]int{1: {1, 2}, 2: {2, 3, 4}, 3: {5}} {
		st, f := several(n, of...)
		f.Exemplars = append(f.Exemplars, frame.ExemplarRow{ID: 0, Time: point.Nanos(n), Value: 9, Labels: point.MakeLabels("__name__", "x")})
		if n == 1 {
			f.Exemplars = nil
		}
		h.must(s.Stage(t.Context(), "t", 1, st, f))
	}
	late := these(3, 5)
	late.Lo = 3
	h.must(s.Delete(t.Context(), these(1, 2)))
	h.want(s, "t", 3, 4, 5)
	h.must(s.Delete(t.Context(), late)) // series 3 has no row of that time
	h.want(s, "t", 3, 4)
	bytes := s.Bytes()
	crashed := h.fs.CrashClone(vfs.CrashCloneCfg{})
	h.must(s.Close())
	h.fs = crashed
	s, l, stop := h.serve()
	h.want(s, "t", 3, 4)
	if again := s.Bytes(); again != bytes {
		t.Errorf("%d bytes were held, %d after a crash", bytes, again)
	}
	l.set(nil)
	h.await("all is forwarded", func() bool { return s.Bytes() == 0 })
	stop()
	slices.Sort(l.taken)
	if !slices.Equal(l.taken, []float64{3, 4}) || slices.ContainsFunc(l.ranks, func(r point.Stamp) bool { return r != 2<<10 && r != 3<<10 }) {
		t.Errorf("the leader took %v with ranks %v", l.taken, l.ranks)
	}
}

// TestADeletionWaitsForRowsOnTheirWay: a frame is at its leader when the deletion begins. The deletion ends after that: the row is in the partition then, where it is deleted next, or
// its frame has it no more.
func TestADeletionWaitsForRowsOnTheirWay(t *testing.T) {
	for _, taken := range []bool{true, false} {
		h := newHouse(t)
		s, l, stop := h.serve()
		gate := make(chan struct{})
		l.mu.Lock()
		l.gate = gate
		if taken {
			l.err = nil
		}
		l.mu.Unlock()
		h.must(h.stage(s, "t", 1))
		h.await("the row is on its way", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.waits > 0 })
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := s.Delete(short, these(1)); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a deletion with a row on its way: %v", err)
		}
		cancel()
		ended := make(chan error, 1)
		go func() { ended <- s.Delete(t.Context(), these(1)) }()
		h.await("the deletion has begun", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.mu.machine.Tables()) == 0 || s.mu.machine.Deleting("t")
		})
		l.mu.Lock()
		l.gate = nil
		l.mu.Unlock()
		close(gate)
		h.must(<-ended)
		h.want(s, "t")
		l.set(nil)
		h.must(h.stage(s, "t", 2))
		h.await("a row that was written later is forwarded", func() bool { return s.Bytes() == 0 })
		stop()
		want := []float64{2}
		if taken {
			want = []float64{1, 2}
		}
		if !slices.Equal(l.taken, want) {
			t.Errorf("taken %t: the leader has %v", taken, l.taken)
		}
	}
}

// TestAForgottenRowStaysGoneAfterItsDeletion: a frame was forwarded, and a power cut brings it back as long as nothing was synced since. Once the row was deleted in its
// partition, it must not come back: the partition would accept it again.
func TestAForgottenRowStaysGoneAfterItsDeletion(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	for n := range 3 {
		h.must(h.stage(s, "t", n+1))
	}
	h.must(s.Forget(idOf(1)))
	before := h.fs.CrashClone(vfs.CrashCloneCfg{})
	h.must(s.Delete(t.Context(), these(1)))
	after := h.fs.CrashClone(vfs.CrashCloneCfg{})
	h.must(s.Forget(idOf(2)))
	h.must(s.Forget(idOf(3)))
	now := time.Now()
	h.must(s.retract(t.Context(), now.Add(announcedFor+time.Minute)))
	if len(h.announced) > 0 {
		t.Errorf("announced are %v", h.announced)
	}
	later := h.fs.CrashClone(vfs.CrashCloneCfg{})
	h.must(s.Close())
	for _, c := range []struct {
		fs   *vfs.MemFS
		want []float64
	}{{before, []float64{1, 2, 3}}, {after, []float64{2, 3}}, {later, nil}} {
		h.fs = c.fs
		s := h.open(staging.Settings{})
		h.want(s, "t", c.want...)
		h.must(s.Close())
	}
}

// TestRowsThatAreHeldForADeletionAreNotForwarded, those of other times are, until it ends or is not renewed; and none of them is on its way when Hold returns.
func TestRowsThatAreHeldForADeletionAreNotForwarded(t *testing.T) {
	h := newHouse(t)
	s, l, stop := h.serve()
	gate := make(chan struct{})
	l.mu.Lock()
	l.gate, l.err = gate, nil
	l.mu.Unlock()
	h.must(h.stage(s, "t", 1))
	h.await("the row is on its way", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.waits > 0 })
	held := these(1)
	held.Lo, held.Hi, held.Hold = 1, 2, 7
	ended := make(chan error, 1)
	go func() { ended <- s.Hold(t.Context(), held) }()
	h.await("the hold has begun", func() bool { return s.Renew(7) == nil })
	select {
	case err := <-ended:
		t.Fatalf("a hold with a row on its way: %v", err)
	default:
	}
	l.mu.Lock()
	l.gate = nil
	l.mu.Unlock()
	close(gate)
	h.must(<-ended)
	h.must(h.stage(s, "t", 2))
	h.must(h.stage(s, "t", 3))
	h.await("the row of another time is forwarded", func() bool { return len(h.values(s, "t")) == 1 })
	h.want(s, "t", 2)
	h.must(s.Delete(t.Context(), held))
	s.Release(7)
	h.await("the row is forwarded", func() bool { return s.Bytes() == 0 })
	if err := s.Delete(t.Context(), held); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a deletion whose hold ended: %v", err)
	}
	if err := s.Renew(7); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a hold that ended is renewed: %v", err)
	}
	stop()
}
