package intake

import (
	"net/http"
	"time"
)

// Patiently gives clients of h time for each patientBytes of an answer. A slow client gets a large answer whole. A client that stops reading is
// cut off, because its answer would stay in memory.
func Patiently(h http.Handler, patience time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := &patientWriter{ResponseWriter: w, control: http.NewResponseController(w), patience: patience}
		defer p.push() // net/http sends the rest of its buffers after this
		h.ServeHTTP(p, r)
	})
}

// patientBytes is how much of an answer a client must read within its time.
const patientBytes = 64 << 10

type patientWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
}

func (w *patientWriter) push() { _ = w.control.SetWriteDeadline(time.Now().Add(w.patience)) }

// Write implements http.ResponseWriter.
func (w *patientWriter) Write(p []byte) (n int, err error) {
	for {
		w.push()
		wrote, err := w.ResponseWriter.Write(p[n:min(n+patientBytes, len(p))])
		if n += wrote; err != nil || n == len(p) {
			return n, err
		}
	}
}

// Unwrap lets http.ResponseController reach the connection.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
