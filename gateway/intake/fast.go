package intake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/spillwaydb/spillway/gateway/access"
)

// prefetchBytes of a body are read before the handler runs; the rest is a stream that we count ourselves. fasthttp would
// otherwise allocate the declared length at once. A larger value gains nothing, and lets fasthttp time out a slow body with
// a 408, for which Telegraf drops a batch.
const prefetchBytes = 1

// writeTimeMax is how long a client may need to read patientBytes of an answer. Only answers to SHOW statements do not fit into a socket's buffer.
const writeTimeMax = 30 * time.Second

func (f *Front) newFast() *fasthttp.Server {
	return &fasthttp.Server{
		Handler:                      f.serveFast,
		ErrorHandler:                 f.fastError,
		ExpectHandler:                f.expect,
		HeaderReceived:               f.headerReceived,
		ConnState:                    fastState,
		Logger:                       fastLog{f.log},
		ReadTimeout:                  f.settings.HeaderTimeMax,
		WriteTimeout:                 writeTimeMax,
		IdleTimeout:                  f.settings.IdleTimeMax,
		ReadBufferSize:               f.settings.HeaderBytesMax,
		StreamRequestBody:            true,
		MaxRequestBodySize:           prefetchBytes,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		SecureErrorLogMessage:        true, // errors would quote headers, and credentials with them
		NoDefaultContentType:         true,
		KeepHijackedConns:            true,
		Concurrency:                  f.settings.ConnsMax,
	}
}

func (f *Front) headerReceived(*fasthttp.RequestHeader) fasthttp.RequestConfig {
	return fasthttp.RequestConfig{ReadTimeout: f.settings.BodyTimeMax}
}

func fastState(nc net.Conn, state fasthttp.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	switch state {
	case fasthttp.StateActive:
		c.idleSince.Store(0)
	case fasthttp.StateIdle:
		c.smaller()
		c.idleSince.Store(time.Now().UnixNano())
	}
}

// expect answers Expect: 100-continue. A request whose body will be refused for its length is answered at once, with the reason: the body
// need not be sent.
func (f *Front) expect(ctx *fasthttp.RequestCtx) int {
	h := &ctx.Request.Header
	path, rawQuery := splitTarget(string(h.RequestURI()))
	d := doorAt(path)
	if d == nil || int64(h.ContentLength()) <= f.settings.BodyBytesMax || ambiguous(h) != nil {
		return http.StatusContinue
	}
	if d.need != access.NeedWrite { // it might act without its body; no client sends one that large
		f.metrics.answered(d.protocol, http.StatusRequestEntityTooLarge, 0)
		return http.StatusRequestEntityTooLarge
	}
	resp := f.answer(f.base, d, string(h.Method()), path, rawQuery, &fastBody{ctx: ctx, stream: bytes.NewReader(nil)})
	f.writeFast(ctx, resp)
	closeAfterRest(ctx) // some clients do not wait for the answer
	return resp.Status
}

// serveFast is fasthttp's handler.
func (f *Front) serveFast(ctx *fasthttp.RequestCtx) {
	h := &ctx.Request.Header
	if err := ambiguous(h); err != nil {
		f.writeFast(ctx, textResponse(http.StatusBadRequest, err.Error()))
		closeAfterRest(ctx)
		return
	}
	method := string(h.Method())
	path, rawQuery := splitTarget(string(h.RequestURI()))
	d := doorAt(path)
	switch {
	case !known(method):
		f.writeFast(ctx, textResponse(http.StatusNotImplemented, "unknown method"))
		closeAfterRest(ctx)
	case d == nil:
		f.handOver(ctx)
	default:
		body := fastBody{ctx: ctx, stream: ctx.RequestBodyStream()}
		body.begin()
		resp := f.answer(f.base, d, method, path, rawQuery, &body)
		body.finish()
		f.writeFast(ctx, resp)
		if !body.whole() {
			closeAfterRest(ctx)
		}
		if f.draining.Load() {
			ctx.SetConnectionClose()
		}
	}
}

// closeAfterRest closes the connection behind the answer, since the rest of the request would be read as the next one, and reads
// that rest before.
func closeAfterRest(ctx *fasthttp.RequestCtx) {
	ctx.SetConnectionClose()
	if c, ours := ctx.Conn().(*conn); ours {
		c.linger = !c.ended
	}
}

func (f *Front) writeFast(ctx *fasthttp.RequestCtx, r Response) {
	ctx.SetStatusCode(r.Status)
	for _, h := range f.access.Headers() {
		ctx.Response.Header.Set(h.Name, h.Value)
	}
	for _, h := range r.Header {
		ctx.Response.Header.Set(h.Name, h.Value)
	}
	if r.sent == nil {
		ctx.Response.SetBodyRaw(r.Body)
		return
	}
	ctx.Response.SetBodyStream(&longBody{Reader: bytes.NewReader(r.Body), sent: r.sent}, len(r.Body))
}

// longBody is an answer whose memory is booked until fasthttp closes it, after it is sent or the connection fails.
type longBody struct {
	*bytes.Reader
	sent func()
}

func (b *longBody) Close() error {
	if b.sent != nil {
		b.sent()
		b.sent = nil
	}
	return nil
}

// fastError answers requests that fasthttp itself refuses.
func (f *Front) fastError(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	r := textResponse(http.StatusBadRequest, "malformed HTTP request")
	switch {
	case errors.As(err, &small):
		r = textResponse(http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the header is larger than %d bytes", f.settings.HeaderBytesMax))
	case errors.As(err, &timeout) && timeout.Timeout():
		r = textResponse(http.StatusRequestTimeout, "the request did not arrive in time")
	}
	f.metrics.answered(protoOther, r.Status, 0)
	f.writeFast(ctx, r)
	if r.Status != http.StatusRequestTimeout { // a sender that was late had its time
		closeAfterRest(ctx)
	}
}

// isSmallBuffer reports whether fasthttp's buffer did not hold a header or a trailer.
func isSmallBuffer(err error) bool {
	var small *fasthttp.ErrSmallBuffer
	return errors.As(err, &small) || err != nil && strings.Contains(err.Error(), "small read buffer")
}

// ambiguous refuses headers that two servers in a row may understand differently: a length together with a transfer
// encoding, an encoding other than chunked, chunks in HTTP/1.0. fasthttp itself lets one of the two win. So is a line that goes on in the next one (RFC 9112, 5.2): some
// servers read the second as a header of its own.
func ambiguous(h *fasthttp.RequestHeader) error {
	lengths, encodings := 0, 0
	for line := range bytes.Lines(h.RawHeaders()) {
		if line[0] == ' ' || line[0] == '\t' {
			return errors.New("a header goes on in a second line: write each in one")
		}
		switch name, _, _ := bytes.Cut(line, []byte{':'}); len(name) {
		case len("Content-Length"):
			if bytes.EqualFold(name, []byte("Content-Length")) {
				lengths++
			}
		case len("Transfer-Encoding"):
			if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
				encodings++
			}
		}
	}
	chunked := h.ContentLength() == -1
	if encodings > 0 && (lengths > 0 || !chunked || !h.IsHTTP11()) {
		return errors.New("ambiguous length: send Content-Length or chunks, not both")
	}
	return nil
}

// handOver gives the connection to net/http for good. Its reader sees this request again, as it came, then everything
// that fasthttp had read ahead, then the rest of the connection.
func (f *Front) handOver(ctx *fasthttp.RequestCtx) {
	c, ours := ctx.Conn().(*conn)
	if !ours || f.draining.Load() {
		f.writeFast(ctx, Response{Status: http.StatusServiceUnavailable, Header: []Field{{"Retry-After", f.retryAfter()}}})
		ctx.SetConnectionClose()
		return
	}
	again := requestBytes(&ctx.Request.Header)
	if n := min(ctx.Request.Header.ContentLength(), prefetchBytes); n > 0 {
		// Exactly the bytes that were read from the reader; chunks were not touched.
		body := make([]byte, n)
		if _, err := io.ReadFull(ctx.RequestBodyStream(), body); err != nil {
			ctx.SetConnectionClose()
			return
		}
		again = append(again, body...)
	}
	f.metrics.handedOver.Inc()
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(rest net.Conn) {
		c.moveTo(serverPlain)
		f.handed.push(&handedConn{conn: c, rest: io.MultiReader(bytes.NewReader(again), rest)})
	})
}

// requestBytes writes a request's head as it came, but for Expect: fasthttp has sent 100 Continue.
func requestBytes(h *fasthttp.RequestHeader) []byte {
	var b []byte
	b = append(append(b, h.Method()...), ' ')
	b = append(append(b, h.RequestURI()...), ' ')
	b = append(append(b, h.Protocol()...), "\r\n"...)
	raw := h.RawHeaders()
	if len(raw) == 0 {
		return append(b, "\r\n"...)
	}
	for line := range bytes.Lines(raw) {
		if name, _, _ := bytes.Cut(line, []byte{':'}); !bytes.EqualFold(name, []byte("Expect")) {
			b = append(b, line...)
		}
	}
	return b
}

// fastBody is a fasthttp request as a source, and the watcher over its body: fasthttp reports a connection that ended
// within a body as a body that ended.
type fastBody struct {
	ctx    *fasthttp.RequestCtx
	stream io.Reader
	read   int64
	end    error // the error that ended the stream
	chunks *conn // bounds the bytes of its chunks; nil: it has a length
	start  int64 // bytes that had been read of chunks
}

func (b *fastBody) begin() {
	if c, ours := b.ctx.Conn().(*conn); ours && b.declared() < 0 {
		b.chunks, b.start = c, c.read
		c.allow(b.start, 0)
	}
}

func (b *fastBody) finish() {
	if b.chunks != nil {
		b.chunks.most = 0
	}
}

func (b *fastBody) header(name string) string {
	if name == contentType {
		return append(b.headers(name), "")[0]
	}
	return string(b.ctx.Request.Header.Peek(name))
}

// contentType is the header of which fasthttp keeps the last of several, and net/http the first.
const contentType = "Content-Type"

func (b *fastBody) headers(name string) []string {
	if name == contentType {
		return rawValues(b.ctx.Request.Header.RawHeaders(), name)
	}
	values := b.ctx.Request.Header.PeekAll(name)
	if len(values) == 0 {
		return nil
	}
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

func (b *fastBody) remote() string { return b.ctx.RemoteAddr().String() }

func (b *fastBody) body() io.Reader { return b }

func (b *fastBody) declared() int64 {
	if b.stream == nil {
		return 0
	}
	return max(-1, int64(b.ctx.Request.Header.ContentLength()))
}

// whole reports whether the body was read to its true end, so that the next request follows.
func (b *fastBody) whole() bool {
	return b.end == io.EOF || b.end == nil && b.declared() == b.read
}

// Read never asks the stream again after its end: it would read into the next request.
func (b *fastBody) Read(p []byte) (int, error) {
	declared := b.declared()
	if b.end == nil && declared == b.read {
		b.end = io.EOF
	}
	if b.end != nil {
		return 0, b.end
	}
	n, err := b.stream.Read(p)
	b.read += int64(n)
	if b.chunks != nil {
		if err != nil && err != io.EOF && b.chunks.read >= b.chunks.most {
			err = errChunkOverhead // fasthttp's error keeps only its text
		}
		b.chunks.allow(b.start, b.read)
	}
	if err == io.EOF && (declared >= 0 && b.read < declared || declared < 0 && b.cutShort()) {
		err = io.ErrUnexpectedEOF
	}
	b.end = err
	return n, err
}

func (b *fastBody) cutShort() bool {
	c, ours := b.ctx.Conn().(*conn)
	return ours && c.ended
}

// fastLog receives fasthttp's messages about single connections.
type fastLog struct{ log *slog.Logger }

func (l fastLog) Printf(format string, args ...any) {
	l.log.Debug("fasthttp: " + fmt.Sprintf(format, args...))
}
