package process

import (
	"net/http"

	"github.com/spillwaydb/spillway/protocols/trace"
)

// traced serves queries in spans.
func traced(t *trace.Tracer, next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := t.Server(r.Context(), "query", r.Header.Get(trace.ParentHeader))
		span.Text("url.path", r.URL.Path)
		if e := r.URL.Query().Get("query"); len(e) <= queryTextMax {
			span.Text("spillway.query", e)
		}
		seen := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() { span.Answered(seen.status) }()
		next.ServeHTTP(seen, r.WithContext(ctx))
	})
}

// queryTextMax bounds the text of a query in a span; a longer one is left out.
const queryTextMax = 1000

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader remembers the status.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
