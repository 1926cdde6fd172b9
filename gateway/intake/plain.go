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
	for _, h := range f.access.Headers() {
		w.Header().Set(h.Name, h.Value)
	}
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// net/http does not report whether a Content-Length stood beside it. A proxy in front may have used that one,
		// and treated the following bytes as a body: they are not served.
		w.Header().Set("Connection", "close")
	}
	path := r.URL.EscapedPath()
	d := doorAt(path)
	if d == nil {
		f.passOn(w, r)
		return
	}
	body := &plainBody{from: r.Body, length: r.ContentLength, h: r.Header, addr: r.RemoteAddr, control: http.NewResponseController(w)}
	// Not every ResponseWriter has a connection with deadlines; those that have none are not attacked through it.
	_ = body.control.SetReadDeadline(time.Now().Add(f.settings.BodyTimeMax))
	resp := f.answer(r.Context(), d, r.Method, path, r.URL.RawQuery, body)
	header := w.Header()
	for _, h := range resp.Header {
		header.Set(h.Name, h.Value)
	}
	if resp.sent != nil {
		defer resp.sent()
	}
	patient := patientWriter{ResponseWriter: w, control: body.control, patience: writeTimeMax}
	patient.push() // net/http ends it with the request
	w.WriteHeader(resp.Status)
	if len(resp.Body) > 0 {
		_, _ = patient.Write(resp.Body)
	}
}

// passOn passes a request to the fallback. The fallback may last as long as it likes, the client may not: its body must
// arrive in time, and it must keep reading the answer.
func (f *Front) passOn(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if r.Body != nil && r.Body != http.NoBody {
		_ = control.SetReadDeadline(time.Now().Add(f.settings.BodyTimeMax))
		r.Body = &plainBody{from: r.Body, control: control}
	}
	Patiently(f.fallback, f.settings.BodyTimeMax).ServeHTTP(w, r)
}

// plainBody is a net/http request as a source, and the body of a request that is passed on.
type plainBody struct {
	from    io.ReadCloser
	length  int64
	h       http.Header
	addr    string
	control *http.ResponseController
}

func (b *plainBody) header(name string) string { return b.h.Get(name) }

func (b *plainBody) headers(name string) []string { return b.h.Values(name) }

func (b *plainBody) remote() string { return b.addr }

func (b *plainBody) body() io.Reader { return b }

func (b *plainBody) declared() int64 { return b.length }

// Read lifts the deadline at the body's end: waiting for the answer is not the sender's fault. After a failure it stays,
// since the server still tries to read the rest.
func (b *plainBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if err == io.EOF {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (b *plainBody) Close() error { return b.from.Close() }
