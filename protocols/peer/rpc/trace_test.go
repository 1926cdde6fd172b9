package rpc

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/trace"
	"github.com/spillwaydb/spillway/protocols/trace/tracetest"
)

// TestACallCarriesItsTrace to the server that it asks; one that is part of none makes no spans there.
func TestACallCarriesItsTrace(t *testing.T) {
	r := tracetest.New(t)
	tracer := func(role string) *trace.Tracer {
		out, err := trace.Open(t.Context(), trace.Settings{Endpoint: r.URL, OneIn: 1, Role: role}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	gateway, storage := tracer("gateway"), tracer("storage")
	addr, srv := serve(t, newMemory(), Settings{})
	srv.deps.Tracer = storage
	p := dial(t, addr, DialSettings{})
	if _, err := p.Stats(t.Context(), "t", 1); err != nil {
		t.Fatal(err)
	}
	ctx, query := gateway.Server(t.Context(), "query", "")
	if _, err := p.GetMetadata(ctx, "t", ""); err != nil {
		t.Fatal(err)
	}
	query.Answered(200)
	gateway.Close()
	storage.Close()
	ids := map[string]string{}
	for _, s := range r.Spans() {
		ids[s.Role+" "+s.Name] = s.Parent + ">" + s.ID
	}
	q, c, s := ids["gateway query"], ids["gateway peer GetMetadata"], ids["storage peer GetMetadata"]
	if len(ids) != 3 || len(q) < 17 || len(c) < 17 || c[:16] != q[len(q)-16:] || s[:16] != c[len(c)-16:] {
		t.Errorf("%v", ids)
	}
}
