package intake

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/handshake"
	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/trace"
)

// Deps are a Front's dependencies.
type Deps struct {
	Writer     Writer
	Limits     *limits.Registry      // nil: tables have none
	Recent     *recent.Refusals      // where refusals are shown; nil: nowhere
	Senders    *recent.Senders       // where senders are shown; nil: nowhere
	Fallback   http.Handler          // every path that is not of intake; nil: 404. It asks Access itself.
	Access     *access.Guard         // nil: every request may do everything
	Log        *slog.Logger          // nil: silence
	Registerer prometheus.Registerer // nil: no metrics are registered
	Tables     Tables                // changes tables; nil: this process cannot
	Replicas   Replicas              // removes the rows of replicas that are not elected; nil: there are none
	Processors int                   // there are; 0: as many as Go's scheduler uses
	Tracer     *trace.Tracer         // nil: requests have no spans
	Clock      *clock.Clock          // by which rows are judged, and stamped where they have no time; nil: the machine's
}

// Front is one HTTP port for everything. Make it with New, pass it listeners with Serve, end it with Shutdown.
//
// Each connection has one goroutine at a time: it reads the first line, and goes on as fasthttp's or passes the connection to net/http's
// server. Between two requests a connection of fasthttp may be parked (gather.go), and goes on in a new goroutine. Shutdown stops the listeners, lets requests under way finish, and closes idle connections.
type Front struct {
	// Constant after New.
	settings Settings
	writer   Writer
	tables   Tables
	replicas Replicas // nil: none
	tracer   *trace.Tracer
	clock    *clock.Clock
	limits   *limits.Registry
	fallback http.Handler
	access   *access.Guard
	everyone *access.Identity
	recent   *recent.Refusals
	senders  *recent.Senders
	log      *slog.Logger
	metrics  *metrics
	unpacker *unpacker
	decoders decoders
	otel     *otlp.Translator
	fast     *fasthttp.Server
	plain    *http.Server
	handed   *listener // connections for plain
	started  time.Time
	idPrefix string

	// A request that is cut short by it may have rows that are kept and not acked; its sender tries again.
	base   context.Context // of every request; ends when Shutdown loses patience
	cancel context.CancelFunc

	buffers  buffers
	drains   sync.Pool // *[drainBytes]byte
	deltas   otlp.Deltas
	inFlight budget
	brakes   brakes
	turns    turns
	requests atomic.Uint64 // numbers Request-Id
	draining atomic.Bool

	idle        atomic.Int64 // connections that wait for their next request with fasthttp
	largeBodies atomic.Int64 // requests that servers read although less than gatherBytesMax has come

	goroutines sync.WaitGroup

	mu struct {
		sync.Mutex
		listeners map[net.Listener]struct{}
		// mu guards the maps, for the time of a look-up. Goroutines are counted in under it together with the look at
		// draining (remember, begin), so none begins once Shutdown waits.
		conns   map[net.Conn]struct{} // of all servers; *conn, or *tls.Conn for HTTP/2
		serving bool                  // plain runs
	}
}

// New makes a Front. The error is Invalid: impossible settings.
func New(d Deps, s Settings) (*Front, error) {
	if err := s.Validate(); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "intake settings")
	}
	s.SetDefaults()
	f := &Front{settings: s, writer: d.Writer, tables: d.Tables, replicas: d.Replicas, limits: d.Limits, fallback: d.Fallback, access: d.Access, tracer: d.Tracer, clock: d.Clock, everyone: access.Everyone(), recent: d.Recent, senders: d.Senders, log: d.Log, started: time.Now()}
	if f.fallback == nil {
		f.fallback = http.NotFoundHandler()
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	if d.Registerer == nil {
		d.Registerer = prometheus.NewRegistry()
	}
	var err error
	if f.unpacker, err = newUnpacker(&f.buffers, s.DecodedBytesMax); err != nil {
		return nil, err
	}
	if f.otel, err = otlp.NewTranslator(s.OTLP); err != nil {
		return nil, err
	}
	f.deltas.Max = s.SeriesMax
	f.inFlight.max = s.InFlightBytesMax
	f.turns.most = cmp.Or(d.Processors, runtime.GOMAXPROCS(0))
	f.metrics = newMetrics(d.Registerer, &f.inFlight, &f.brakes, &f.deltas)
	f.base, f.cancel = context.WithCancel(context.Background())
	f.idPrefix = strconv.FormatInt(f.started.UnixNano(), 36) + "-"
	f.fast = f.newFast()
	f.plain = f.newPlain()
	f.handed = newListener(&net.TCPAddr{})
	f.mu.listeners = map[net.Listener]struct{}{}
	f.mu.conns = map[net.Conn]struct{}{}
	return f, nil
}

// InFlightBytes is the size of the bodies and batches of requests under way.
func (f *Front) InFlightBytes() int64 { return f.inFlight.used.Load() }

// Writing reports whether rows are being decoded, routed or applied, or wait for that: bodies that are still on their way, and writes that wait for a
// disk, use no processor.
func (f *Front) Writing() bool { return f.turns.taken() }

// DeltaBytes is the memory of the sums of delta samples.
func (f *Front) DeltaBytes() int64 { return f.deltas.Bytes() }

// OnDeltaGrowth registers g, a quick function: it is called with DeltaBytes, from any goroutine, before they grow.
func (f *Front) OnDeltaGrowth(g func(to int64)) { f.deltas.OnGrowth(g) }

// OnInFlightGrowth registers g, a quick function: it is called with InFlightBytes, from any goroutine, before requests hold more.
func (f *Front) OnInFlightGrowth(g func(to int64)) { f.inFlight.grows.Store(&g) }

// acceptedAtOnce is how many connections are accepted before other goroutines run. While the backlog has more, Accept does not block, and a loop
// of it would fill the scheduler's queues with thousands of new goroutines before a request that arrived meanwhile has its turn.
const acceptedAtOnce = 8

// Serve accepts connections from ln until Shutdown, and then returns nil. ln may speak TLS, as tls.NewListener's does:
// the handshake happens on the connection's own goroutine, within PeekTimeMax, in turns if they lie on a handshake.Gate. Several listeners may be served at once.
func (f *Front) Serve(ln net.Listener) error {
	if !f.begin(ln) {
		_ = ln.Close()
		return nil
	}
	defer f.end(ln)
	pause, accepted := time.Duration(0), 0
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
			f.accepted(c)
			if accepted++; accepted%acceptedAtOnce == 0 {
				runtime.Gosched()
			}
		case f.draining.Load():
			return nil
		case errors.Is(err, net.ErrClosed):
			return fault.Wrap(err, fault.Unavailable, "listener %s", ln.Addr())
		default:
			// Out of descriptors, most likely: open connections may close.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			f.log.Warn("cannot accept connections", "address", ln.Addr().String(), "error", err, "again_after", pause)
			time.Sleep(pause)
		}
	}
}

func (f *Front) begin(ln net.Listener) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining.Load() {
		return false
	}
	f.mu.listeners[ln] = struct{}{}
	if !f.mu.serving {
		f.mu.serving = true
		f.handed.addr = ln.Addr()
		f.goroutines.Add(1)
		go func() {
			defer f.goroutines.Done()
			if err := f.plain.Serve(f.handed); !errors.Is(err, http.ErrServerClosed) {
				f.log.Error("net/http server ended", "error", err)
			}
		}()
	}
	return true
}

func (f *Front) end(ln net.Listener) {
	f.mu.Lock()
	delete(f.mu.listeners, ln)
	f.mu.Unlock()
	_ = ln.Close()
}

// accepted starts a connection's life, if there is room.
//
//	accept ─▶ remember ─▶ meet, its goroutine ─┬─ HTTP/2 by TLS ─▶ net/http
//	                                           ├─ first line has a path of intake ─▶ fasthttp, in the same goroutine ─▶ parked ─▶ a new one
//	                                           ├─ any other request ─▶ net/http
//	                                           └─ no HTTP, or nothing within PeekTimeMax ─▶ closed
func (f *Front) accepted(raw net.Conn) {
	c := &conn{Conn: raw, front: f}
	if !f.remember(c) {
		f.metrics.connsRefused.Inc()
		_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
		if _, secret := raw.(*tls.Conn); secret {
			_ = raw.Close() // an answer would cost a handshake
			return
		}
		refuseRaw(raw, f.retryAfter())
		return
	}
	f.metrics.conns.WithLabelValues(serverNames[serverPeek]).Inc()
	go func() {
		defer f.goroutines.Done()
		f.meet(c)
	}()
}

// meet chooses the server of a connection, and is that server's goroutine if it is fasthttp.
func (f *Front) meet(c *conn) {
	_ = c.SetReadDeadline(time.Now().Add(f.settings.PeekTimeMax))
	if t, ok := c.Conn.(*tls.Conn); ok {
		ctx, cancel := context.WithTimeout(f.base, f.settings.PeekTimeMax)
		err := t.HandshakeContext(ctx)
		cancel()
		handshake.End(t)
		if err != nil {
			f.metrics.handshakesFailed.Inc()
			answerPlain(err)
			f.log.Debug("TLS handshake failed", "remote", c.RemoteAddr().String(), "error", err)
			_ = c.Close()
			return
		}
		if t.ConnectionState().NegotiatedProtocol == "h2" {
			f.giveTLS(c, t)
			return
		}
	}
	f.receive(c)
}

// receive reads the beginning of a request, and has it served.
func (f *Front) receive(c *conn) {
	fast, err := c.peek()
	if err == nil && fast {
		c.moveTo(serverFast)
		c.gather(f.settings.HeaderTimeMax, f.settings.BodyTimeMax)
		fast = !endsWithLF(c.head)
	}
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	switch {
	case err == errNotHTTP:
		c.linger = true
		refuseNotHTTP(c)
	case err != nil:
		c.smaller()
		_ = c.Close()
	case fast:
		f.serveFastConn(c)
	default:
		c.smaller()
		c.moveTo(serverPlain)
		f.handed.push(c)
	}
}

// serveFastConn has fasthttp serve a connection until it ends or is parked. A new goroutine, with a small stack, waits for the next request of a parked one.
func (f *Front) serveFastConn(c *conn) {
	if err := f.fast.ServeConn(c); err != nil && !errors.Is(err, io.EOF) {
		f.log.Debug("connection ended", "remote", c.RemoteAddr().String(), "error", err)
	}
	c.smaller()
	if !c.parks {
		return
	}
	c.parks = false
	f.goroutines.Add(1)
	go func() {
		defer f.goroutines.Done()
		f.resume(c)
	}()
}

// answerPlain answers a client that forgot the s of https, in plain HTTP, the only protocol it speaks.
func answerPlain(err error) {
	var e tls.RecordHeaderError
	if !errors.As(err, &e) || e.Conn == nil || !beginsHTTP(e.RecordHeader) {
		return
	}
	_ = e.Conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(e.Conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\nThis port speaks TLS: use https.\n")
}

// beginsHTTP reports whether the first bytes of a connection are those of a request that we may be sent.
func beginsHTTP(head [5]byte) bool {
	for _, method := range [...]string{"GET /", "POST ", "HEAD ", "PUT /", "PATCH", "DELET", "OPTIO"} {
		if string(head[:]) == method {
			return true
		}
	}
	return false
}

// giveTLS passes a bare TLS connection to net/http, which speaks HTTP/2 only on one. plainState sees its end.
func (f *Front) giveTLS(c *conn, t *tls.Conn) {
	_ = t.SetReadDeadline(time.Time{})
	f.mu.Lock()
	delete(f.mu.conns, c)
	f.mu.conns[t] = struct{}{}
	f.mu.Unlock()
	c.moveTo(serverPlain)
	select {
	// net/http's accept loop reads it; at the end it may read no more, and then the connection is closed here.
	case f.handed.conns <- t:
	case <-f.handed.closed:
		_ = t.Close()
		f.forgetTLS(t)
	}
}

// remember counts a connection and its goroutine in, unless there are too many or the end has come.
func (f *Front) remember(c *conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.mu.conns) >= f.settings.ConnsMax || f.draining.Load() {
		return false
	}
	f.mu.conns[c] = struct{}{}
	f.goroutines.Add(1)
	return true
}

func (f *Front) forget(c *conn) {
	f.mu.Lock()
	delete(f.mu.conns, c)
	f.mu.Unlock()
	f.metrics.conns.WithLabelValues(serverNames[c.by.Load()]).Dec()
}

func (f *Front) forgetTLS(t *tls.Conn) {
	f.mu.Lock()
	_, known := f.mu.conns[t]
	delete(f.mu.conns, t)
	f.mu.Unlock()
	if known {
		f.metrics.conns.WithLabelValues(serverNames[serverPlain]).Dec()
	}
}

// Shutdown stops listening, waits for the requests under way and closes all connections. When ctx ends first, the remaining
// requests are cut off and ctx's error is returned. A Front that was shut down serves no more.
func (f *Front) Shutdown(ctx context.Context) error {
	f.stopListening()
	err := f.drainPeeked(ctx)
	if err == nil {
		err = f.plain.Shutdown(ctx)
	}
	_ = f.handed.Close()
	f.cancel()
	if err != nil {
		_ = f.plain.Close()
		f.cutOff()
	}
	f.goroutines.Wait()
	f.unpacker.close()
	return err
}

func (f *Front) stopListening() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.draining.Store(true)
	for ln := range f.mu.listeners {
		_ = ln.Close()
	}
}

// drainPeeked waits until no connection is peeked at or served by fasthttp. Those that wait for a request are closed;
// answers sent meanwhile close theirs.
func (f *Front) drainPeeked(ctx context.Context) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		busy := 0
		for _, c := range f.ours() {
			switch {
			case c.by.Load() == int32(serverPlain):
			case c.idle(time.Now()):
				_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // its goroutine closes it
				busy++
			default:
				busy++
			}
		}
		if busy == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// idle reports whether a connection waits for a request. Between two requests that came in one piece it is idle for a
// moment only, with an answer still in its buffer.
func (c *conn) idle(now time.Time) bool {
	if c.by.Load() == int32(serverPeek) {
		return true
	}
	since := c.idleSince.Load()
	return since != 0 && now.UnixNano()-since > int64(5*time.Millisecond)
}

func (f *Front) ours() []*conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	var cs []*conn
	for c := range f.mu.conns {
		if c, ok := c.(*conn); ok {
			cs = append(cs, c)
		}
	}
	return cs
}

func (f *Front) cutOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.mu.conns {
		if ours, ok := c.(*conn); ok {
			c = ours.Conn // conn.Close would wait for the lock, and perhaps linger
		}
		_ = c.Close()
	}
}

func (f *Front) retryAfter() string { return seconds(int64(f.settings.RetryAfter / time.Second)) }

func stack() string { return string(debug.Stack()) }
