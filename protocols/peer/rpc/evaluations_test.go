package rpc

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// scripted answers evaluations by their requests.
type scripted struct {
	*memory
	answer func(ctx context.Context, q *peer.Select, request string, give func([]byte) error) error

	mu    sync.Mutex
	asked []string
}

func (s *scripted) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	s.mu.Lock()
	s.asked = append(s.asked, string(request))
	s.mu.Unlock()
	return s.answer(ctx, q, string(request), give)
}

// ending collects the answer of an evaluation.
type ending struct {
	got  []byte
	err  error
	ends int
}

func (e *ending) of(request string, q *peer.Select) *peer.Evaluation {
	return &peer.Evaluation{Select: q, Request: []byte(request),
		Give: func(b []byte) error { e.got = append(e.got, b...); return nil },
		End:  func(err error) { e.err, e.ends = err, e.ends+1 }}
}

// TestEvaluationsTravelTogether: each has its own selector, answer and error, also where one answer is large.
func TestEvaluationsTravelTogether(t *testing.T) {
	long := strings.Repeat("long ", 1<<20)
	e := &scripted{memory: newMemory(), answer: func(_ context.Context, q *peer.Select, request string, give func([]byte) error) error {
		switch request {
		case "stale":
			return peer.WithMap(peer.Unsure(fault.Errorf(fault.Stale, "another leads")), peer.MapAt{Txn: peer.TxnID{1}, Seq: 9, Servers: []string{"n1"}})
		case "long":
			if err := give([]byte(long)); err != nil {
				return err
			}
		case "half":
			if err := give([]byte("half")); err != nil {
				return err
			}
			return fault.Errorf(fault.Unavailable, "no more")
		}
		return give([]byte(request + " of " + q.Table))
	}}
	p := serveEvaluator(t, e)
	requests := []string{"a", "stale", "long", "b", "half"}
	ends := make([]ending, len(requests))
	var all []*peer.Evaluation
	for i, r := range requests {
		all = append(all, ends[i].of(r, &peer.Select{Table: fmt.Sprint("t", i), Matchers: []peer.Matcher{{Name: "a", Value: "b"}}}))
	}
	p.EvaluateAll(t.Context(), all)
	for i, want := range []string{"a of t0", "", long + "long of t2", "b of t3", "half"} {
		if string(ends[i].got) != want || ends[i].ends != 1 {
			t.Errorf("evaluation %d: %d bytes, %d expected, it ended %d times", i, len(ends[i].got), len(want), ends[i].ends)
		}
	}
	wantKind(t, "a refusal", ends[1].err, fault.Stale)
	if at, ok := peer.MapOf(ends[1].err); !ok || at.Seq != 9 || !peer.IsUnsure(ends[1].err) {
		t.Errorf("the refusal lost its marks: %v", ends[1].err)
	}
	wantKind(t, "an answer that breaks off", ends[4].err, fault.Unavailable)
	for _, i := range []int{0, 2, 3} {
		if ends[i].err != nil {
			t.Errorf("evaluation %d: %v", i, ends[i].err)
		}
	}
}

// TestOneOfSeveralEvaluationsIsRefusedByItsCaller: the others are answered.
func TestOneOfSeveralEvaluationsIsRefusedByItsCaller(t *testing.T) {
	e := &scripted{memory: newMemory(), answer: func(_ context.Context, _ *peer.Select, request string, give func([]byte) error) error {
		return errors.Join(give([]byte(request)), give([]byte(request)))
	}}
	p := serveEvaluator(t, e)
	var full, other ending
	refuses := full.of("x", &peer.Select{Table: "t"})
	refuses.Give = func([]byte) error { return fault.Errorf(fault.Throttled, "no memory") }
	p.EvaluateAll(t.Context(), []*peer.Evaluation{refuses, other.of("y", &peer.Select{Table: "t"})})
	wantKind(t, "an evaluation without memory", full.err, fault.Throttled)
	if other.err != nil || string(other.got) != "yy" || full.ends != 1 {
		t.Errorf("the other one: %q, %v", other.got, other.err)
	}
}

// TestEvaluationsEndWithTheirCaller, in the server too.
func TestEvaluationsEndWithTheirCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{}, 2)
	e := &scripted{memory: newMemory(), answer: func(ctx context.Context, _ *peer.Select, _ string, _ func([]byte) error) error {
		if left <- struct{}{}; len(left) == min(2, runtime.GOMAXPROCS(0)) { // as many as are evaluated at a time
			cancel()
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	p := serveEvaluator(t, e)
	var ends [2]ending
	p.EvaluateAll(ctx, []*peer.Evaluation{ends[0].of("a", &peer.Select{Table: "t"}), ends[1].of("b", &peer.Select{Table: "t"})})
	for i := range ends {
		wantKind(t, "a caller that left", ends[i].err, fault.Canceled)
	}
}

// TestAnOlderServerIsAskedForOneEvaluationAtATime, and a server is asked so where they do not fit in a request.
func TestAnOlderServerIsAskedForOneEvaluationAtATime(t *testing.T) {
	e := &scripted{memory: newMemory(), answer: func(_ context.Context, _ *peer.Select, request string, give func([]byte) error) error {
		return give([]byte(request[:1]))
	}}
	// Two are asked for at once, and both are held: the bound is one that a server may have.
	srv := &Server{deps: Deps{Storage: e}, metrics: newServerMetrics(nil, nil), settings: Settings{RequestBytesMax: requestsLeast}}
	older := grpc.NewServer(grpc.ForceServerCodecV2(codec{}))
	older.RegisterService(&grpc.ServiceDesc{ServiceName: service, Streams: []grpc.StreamDesc{{StreamName: methodEvaluate, ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, ss grpc.ServerStream) error { return toStatus(srv.evaluate(ss)) }}}}, nil)
	l, done := listen(t), make(chan error, 1)
	go func() { done <- older.Serve(l) }()
	defer func() { older.Stop(); <-done }()
	large := strings.Repeat("y", evaluateMax-100)
	for what, p := range map[string]*Peer{"an old build": dial(t, l.Addr().String(), DialSettings{TLS: plain}), "large plans": serveEvaluator(t, e)} {
		var ends [2]ending
		second := "z"
		if what == "large plans" {
			second = large
		}
		p.EvaluateAll(t.Context(), []*peer.Evaluation{ends[0].of(large, &peer.Select{Table: "t"}), ends[1].of(second, &peer.Select{Table: "t"})})
		if ends[0].err != nil || ends[1].err != nil || string(ends[0].got) != "y" || string(ends[1].got) != second[:1] {
			t.Errorf("%s: %q, %v, %q, %v", what, ends[0].got, ends[0].err, ends[1].got, ends[1].err)
		}
	}
}

// TestAStorageThatCannotEvaluateSaysSoOfEach: the gateway reads the rows.
func TestAStorageThatCannotEvaluateSaysSoOfEach(t *testing.T) {
	p := serveEvaluator(t, newMemory())
	in := [2]columns.Receiver{{Of: &columns.Request{}}, {Of: &columns.Request{}}}
	var ends [2]ending
	var all []*peer.Evaluation
	for i := range in {
		e := ends[i].of("x", &peer.Select{Table: "t"})
		e.Give = in[i].Add
		all = append(all, e)
	}
	p.EvaluateAll(t.Context(), all)
	for i := range in {
		if _, err := in[i].Part(); ends[i].err != nil || !errors.Is(err, columns.ErrUnknown) {
			t.Errorf("evaluation %d: %v, %v", i, ends[i].err, err)
		}
	}
}

// evaluationsExamples are a request and a message of its answer.
func evaluationsExamples(t testing.TB) map[string][]byte {
	request, fits := appendEvaluations(nil, []*peer.Evaluation{
		{Request: []byte("plan"), Select: &peer.Select{Table: "t", Lo: -5, Hi: 9, MapSeq: 4, MapNext: 5, Copies: peer.SureCopies, Matchers: []peer.Matcher{{Name: "a", Value: "b"}}}},
		{Request: []byte{1, 2}, Select: &peer.Select{Table: "t", Partitions: nil, SeriesMax: 6, SamplesMax: 7}},
	})
	if !fits {
		t.Fatal("the request does not fit")
	}
	var answer bytesSent
	w := answerWriter{to: &answer, sent: func(int) {}}
	for _, err := range []error{w.add(0, answerMessage, []byte("head")), w.add(1, answerMessage, []byte{7}), w.add(0, answerMessage, nil), w.end(0, nil),
		w.end(1, fault.Errorf(fault.Stale, "look again")), w.flush()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return map[string][]byte{"evaluations": request, "answers": bytes.Join(answer, nil)}
}

// bytesSent keeps messages that are sent.
type bytesSent [][]byte

func (s *bytesSent) SendMsg(m any) error {
	b := m.(*message).whole()
	defer b.Free()
	*s = append(*s, bytes.Clone(b.ReadOnlyData()))
	return nil
}

// TestEvaluationsAsTheyWereWritten: builds understand each other's requests.
func TestEvaluationsAsTheyWereWritten(t *testing.T) {
	for name, b := range evaluationsExamples(t) {
		golden(t, name, hex.Dump(b))
	}
}

// answerRecord is a record of an answer.
type answerRecord struct {
	of, kind int
	data     string
}

func answerRecords(b []byte) (all []answerRecord, err error) {
	err = decodeAnswers(b, func(of, kind int, data []byte) error {
		all = append(all, answerRecord{of, kind, string(data)})
		return nil
	})
	return all, err
}

// TestEvaluationsAreReadAsTheyWereSent, and a message that is cut off or changed is refused, or is another well-formed one.
func TestEvaluationsAreReadAsTheyWereSent(t *testing.T) {
	examples := evaluationsExamples(t)
	all, err := decodeEvaluations(examples["evaluations"], unmarshal)
	if err != nil || len(all) != 2 || string(all[0].Request) != "plan" || all[0].Select.Copies != peer.SureCopies || all[1].Select.SamplesMax != 7 {
		t.Fatalf("%d evaluations, %v", len(all), err)
	}
	got, err := answerRecords(examples["answers"])
	if err != nil || len(got) != 5 || got[0] != (answerRecord{0, answerMessage, "head"}) || got[3] != (answerRecord{0, answerEnd, ""}) {
		t.Fatalf("%v, %v", got, err)
	}
	for name, b := range examples {
		read := func(b []byte) error {
			if name == "answers" {
				_, err := answerRecords(b)
				return err
			}
			_, err := decodeEvaluations(b, unmarshal)
			return err
		}
		for cut := range b {
			if err := read(b[:cut]); name == "evaluations" && err == nil {
				t.Errorf("%s cut at %d is whole", name, cut)
			}
			for bit := range 8 {
				flipped := slices.Clone(b)
				flipped[cut] ^= 1 << bit
				if err := read(flipped); err != nil && !slices.Contains([]fault.Kind{fault.Corrupt, fault.Invalid}, fault.KindOf(err)) {
					t.Errorf("%s with bit %d of byte %d changed: %v", name, bit, cut, err)
				}
			}
		}
	}
	flipped := slices.Clone(examples["evaluations"])
	flipped[0] = 2
	_, err = decodeEvaluations(flipped, unmarshal)
	wantKind(t, "a later version", err, fault.Invalid)
}

// FuzzEvaluations reads any bytes as a request and as an answer. If that succeeds, the result is written and read again as the same.
func FuzzEvaluations(f *testing.F) {
	for _, b := range evaluationsExamples(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if all, err := decodeEvaluations(b, unmarshal); err == nil {
			written, fits := appendEvaluations(nil, all)
			again, err := decodeEvaluations(written, unmarshal)
			if fits && (err != nil || !reflect.DeepEqual(again, all)) {
				t.Errorf("%d evaluations became %d, %v", len(all), len(again), err)
			}
		}
		all, err := answerRecords(b)
		if err != nil {
			return
		}
		var written []byte
		for _, r := range all {
			written = appendAnswer(written, r.of, r.kind, []byte(r.data))
		}
		if again, err := answerRecords(written); err != nil || !slices.Equal(again, all) {
			t.Errorf("%d records became %d, %v", len(all), len(again), err)
		}
	})
}
