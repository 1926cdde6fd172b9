package trace_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/trace"
	"github.com/spillwaydb/spillway/protocols/trace/tracetest"
)

func open(t *testing.T, s trace.Settings) (*trace.Tracer, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewRegistry()
	tracer, err := trace.Open(t.Context(), s, slog.New(slog.DiscardHandler), r)
	if err != nil {
		t.Fatal(err)
	}
	return tracer, r
}

// TestATraceGoesThroughTwoProcesses, and keeps the sender's.
func TestATraceGoesThroughTwoProcesses(t *testing.T) {
	r := tracetest.New(t)
	gateway, _ := open(t, trace.Settings{Endpoint: r.URL, OneIn: 1, Role: "gateway"})
	storage, _ := open(t, trace.Settings{Endpoint: r.URL, OneIn: 1000, Role: "storage"})
	const sender = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx, query := gateway.Server(t.Context(), "query", sender)
	ctx, call := trace.Client(ctx, "peer Select")
	_, served := storage.Remote(context.Background(), "peer Select", trace.Header(ctx))
	served.End(fault.Errorf(fault.Unavailable, "the disk is gone"))
	call.Count("rows", 3)
	call.End(errors.New("no"))
	query.Answered(503)
	gateway.Close()
	storage.Close()
	all := r.Spans()
	if len(all) != 3 || !r.Path("/v1/traces") {
		t.Fatalf("%+v", all)
	}
	by := map[string]tracetest.Span{}
	for _, s := range all {
		by[s.Role+" "+s.Name] = s
		if s.Trace != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%+v is of another trace", s)
		}
	}
	if q, c, s := by["gateway query"], by["gateway peer Select"], by["storage peer Select"]; q.Parent != "b7ad6b7169203331" || c.Parent != q.ID || s.Parent != c.ID || s.Attributes["error.type"] != "unavailable" {
		t.Errorf("%+v", by)
	}
}

// TestOnlyChosenRequestsAreTraced: a sender that decided against is followed, and a call without a trace begins none.
func TestOnlyChosenRequestsAreTraced(t *testing.T) {
	r := tracetest.New(t)
	tracer, _ := open(t, trace.Settings{Endpoint: r.URL + "/elsewhere", OneIn: 50, Role: "gateway"})
	const requests = 5000
	for range requests {
		ctx, s := tracer.Server(t.Context(), "query", "")
		_, c := trace.Client(ctx, "peer Select")
		c.End(nil)
		s.Answered(200)
	}
	_, s := tracer.Server(t.Context(), "refused", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	s.Answered(200)
	_, s = tracer.Remote(t.Context(), "alone", "")
	s.End(nil)
	_, s = trace.Client(t.Context(), "alone")
	s.End(nil)
	tracer.Close()
	all := r.Spans()
	// 100 traces of two spans are expected, with a deviation of 10.
	if len(all) < 40 || len(all) > 400 || len(all)%2 != 0 || !r.Path("/elsewhere") {
		t.Errorf("%d spans of %d requests", len(all), requests)
	}
	for _, s := range all {
		if s.Name == "refused" || s.Name == "alone" {
			t.Errorf("%+v", s)
		}
	}
}

// TestTracesThatAreOffCostNothing: every request asks.
func TestTracesThatAreOffCostNothing(t *testing.T) {
	tracer, _ := open(t, trace.Settings{OneIn: 1})
	if tracer != nil {
		t.Fatal("there is a tracer without an endpoint")
	}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		with, s := tracer.Server(ctx, "query", "")
		with, c := trace.Client(with, "peer Select")
		if trace.Header(with) != "" {
			t.Error("a trace that nobody began")
		}
		c.Text("a", "b")
		c.End(nil)
		s.Answered(200)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	tracer.Close()
}

// TestAReceiverThatIsAwayHoldsNothingUp: spans that it misses are counted.
func TestAReceiverThatIsAwayHoldsNothingUp(t *testing.T) {
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer away.Close()
	tracer, r := open(t, trace.Settings{Endpoint: away.URL, OneIn: 1})
	for range 10 {
		_, s := tracer.Server(t.Context(), "query", "")
		s.Answered(200)
	}
	tracer.Close()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range all {
		counts[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
	}
	if counts["spillway_trace_failed_spans_total"] != 10 || counts["spillway_trace_sent_spans_total"] != 0 {
		t.Errorf("%v", counts)
	}
}

func TestAnEndpointThatIsNoneIsRefused(t *testing.T) {
	for _, bad := range []string{"localhost:4318", "grpc://h:4317", "http://", ":"} {
		err := trace.Settings{Endpoint: bad}.Validate()
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "traces.endpoint") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
