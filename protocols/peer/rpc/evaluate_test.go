package rpc

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// evaluator is a storage that answers evaluations with messages of its own.
type evaluator struct {
	*memory
	answer [][]byte
	fail   error
	asked  *peer.Select
	plan   []byte
	left   chan struct{} // if not nil, the answer waits until the caller leaves, and closes it
}

func (e *evaluator) Evaluate(ctx context.Context, q *peer.Select, plan []byte, give func([]byte) error) error {
	e.asked, e.plan = q, bytes.Clone(plan)
	for _, b := range e.answer {
		if err := give(b); err != nil {
			return err
		}
	}
	if e.left != nil {
		<-ctx.Done()
		close(e.left)
	}
	return e.fail
}

// serveEvaluator starts a server of e and connects to it.
func serveEvaluator(t *testing.T, e peer.Storage) *Peer {
	t.Helper()
	p, _ := serveStorage(t, e)
	return p
}

// serveStorage is serveEvaluator that returns the server, too.
func serveStorage(t *testing.T, e peer.Storage) (*Peer, *Server) {
	t.Helper()
	srv, err := NewServer(Deps{Storage: e, Registerer: prometheus.NewRegistry()}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	l, done := listen(t), make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	p := dial(t, l.Addr().String(), DialSettings{TLS: plain})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p, srv
}

// defective is a storage whose reads meet a defect.
type defective struct{ *memory }

func (defective) Evaluate(context.Context, *peer.Select, []byte, func([]byte) error) error {
	panic("a defect")
}

func (defective) LabelNames(context.Context, *peer.Select, int) ([]string, bool, error) {
	panic("a defect")
}

// TestAReadThatMeetsADefectEndsAlone: it ended the storage server, and the next copy that the gateway asked.
func TestAReadThatMeetsADefectEndsAlone(t *testing.T) {
	p := serveEvaluator(t, defective{newMemory()})
	for range 2 {
		err := p.Evaluate(t.Context(), &peer.Select{Table: "t"}, []byte{1}, func([]byte) error { return nil })
		wantKind(t, "an evaluation", err, fault.Internal)
		if !strings.Contains(err.Error(), "evaluate_test.go:") {
			t.Errorf("it does not say where: %v", err)
		}
		_, _, err = p.LabelNames(t.Context(), &peer.Select{Table: "t"}, 0)
		wantKind(t, "a look-up", err, fault.Internal)
		var outcomes []error
		ask := &peer.Evaluation{Select: &peer.Select{Table: "t"}, Request: []byte{1}, Give: func([]byte) error { return nil }, End: func(err error) { outcomes = append(outcomes, err) }}
		p.EvaluateAll(t.Context(), []*peer.Evaluation{ask})
		if len(outcomes) != 1 || !fault.Is(outcomes[0], fault.Internal) {
			t.Errorf("evaluations that travel together: %v", outcomes)
		}
		if err := p.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAnEvaluationTravels(t *testing.T) {
	e := &evaluator{memory: newMemory(), answer: [][]byte{{1, 2}, bytes.Repeat([]byte{7}, 3<<20), {3}}}
	p := serveEvaluator(t, e)
	q := &peer.Select{Table: "t", Partitions: nil, Lo: -5, Hi: 9, Matchers: []peer.Matcher{{Name: "a", Value: "b"}}, MapSeq: 4, MapNext: 5, SeriesMax: 6, SamplesMax: 7}
	var got [][]byte
	plan := bytes.Repeat([]byte("p"), 100_000)
	if err := p.Evaluate(t.Context(), q, plan, func(b []byte) error { got = append(got, bytes.Clone(b)); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || !bytes.Equal(bytes.Join(got, nil), bytes.Join(e.answer, nil)) || !bytes.Equal(e.plan, plan) {
		t.Errorf("%d messages, a plan of %d bytes", len(got), len(e.plan))
	}
	if e.asked.Table != "t" || e.asked.MapSeq != 4 || e.asked.MapNext != 5 || len(e.asked.Matchers) != 1 || e.asked.SamplesMax != 7 {
		t.Errorf("asked %+v", e.asked)
	}
	e.answer, e.fail = nil, fault.Errorf(fault.Stale, "another leads")
	wantKind(t, "a refusal", p.Evaluate(t.Context(), q, plan, nil), fault.Stale)
	wantKind(t, "a large plan", p.Evaluate(t.Context(), q, make([]byte, evaluateMax+1), nil), fault.Invalid)
}

// TestAnEvaluationEndsWithItsCaller, in the server too.
func TestAnEvaluationEndsWithItsCaller(t *testing.T) {
	e := &evaluator{memory: newMemory(), answer: [][]byte{{1}}, left: make(chan struct{})}
	p := serveEvaluator(t, e)
	ctx, cancel := context.WithCancel(t.Context())
	err := p.Evaluate(ctx, &peer.Select{Table: "t"}, []byte{1}, func([]byte) error { cancel(); return nil })
	wantKind(t, "a caller that left", err, fault.Canceled)
	<-e.left

	e.left = nil
	e.answer = [][]byte{{1}, {2}}
	full := fault.Errorf(fault.Throttled, "no memory")
	wantKind(t, "a caller without memory", p.Evaluate(t.Context(), &peer.Select{Table: "t"}, []byte{1}, func([]byte) error { return full }), fault.Throttled)
}

// TestAServerThatCannotEvaluateSaysSo, whether its storage or its build does not: the gateway reads the rows. So it is with the times of staged rows, and with the end of slices.
func TestAServerThatCannotEvaluateSaysSo(t *testing.T) {
	older := grpc.NewServer(grpc.ForceServerCodecV2(codec{}))
	older.RegisterService(&grpc.ServiceDesc{ServiceName: service}, nil)
	l := listen(t)
	done := make(chan error, 1)
	go func() { done <- older.Serve(l) }()
	defer func() { older.Stop(); <-done }()
	for what, p := range map[string]*Peer{
		"a storage":    serveEvaluator(t, newMemory()),
		"an old build": dial(t, l.Addr().String(), DialSettings{TLS: plain}),
	} {
		in := columns.Receiver{Of: &columns.Request{}}
		if err := p.Evaluate(t.Context(), &peer.Select{Table: "t"}, []byte{1}, in.Add); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := in.Part(); !errors.Is(err, columns.ErrUnknown) {
			t.Errorf("%s: %v", what, err)
		}
		_, _, err := p.StagedTimes(t.Context(), "t")
		wantKind(t, what+" that does not know the times of its staged rows", err, fault.Invalid) // not Unavailable: it is there
		wantKind(t, what+" that does not end slices", p.EndSlices(t.Context(), "t", 1, 2), fault.Invalid)
		_, err = p.HighestRank(t.Context(), "t", 1)
		wantKind(t, what+" that does not report ranks", err, fault.Invalid)
	}
}
