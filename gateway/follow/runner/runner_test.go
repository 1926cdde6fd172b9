package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// view is a gateway's view: one map, and the leaders. Its coordination store is away.
type view struct {
	mu      sync.Mutex
	m       *topology.Map
	lead    func(try int) leaders.Lead
	changed chan struct{}
	named   []uint64 // maps that were looked for
}

func newView(lead func(try int) leaders.Lead) *view {
	return &view{m: &topology.Map{Table: "t", Seq: 7}, lead: lead, changed: make(chan struct{})}
}

func (v *view) Get(string) (*topology.Map, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.m, true
}

func (v *view) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

func (v *view) change(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f()
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *view) Find(_ string, _ *topology.Partition, try int) (leaders.Lead, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.lead(try)
	if l.Server == "" {
		return l, fault.Errorf(fault.Unavailable, "nobody leads")
	}
	return l, nil
}

// Begin looks for a map for ever.
func (v *view) Begin(_ context.Context, _ string, _ *topology.Map, newer peer.MapAt) <-chan singleflight.Result {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.named = append(v.named, newer.Seq)
	return make(chan singleflight.Result)
}

func (v *view) Refresh(context.Context, string, *topology.Map, peer.MapAt) {}

func (v *view) runner(p follow.Policy) *Runner {
	return &Runner{Policy: p, Tables: v, Leaders: v, Maps: v}
}

func stale(p *topology.Partition, asked topology.ServerID) []follow.Failure {
	return []follow.Failure{{Partitions: []*topology.Partition{p}, Asked: asked, Sent: true, Reason: follow.Stale, Err: fault.Errorf(fault.Stale, "not here")}}
}

// TestAQueryFindsTheLeaderThoughTheStoreIsAway: in the gateway's view the partition never had a leader, the first guessed
// placement does not lead it, and the search for a newer map finds none. Each guess waited a second for that, and the query
// failed.
func TestAQueryFindsTheLeaderThoughTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newView(func(try int) leaders.Lead {
			return leaders.Lead{Server: topology.ServerID(fmt.Sprint("n", try%3+1)), Guess: true}
		})
		r, p, began := v.runner(follow.Reads(2*time.Second)), &topology.Partition{ID: 1}, time.Now()
		req := r.Policy.Request(began)
		for try := range 2 {
			asked, _ := v.Find("t", p, try)
			if e := r.Await(t.Context(), &req, "t", v.m, stale(p, asked.Server), r.Changes()); e.Do != follow.Send {
				t.Fatalf("try %d: %+v", try, e)
			}
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the third placement is asked after %v", took)
		}
		if got, _ := v.Find("t", p, req.Try()); got.Server != "n3" || len(v.named) != 2 {
			t.Errorf("asked %s, looked for maps %v", got.Server, v.named)
		}
	})
}

func TestAwaitEndsWithNewsOrPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newView(func(int) leaders.Lead { return leaders.Lead{} })
		r, p := v.runner(follow.Reads(2*time.Second)), &topology.Partition{ID: 1}
		failed := []follow.Failure{{Partitions: []*topology.Partition{p}, Reason: follow.Leaderless}}
		f := func(what string, ctx context.Context, do func(), want follow.Do, after time.Duration) {
			t.Helper()
			began := time.Now()
			req := r.Policy.Request(began)
			changes := r.Changes()
			time.AfterFunc(time.Second, func() { v.change(do) })
			if e := r.Await(ctx, &req, "t", v.m, failed, changes); e.Do != want || time.Since(began) != after {
				t.Errorf("%s: %+v after %v, want %d after %v", what, e, time.Since(began), want, after)
			}
			time.Sleep(time.Second) // the timer is over
		}
		f("nothing new", t.Context(), func() {}, follow.GiveUp, 2*time.Second)
		f("a newer map", t.Context(), func() { v.m = &topology.Map{Table: "t", Seq: v.m.Seq + 1} }, follow.Send, time.Second)
		ctx, leave := context.WithTimeout(t.Context(), 500*time.Millisecond)
		f("the asker left", ctx, func() {}, follow.GiveUp, 500*time.Millisecond)
		leave()
		f("a leader", t.Context(), func() { v.lead = func(int) leaders.Lead { return leaders.Lead{Server: "n1"} } }, follow.Send, time.Second)
	})
}

// TestRowsOfABusyServerAreNotStaged: a server with too little processor time was late with an answer, and with that to a ping, and its rows were staged on the others,
// which shared its processor. One that sends anything is waited for; once it sends nothing it is left within 800 ms.
func TestRowsOfABusyServerAreNotStaged(t *testing.T) {
	for _, works := range []time.Duration{0, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			v := newView(func(int) leaders.Lead { return leaders.Lead{Server: "n1"} })
			r := v.runner(follow.Writes(5*time.Second, false))
			r.Policy.StageAfter = follow.SilenceMax
			r.Ping = func(ctx context.Context, _ topology.ServerID) error { <-ctx.Done(); return ctx.Err() }
			r.LastReceived = func(topology.ServerID) time.Time { return began.Add(min(time.Since(began), works)) }
			a := r.BeginOne(t.Context(), "t", "n1", &topology.Partition{ID: 1})
			<-a.Context().Done()
			a.End(a.Context().Err())
			if took, most := time.Since(began), works+follow.SilenceMax+2*follow.PingMax; took < works+follow.SilenceMax || took > most || !errors.Is(context.Cause(a.Context()), ErrSilent) {
				t.Errorf("a server that sends for %v is left after %v by %v", works, took, context.Cause(a.Context()))
			}
			a.Close()
		})
	}
}

// TestAttemptsThatAreUsedAgainWatchAnew: one from the pool leaves a silent server as a new one does, and none is cancelled for another's sake.
func TestAttemptsThatAreUsedAgainWatchAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newView(func(int) leaders.Lead { return leaders.Lead{Server: "n2"} })
		r, p := v.runner(follow.Writes(5*time.Second, false)), &topology.Partition{ID: 1}
		for i := range 20 {
			a := r.BeginOne(t.Context(), "t", "n1", p)
			if i%3 < 2 { // it answers
				time.Sleep(10 * time.Millisecond)
				if verdict, _ := a.End(nil); verdict != follow.Done || a.Context().Err() != nil {
					t.Fatalf("attempt %d: %d, %v", i, verdict, a.Context().Err())
				}
				a.Close()
				continue
			}
			began := time.Now()
			<-a.Context().Done()
			verdict, reason := a.End(a.Context().Err())
			if took := time.Since(began); verdict != follow.Again || reason != follow.Moved || took != follow.SilenceMax {
				t.Fatalf("attempt %d: %d for %s after %v", i, verdict, reason, took)
			}
			if cause := context.Cause(a.Context()); !errors.Is(cause, ErrMoved) {
				t.Fatalf("attempt %d ended by %v", i, cause)
			}
			a.Close()
		}
	})
}

// TestAnAttemptThatWasNotEndedIsNotUsedAgain: a panic in an insert closes its attempt without an end. Its timer runs on, and would have ended the request that
// got the same attempt next, if the attempt had been used, and ended, before.
func TestAnAttemptThatWasNotEndedIsNotUsedAgain(t *testing.T) {
	v := newView(func(int) leaders.Lead { return leaders.Lead{Server: "s1"} })
	r := &Runner{Policy: follow.Writes(time.Minute, false), Tables: v, Leaders: v}
	a := r.BeginOne(t.Context(), "t", "s1", &topology.Partition{ID: 1})
	a.End(nil)
	a.begin(t.Context())
	if a.quiet {
		t.Error("it counts as ended as soon as it has begun again")
	}
	a.End(nil)
	a.Close()
}
