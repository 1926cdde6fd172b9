package rpc

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
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

// TestAnInsertCarriesItsTrace to the server that keeps it, of a stream that many requests share. A server of a version that knows none gets none.
func TestAnInsertCarriesItsTrace(t *testing.T) {
	for _, version := range []uint8{streamTraced - 1, streamTraced} {
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
		st, err := dial(t, addr, DialSettings{}).OpenStream(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		st.(*stream).limits.version = version
		if err := st.Define(t.Context(), []peer.Def{{ID: 1, Labels: point.MakeLabels("__name__", "m")}}); err != nil {
			t.Fatal(err)
		}
		row := &peer.Insert{Partition: 7, Stamp: 1 << 20, IDs: []point.SeriesID{1}, Times: []point.Nanos{5}, Values: []float64{1}}
		if err := st.Insert(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		ctx, write := gateway.Server(t.Context(), "write", "")
		if err := st.Insert(ctx, row); err != nil {
			t.Fatal(err)
		}
		write.Answered(204)
		gateway.Close()
		storage.Close()
		var from, kept []tracetest.Span
		for _, s := range r.Spans() {
			switch s.Role + " " + s.Name {
			case "gateway write":
				from = append(from, s)
			case "storage peer Insert":
				kept = append(kept, s)
			}
		}
		switch {
		case len(from) != 1:
			t.Fatalf("%+v", r.Spans())
		case version < streamTraced:
			if len(kept) != 0 {
				t.Errorf("%+v", kept)
			}
		case len(kept) != 1 || kept[0].Trace != from[0].Trace || kept[0].Parent != from[0].ID || kept[0].Attributes["spillway.table"] != "t":
			t.Errorf("%+v of %+v", kept, from)
		}
	}
}
