package rpc

import (
	"context"
	"testing"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// BenchmarkEvaluation asks for one small evaluation after the other over loopback: the cost of a query on its way to a server, of both sides.
func BenchmarkEvaluation(b *testing.B) {
	answer := make([]byte, 600)
	e := &scripted{memory: newMemory(), answer: func(_ context.Context, _ *peer.Select, _ string, give func([]byte) error) error { return give(answer) }}
	srv, err := NewServer(Deps{Storage: forgetful{e}}, Settings{TLS: plain})
	if err != nil {
		b.Fatal(err)
	}
	l := listen(b)
	go func() { _ = srv.Serve(l) }()
	p, err := Dial(l.Addr().String(), DialSettings{TLS: plain})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = p.Close()
		_ = srv.Shutdown(context.Background())
	}()
	q := &peer.Select{Table: "t", Lo: 1, Hi: 2, Matchers: []peer.Matcher{{Name: "__name__", Value: "cpu_usage_user"}, {Name: "hostname", Value: "host_7"}}}
	request := make([]byte, 80)
	b.ReportAllocs()
	b.ResetTimer()
	before := cputime.Used()
	for range b.N {
		got := 0
		var ended error
		p.EvaluateAll(b.Context(), []*peer.Evaluation{{Select: q, Request: request,
			Give: func(b []byte) error { got += len(b); return nil }, End: func(err error) { ended = err }}})
		if ended != nil || got != len(answer) {
			b.Fatal(got, ended)
		}
	}
	b.ReportMetric(float64(cputime.Used()-before)/float64(b.N), "cpu-ns/op")
}

// forgetful does not note the questions.
type forgetful struct{ *scripted }

func (f forgetful) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	return f.answer(ctx, q, string(request), give)
}
