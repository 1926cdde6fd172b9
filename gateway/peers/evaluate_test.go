package peers

import (
	"context"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// many is a server that ends evaluations with these errors, in turn.
type many struct {
	Peer
	ends []error
	all  int // calls
}

func (m *many) Evaluate(context.Context, *peer.Select, []byte, func([]byte) error) error {
	panic("evaluations are asked for together")
}

func (m *many) EvaluateAll(_ context.Context, all []*peer.Evaluation) {
	m.all++
	for i, e := range all {
		e.End(m.ends[i%len(m.ends)])
	}
}

// TestOneEvaluationThatFailsStopsNoQueries: the server answers the others. If it answers none, three requests are enough to stop asking it.
func TestOneEvaluationThatFailsStopsNoQueries(t *testing.T) {
	gone := fault.Errorf(fault.Unavailable, "no answer")
	for _, at := range []struct {
		what  string
		ends  []error
		calls int // of ten
	}{
		{"all are answered", []error{nil}, 10},
		{"one of two is answered", []error{gone, nil}, 10},
		{"one of two is refused", []error{fault.Errorf(fault.Stale, "another leads"), gone}, 10},
		{"none is answered", []error{gone}, failuresMax},
		{"none is answered, and some callers left", []error{fault.Errorf(fault.Canceled, "gone"), gone}, failuresMax},
		{"all callers left", []error{fault.Errorf(fault.Canceled, "gone")}, 10},
	} {
		server := &many{ends: at.ends}
		c := &conn{id: "s1", addr: "a", peer: server, metrics: newMetrics(nil, nil)}
		for range 10 {
			ended := 0
			e := &peer.Evaluation{End: func(error) { ended++ }}
			c.EvaluateAll(t.Context(), []*peer.Evaluation{e, e})
			if ended != 2 {
				t.Fatalf("%s: %d of 2 evaluations ended", at.what, ended)
			}
		}
		if server.all != at.calls {
			t.Errorf("%s: the server was asked %d times, want %d", at.what, server.all, at.calls)
		}
	}
}
