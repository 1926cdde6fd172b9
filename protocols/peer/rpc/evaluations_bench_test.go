package rpc

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// BenchmarkEvaluation asks for small evaluations, of one query at a time, over loopback: the cost of a query on its way to a server, of both sides. The server is one of
// two processors. With -cpu 6 the scheduler has as many places as in a process on two processors.
func BenchmarkEvaluation(b *testing.B) {
	for _, n := range []int{1, 10} {
		b.Run(fmt.Sprintf("chains=%d", n), func(b *testing.B) { benchEvaluations(b, n) })
	}
}

func benchEvaluations(b *testing.B, n int) {
	answer := make([]byte, 600)
	e := &scripted{memory: newMemory(), answer: func(_ context.Context, _ *peer.Select, _ string, give func([]byte) error) error { return give(answer) }}
	srv, err := NewServer(Deps{Storage: forgetful{e}, Processors: 2}, Settings{TLS: plain})
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
		got, all := 0, make([]*peer.Evaluation, n)
		var failed error
		for i := range all {
			all[i] = &peer.Evaluation{Select: q, Request: request, Give: func(b []byte) error { got += len(b); return nil }, End: func(err error) { failed = cmp.Or(failed, err) }}
		}
		p.EvaluateAll(b.Context(), all)
		if failed != nil || got != n*len(answer) {
			b.Fatal(got, failed)
		}
	}
	b.ReportMetric(float64(cputime.Used()-before)/float64(b.N), "cpu-ns/op")
}

// forgetful does not note the questions.
type forgetful struct{ *scripted }

func (f forgetful) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) error {
	return f.answer(ctx, q, string(request), give)
}
