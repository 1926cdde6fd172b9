package intake

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// plainHeaderFactor is how much longer a header may be for net/http: browsers send cookies.
const plainHeaderFactor = 8

type connKey struct{}

func (f *Front) newPlain() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(f.servePlain),
		ReadHeaderTimeout: f.settings.HeaderTimeMax,
		IdleTimeout:       f.settings.IdleTimeMax,
		MaxHeaderBytes:    plainHeaderFactor * f.settings.HeaderBytesMax,
		ConnState:         f.plainState,
		ErrorLog:          slog.NewLogLogger(f.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return f.base },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
}

// plainState sees the end of connections that are not wrapped; wrapped ones see it themselves.
func (f *Front) plainState(c net.Conn, state http.ConnState) {
	if t, bare := c.(*tls.Conn); bare && (state == http.StateClosed || state == http.StateHijacked) {
		f.forgetTLS(t)
	}
}

// servePlain gives handlers the TLS state that net/http does not find behind our wrapper.
func (f *Front) servePlain(w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil {
		r.TLS = tlsState(r.Context().Value(connKey{}))
	}
	f.ServeHTTP(w, r)
}

func tlsState(c any) *tls.ConnectionState {
	var ours *conn
	switch c := c.(type) {
	case *conn:
		ours = c
	case *handedConn:
		ours = c.conn
	default:
		return nil
	}
	if t, ok := ours.Conn.(*tls.Conn); ok {
		state := t.ConnectionState()
		return &state
	}
	return nil
}

// ServeHTTP serves intake's paths and passes everything else to the fallback. It may also be used without Serve.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	d := doorAt(path)
	if d == nil {
		f.fallback.ServeHTTP(w, r)
		return
	}
	body := &plainBody{r: r, control: http.NewResponseController(w)}
	// Not every ResponseWriter has a connection with deadlines; those that have none are not attacked through it.
	_ = body.control.SetReadDeadline(time.Now().Add(f.settings.BodyTimeMax))
	resp := f.answer(r.Context(), d, r.Method, path, r.URL.RawQuery, body)
	header := w.Header()
	for _, h := range resp.Header {
		header.Set(h.Name, h.Value)
	}
	w.WriteHeader(resp.Status)
	if len(resp.Body) > 0 {
		_, _ = w.Write(resp.Body)
	}
}

// plainBody is a net/http request as a source.
type plainBody struct {
	r       *http.Request
	control *http.ResponseController
}

func (b *plainBody) header(name string) string { return b.r.Header.Get(name) }

func (b *plainBody) body() io.Reader { return b }

func (b *plainBody) declared() int64 { return b.r.ContentLength }

// Read lifts the deadline at the body's end: waiting for the ack is not the sender's fault.
func (b *plainBody) Read(p []byte) (int, error) {
	n, err := b.r.Body.Read(p)
	if err != nil {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
