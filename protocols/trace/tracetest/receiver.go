// Package tracetest receives traces in tests.
package tracetest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span as it arrived, with the role of the process that sent it.
type Span struct {
	Role, Name, Trace, ID, Parent string
	Attributes                    map[string]string
}

// Receiver receives spans by OTLP over HTTP.
type Receiver struct {
	URL string

	mu      sync.Mutex
	spans   []Span
	paths   map[string]bool
	arrived chan struct{} // closed when more spans arrive
}

// New starts a receiver, which ends with the test.
func New(t testing.TB) *Receiver {
	r := &Receiver{paths: map[string]bool{}, arrived: make(chan struct{})}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, rq *http.Request) {
		body, err := io.ReadAll(rq.Body)
		var all collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &all)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.take(rq.URL.Path, &all)
	}))
	t.Cleanup(srv.Close)
	r.URL = srv.URL
	return r
}

func (r *Receiver) take(path string, all *collector.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths[path] = true
	defer func() {
		close(r.arrived)
		r.arrived = make(chan struct{})
	}()
	for _, of := range all.GetResourceSpans() {
		role := ""
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "spillway.role" {
				role = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				one := Span{Role: role, Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()), Attributes: map[string]string{}}
				for _, a := range s.GetAttributes() {
					one.Attributes[a.GetKey()] = a.GetValue().GetStringValue()
				}
				r.spans = append(r.spans, one)
			}
		}
	}
}

// Spans are those that arrived.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.spans...)
}

// Path reports whether something was sent to a path.
func (r *Receiver) Path(path string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paths[path]
}

// Until waits for spans that a test looks for.
func (r *Receiver) Until(t testing.TB, what string, found func([]Span) bool) {
	t.Helper()
	late := time.After(5 * time.Minute)
	for {
		r.mu.Lock()
		more := r.arrived
		r.mu.Unlock()
		if found(r.Spans()) {
			return
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("after five minutes not yet: %s; there are %+v", what, r.Spans())
		}
	}
}
