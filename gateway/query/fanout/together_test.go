package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// manyServer notes the requests that it gets, and answers each evaluation by its request.
type manyServer struct {
	peer.Storage
	mu    sync.Mutex
	asked [][]string
	waits chan struct{} // if not nil, answers wait until it is closed, or for the end of the request
	left  error         // why a request that waited ended
}

func (s *manyServer) Evaluate(context.Context, *peer.Select, []byte, func([]byte) error) error {
	return errors.New("asked for a single evaluation")
}

func (s *manyServer) EvaluateAll(ctx context.Context, all []*peer.Evaluation) {
	var requests []string
	for _, e := range all {
		requests = append(requests, string(e.Request))
	}
	slices.Sort(requests)
	s.mu.Lock()
	s.asked = append(s.asked, requests)
	s.mu.Unlock()
	if s.waits != nil {
		select {
		case <-s.waits:
		case <-ctx.Done():
			s.left = ctx.Err()
		}
	}
	for _, e := range all {
		e.End(e.Give(e.Request))
	}
}

// divides begins a division under ctx with so many questions, put to servers in turn, and returns the answers.
func divides(ctx context.Context, name string, servers []*manyServer, questions int) (got []string) {
	t := begin(ctx)
	var answers sync.WaitGroup
	got = make([]string, questions)
	for i, k := range t.tickets(questions) {
		answers.Go(func() {
			defer k.leave()
			at := i % len(servers)
			_, err := k.put(ctx, topology.ServerID(fmt.Sprint("n", at)), servers[at], nil, []byte(fmt.Sprint(name, i)), func(b []byte) error {
				got[i] = string(b)
				return nil
			})
			if err != nil {
				got[i] = err.Error()
			}
		})
	}
	answers.Wait()
	return got
}

// TestWhatDivisionsAskOfAServerIsOneRequest, also where one has nothing to ask, or its server accepts none.
func TestWhatDivisionsAskOfAServerIsOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := []*manyServer{{}, {}}
		ctx := (&Source{}).Together(t.Context(), 4)
		var all sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			all.Go(func() {
				if got := divides(ctx, name, servers, 3); !slices.Equal(got, []string{name + "0", name + "1", name + "2"}) {
					t.Errorf("division %s: %q", name, got)
				}
			})
		}
		synctest.Wait()
		if len(servers[0].asked)+len(servers[1].asked) > 0 {
			t.Error("servers were asked before all divisions had begun")
		}
		d := &division{together: begin(ctx)}
		d.leave() // it is not worth dividing
		k := begin(ctx).tickets(1)[0]
		if ok, err := k.put(ctx, "n9", struct{ peer.Storage }{}, nil, nil, nil); ok || err != nil {
			t.Errorf("a server that takes no evaluations was asked: %v", err)
		}
		k.leave()
		all.Wait()
		for i, want := range [][]string{{"a0", "a2", "b0", "b2"}, {"a1", "b1"}} {
			if got := servers[i].asked; len(got) != 1 || !slices.Equal(got[0], want) {
				t.Errorf("server %d was asked %q, want once %q", i, got, want)
			}
		}
		if begin(ctx) != nil {
			t.Error("a fifth division of four is waited for")
		}
		if ok, _ := k.put(ctx, "n0", servers[0], nil, nil, nil); ok {
			t.Error("a ticket was used twice")
		}
	})
}

// TestOneAskerThatLeavesTakesNoAnswersFromOthers. When the last one leaves the request ends.
func TestOneAskerThatLeavesTakesNoAnswersFromOthers(t *testing.T) {
	for _, allLeave := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := &manyServer{waits: make(chan struct{})}
			ctx := (&Source{}).Together(t.Context(), 2)
			ctxs, leave := make([]context.Context, 2), make([]context.CancelFunc, 2)
			ends, left := make([]error, 2), make([]atomic.Bool, 2)
			var all sync.WaitGroup
			for i := range ctxs {
				ctxs[i], leave[i] = context.WithCancel(ctx)
				k := begin(ctx).tickets(1)[0]
				all.Go(func() {
					_, ends[i] = k.put(ctxs[i], "n1", server, nil, []byte{1}, func([]byte) error {
						if left[i].Load() {
							t.Error("a message for one that left")
						}
						return nil
					})
					left[i].Store(true)
				})
			}
			synctest.Wait()
			leave[0]()
			synctest.Wait()
			if server.left != nil || !fault.Is(ends[0], fault.Canceled) {
				t.Errorf("one left: %v, the request ended: %v", ends[0], server.left)
			}
			if allLeave {
				leave[1]()
			} else {
				close(server.waits)
			}
			all.Wait()
			synctest.Wait()
			if allLeave != (server.left != nil) || allLeave != (ends[1] != nil) {
				t.Errorf("all left: %v, the request ended: %v, the other one: %v", allLeave, server.left, ends[1])
			}
			leave[1]()
		})
	}
}

// TestQuestionsThatCannotAllTravelAtOnceAreAllAsked: more than fit into a request.
func TestQuestionsThatCannotAllTravelAtOnceAreAllAsked(t *testing.T) {
	server := &manyServer{}
	ctx := (&Source{}).Together(t.Context(), 1)
	n := 2*peer.EvaluationsMax + 3
	got := divides(ctx, "q", []*manyServer{server}, n)
	for i, answer := range got {
		if answer != fmt.Sprint("q", i) {
			t.Errorf("question %d: %q", i, answer)
		}
	}
	if len(server.asked) != 3 {
		t.Errorf("%d requests", len(server.asked))
	}
}
