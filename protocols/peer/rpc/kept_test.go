package rpc

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

func echoes() *scripted {
	return &scripted{memory: newMemory(), answer: func(ctx context.Context, _ *peer.Select, request string, give func([]byte) error) error {
		switch request {
		case "wait":
			<-ctx.Done()
			return ctx.Err()
		case "fail":
			return fault.Errorf(fault.Stale, "another leads")
		}
		return give([]byte(request))
	}}
}

func idleStreams(p *Peer) int {
	k := &p.mu.line.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mu.idle)
}

func askOne(ctx context.Context, p *Peer, request string) *ending {
	var e ending
	p.EvaluateAll(ctx, []*peer.Evaluation{e.of(request, &peer.Select{Table: "t"})})
	return &e
}

func wantAnswer(t *testing.T, p *Peer, request string) {
	t.Helper()
	if e := askOne(t.Context(), p, request); e.err != nil || e.ends != 1 || string(e.got) != request {
		t.Errorf("answer of %d bytes to one of %d, %d ends, %v", len(e.got), len(request), e.ends, e.err)
	}
}

// TestEvaluationsUseOneStreamAgain: also after an evaluation that failed, and a large answer.
func TestEvaluationsUseOneStreamAgain(t *testing.T) {
	p := serveEvaluator(t, echoes())
	for range 20 {
		wantAnswer(t, p, "a")
	}
	wantKind(t, "a refusal", askOne(t.Context(), p, "fail").err, fault.Stale)
	wantAnswer(t, p, strings.Repeat("large", 100_000))
	wantAnswer(t, p, "b")
	if n := idleStreams(p); n != 1 || !p.mu.line.kept.mu.idle[0].used {
		t.Errorf("%d streams are idle, not the one", n)
	}
}

// TestRequestsBesideEachOtherHaveStreamsOfTheirOwn: each gets its own answer, and a bounded number of streams stay.
func TestRequestsBesideEachOtherHaveStreamsOfTheirOwn(t *testing.T) {
	p := serveEvaluator(t, echoes())
	var all sync.WaitGroup
	for i := range 3 * keptMax {
		all.Go(func() {
			for range 20 {
				wantAnswer(t, p, strings.Repeat("x", 1+i))
			}
		})
	}
	all.Wait()
	if n := idleStreams(p); n == 0 || n > keptMax {
		t.Errorf("%d streams are idle, at most %d may be", n, keptMax)
	}
}

// TestAStreamWhoseCallerLeftIsNotUsedAgain: records that the server may still send on it would count as a later answer.
func TestAStreamWhoseCallerLeftIsNotUsedAgain(t *testing.T) {
	p := serveEvaluator(t, echoes())
	wantAnswer(t, p, "a")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan *ending)
	go func() { left <- askOne(ctx, p, "wait") }()
	leave()
	wantKind(t, "a caller that left", (<-left).err, fault.Canceled)
	wantAnswer(t, p, "b")
	refuses := (&ending{}).of("large", &peer.Select{Table: "t"})
	refuses.Give = func([]byte) error { return fault.Errorf(fault.Throttled, "no memory") }
	idle := idleStreams(p)
	p.EvaluateAll(t.Context(), []*peer.Evaluation{refuses})
	if n := idleStreams(p); n != idle-1 {
		t.Errorf("%d streams are idle after an answer that was refused, %d before", n, idle)
	}
	wantAnswer(t, p, "c")
}

// TestAStreamThatEndedWhileItWasIdleCostsNoAnswer: the request travels on another one.
func TestAStreamThatEndedWhileItWasIdleCostsNoAnswer(t *testing.T) {
	p := serveEvaluator(t, echoes())
	wantAnswer(t, p, "a")
	p.mu.line.kept.mu.idle[0].end(nil)
	wantAnswer(t, p, "b")
	wantAnswer(t, p, "c")
}

// TestAServerStopsAlthoughStreamsAreIdle: within its grace, and callers get Unavailable.
func TestAServerStopsAlthoughStreamsAreIdle(t *testing.T) {
	srv, err := NewServer(Deps{Storage: echoes()}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	l, done := listen(t), make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	p := dial(t, l.Addr().String(), DialSettings{TLS: plain})
	wantAnswer(t, p, "a")
	if err := srv.Shutdown(t.Context()); err != nil { // it would wait for ever
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantKind(t, "a server that stopped", askOne(t.Context(), p, "b").err, fault.Unavailable)
}

// TestStreamsThatEndLeaveTheServer: a handler that outlives its stream counts among the streams that its connection may have, until that has no place left.
func TestStreamsThatEndLeaveTheServer(t *testing.T) {
	together := make(chan struct{})
	var came sync.WaitGroup
	came.Add(3 * keptMax)
	go func() { came.Wait(); close(together) }()
	e := echoes()
	e.answer = func(_ context.Context, _ *peer.Select, request string, give func([]byte) error) error {
		came.Done()
		<-together // so that more streams are open than are kept
		return give([]byte(request))
	}
	p := serveEvaluator(t, e)
	var all sync.WaitGroup
	for range 3 * keptMax {
		all.Go(func() { wantAnswer(t, p, "a") })
	}
	all.Wait()
	wantHandlers(t, idleStreams(p))
	for p.mu.line.kept.mu.idle != nil {
		st := p.mu.line.kept.take()
		if st == nil {
			break
		}
		st.end(nil)
	}
	wantHandlers(t, 0)
}

// wantHandlers waits until so many handlers of kept streams run.
func wantHandlers(t *testing.T, want int) {
	t.Helper()
	for t.Context().Err() == nil {
		stacks := make([]byte, 8<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if bytes.Count(stacks, []byte(".keptEvaluations(")) == want {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestAServerWithoutKeptStreamsIsAskedByOneForEachRequest: an older build answers Unimplemented once; then each request has a stream.
func TestAServerWithoutKeptStreamsIsAskedByOneForEachRequest(t *testing.T) {
	srv := &Server{deps: Deps{Storage: echoes()}, metrics: newServerMetrics(nil, nil), settings: Settings{RequestBytesMax: 1 << 20}}
	older := grpc.NewServer(grpc.ForceServerCodecV2(codec{}))
	older.RegisterService(&grpc.ServiceDesc{ServiceName: service, Streams: []grpc.StreamDesc{{StreamName: methodEvaluations, ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, ss grpc.ServerStream) error { return toStatus(srv.evaluations(ss)) }}}}, nil)
	l, done := listen(t), make(chan error, 1)
	go func() { done <- older.Serve(l) }()
	defer func() { older.Stop(); <-done }()
	p := dial(t, l.Addr().String(), DialSettings{TLS: plain})
	wantAnswer(t, p, "a")
	wantAnswer(t, p, "b")
	if !p.mu.line.kept.unknown.Load() || idleStreams(p) != 0 {
		t.Error("it is asked for kept streams again")
	}
}
