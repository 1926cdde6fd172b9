package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
	"github.com/spillwaydb/spillway/protocols/trace"
)

// Peer is a server at an address, called over one connection at a time. While it is away, calls are Unavailable at
// once, and the connection is tried again in the background. All methods may be called from many goroutines.
type Peer struct {
	// Constant.
	addr     string
	settings DialSettings
	creds    credentials.TransportCredentials
	began    time.Time
	stop     context.CancelFunc
	running  sync.WaitGroup

	// Of all lines, since began. If asked is later than received the peer owes a sign of life.
	asked    atomic.Int64 // when the first ping was sent after which nothing came
	received atomic.Int64 // when bytes were last received

	mu struct {
		sync.RWMutex
		line   *line
		closed bool
	}
}

var (
	_ peer.Storage  = (*Peer)(nil)
	_ peer.Metadata = (*Peer)(nil)
)

// line is a connection for as long as the peer gives signs of life. gRPC notices a closed connection, but needs at least 20 s
// to notice one with a frozen or unreachable peer, so watch does that.
type line struct {
	conn *grpc.ClientConn
	ctx  context.Context // ends with the line; its cause is why
	cut  context.CancelCauseFunc

	active    atomic.Int64 // calls, selects and streams under way
	received  atomic.Int64 // when bytes were last received, since Peer.began
	connected atomic.Int64 // when the connection was last made, which the kernel of a frozen process does, too
	pinging   atomic.Bool
	kept      keptStreams // of evaluations
	keptReads keptStreams

	pinged time.Duration // owned by watch: when the peer was asked for a sign of life and had given none since
}

// Dial makes a Peer of a server's address, host:port. It does not wait for the connection. Errors are Invalid: settings,
// or certificates that cannot be read.
func Dial(addr string, s DialSettings) (*Peer, error) {
	s.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "address of a peer")
	}
	creds, err := newCredentials(s.TLS, s.Server, s.Log)
	if err != nil {
		return nil, err
	}
	p := &Peer{addr: addr, settings: s, creds: creds, began: time.Now()}
	if p.mu.line, err = p.newLine(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.running.Go(func() { p.watch(ctx) })
	return p, nil
}

// Close ends all calls and streams as Unavailable and returns when no goroutine is left.
func (p *Peer) Close() error {
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return nil
	}
	p.mu.closed = true
	l := p.mu.line
	p.mu.Unlock()
	p.stop()
	l.cut(fault.Errorf(fault.Unavailable, "the connection to %s is closed", p.addr))
	err := l.conn.Close()
	p.running.Wait()
	return fault.Wrap(err, fault.Internal, "close the connection to %s", p.addr)
}

func (p *Peer) newLine() (*line, error) {
	l := &line{kept: keptStreams{method: methodEvaluationsKept}, keptReads: keptStreams{method: methodReadsKept}}
	dialer := net.Dialer{}
	authority := p.addr // the name that the certificate must be for, with a port or without
	if p.settings.TLS.ServerName != "" {
		authority = p.settings.TLS.ServerName
	}
	conn, err := grpc.NewClient("passthrough:///"+p.addr,
		grpc.WithAuthority(authority),
		grpc.WithTransportCredentials(p.creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			l.connected.Store(int64(p.now()))
			l.kept.unknown.Store(false) // the process at the other end may be a newer build
			l.keptReads.unknown.Store(false)
			return &timedConn{c, p, l}, nil
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: p.settings.ConnectMax,
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: p.settings.ConnectMax},
		}),
		grpc.WithInitialWindowSize(clientStreamWindow),
		grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableRetry(), // only the caller can decide which calls to repeat
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "peer %s", p.addr)
	}
	l.conn = conn
	l.ctx, l.cut = context.WithCancelCause(context.Background())
	conn.Connect()
	return l, nil
}

// timedConn is a connection that records when bytes arrive.
type timedConn struct {
	net.Conn
	p *Peer
	l *line
}

// Read implements net.Conn.
func (c *timedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		now := int64(c.p.now())
		c.l.received.Store(now)
		c.p.received.Store(now)
	}
	return n, err
}

func (p *Peer) now() time.Duration { return time.Since(p.began) }

// enter counts a call on the line; leave ends it.
func (p *Peer) enter() (*line, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	l := p.mu.line
	if p.mu.closed {
		return nil, fault.Errorf(fault.Unavailable, "the connection to %s is closed", p.addr)
	}
	if l.active.Add(1) > int64(p.settings.CallsMax) {
		l.active.Add(-1)
		return nil, fault.Errorf(fault.Throttled, "%d calls to %s are under way, the most there may be", p.settings.CallsMax, p.addr)
	}
	return l, nil
}

func (l *line) leave() { l.active.Add(-1) }

// watch pings the peer when calls wait and nothing arrived for a quarter of SilenceMax, and replaces the connection when nothing arrives in the other three quarters. Any byte
// that arrives counts, not only the answer to the ping. A peer that owes a sign of life is asked for it also when no call waits, so that it does not stay silent here when it is back.
//
//	last byte ──── SilenceMax/4 ──▶ ping ─▶ Silence counts ──── 3/4 SilenceMax ──▶ replace: all calls end as Unavailable
func (p *Peer) watch(ctx context.Context) {
	t := time.NewTicker(p.settings.SilenceMax / 8)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		closeRevoked(p.creds)
		p.mu.RLock()
		l := p.mu.line
		p.mu.RUnlock()
		owes, state := p.Silence() > 0, l.conn.GetState()
		if owes && state == connectivity.Idle { // it was closed; gRPC makes it anew for the next call, and none may come as long as the peer is called silent
			l.conn.Connect()
		}
		if l.active.Load() == 0 && !owes || state != connectivity.Ready {
			continue
		}
		now, received := p.now(), time.Duration(max(l.received.Load(), l.connected.Load()))
		switch {
		case l.pinged > received && now-l.pinged > p.settings.SilenceMax*3/4:
			p.replace(l, now-received)
		case l.pinged <= received && now-received > p.settings.SilenceMax/4 && l.pinging.CompareAndSwap(false, true):
			l.pinged = now
			if p.Silence() == 0 {
				p.asked.Store(int64(now))
			}
			p.running.Go(func() {
				defer l.pinging.Store(false)
				p.ping(l)
			})
		}
	}
}

// Ping asks the peer for a sign of life. It is answered beside all other calls.
func (p *Peer) Ping(ctx context.Context) error {
	return p.call(ctx, methodPing, &nothing{}, &nothing{})
}

// Self asks the peer which server it is, by Ping. The zero Self: it is of an older build, or does not say.
func (p *Peer) Self(ctx context.Context) (peer.Self, error) {
	var a peerpb.Self
	if err := p.call(ctx, methodPing, &nothing{}, &a); err != nil {
		return peer.Self{}, err
	}
	return peer.Self{Server: a.GetServer(), Store: a.GetStore(), Process: a.GetProcess()}, nil
}

// LastReceived returns when bytes were last received from the peer; a connection alone is no sign of life.
func (p *Peer) LastReceived() time.Time {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.began.Add(time.Duration(p.mu.line.received.Load()))
}

// Silence is how long the peer has owed a sign of life: the time since it was first asked for one, on this connection or an earlier one, and has sent nothing.
// 0: it owes none. A healthy peer answers within milliseconds, however busy.
func (p *Peer) Silence() time.Duration {
	if asked := p.asked.Load(); asked > p.received.Load() {
		return max(1, p.now()-time.Duration(asked))
	}
	return 0
}

// ping makes the peer send something; hearing notes the answer like all bytes.
func (p *Peer) ping(l *line) {
	ctx, cancel := context.WithTimeout(l.ctx, p.settings.SilenceMax)
	defer cancel()
	_, _ = p.exchange(ctx, l, methodPing, &nothing{}, 1<<10, func(int) error { return nil }, &nothing{})
}

// replace closes the line: its calls end, the next ones begin on a new connection.
func (p *Peer) replace(l *line, silence time.Duration) {
	next, err := p.newLine()
	if err != nil {
		fault.Bug("a connection that was made once cannot be made again: %v", err)
	}
	p.mu.Lock()
	if p.mu.closed {
		l, next = next, l
	} else {
		p.mu.line = next
	}
	p.mu.Unlock()
	calls := l.active.Load() // before they end
	l.cut(fault.Wrap(peer.ErrSilent, fault.Unavailable, "peer %s sent nothing for %v", p.addr, silence.Round(time.Millisecond)))
	_ = l.conn.Close()
	if calls == 0 { // it was asked for a sign of life alone
		return
	}
	p.settings.Metrics.silent.Inc()
	p.settings.Log.Info("peer connection given up", "peer", p.addr, "silence", silence.Round(time.Millisecond))
}

// fault is the error of a call as the caller sees it.
func (p *Peer) fault(ctx context.Context, l *line, method string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended(ctx, method+" at "+p.addr)
	case l.ctx.Err() != nil:
		return fault.Annotate(context.Cause(l.ctx), "%s", method)
	}
	return fault.Annotate(ofStatus(err), "%s", p.addr)
}

// call asks and waits for the answer.
func (p *Peer) call(ctx context.Context, method string, q proto.Message, a proto.Message) (err error) {
	return p.callBooked(ctx, method, q, a, func(int) error { return nil })
}

// lookUp is call for an answer whose length depends on a user's request. The loan of ctx books it before it is kept, both as it came and decoded. Errors are
// also those of the loan.
func (p *Peer) lookUp(ctx context.Context, method string, q proto.Message, a proto.Message) error {
	loan, came := budget.LoanOf(ctx), int64(0)
	err := p.callBooked(ctx, method, q, a, func(n int) error {
		if err := loan.TakeSoon(2 * int64(n)); err != nil {
			return fault.Annotate(err, "the answer is long; ask for fewer")
		}
		came += int64(n)
		return nil
	})
	if loan.Give(came); err != nil {
		loan.Give(came) // it is not decoded
	}
	return err
}

// callBooked is call that calls take for the memory of each part of the answer before it is kept.
func (p *Peer) callBooked(ctx context.Context, method string, q proto.Message, a proto.Message, take func(int) error) (err error) {
	defer func() { p.settings.Metrics.calls.WithLabelValues(method, kindLabel(err)).Inc() }()
	l, err := p.enter()
	if err != nil {
		return err
	}
	defer l.leave()
	if err = p.exchangeKept(ctx, l, method, q, take, a); errors.Is(err, errNotKept) {
		_, err = p.exchange(ctx, l, method, q, answerBytesMax, take, a)
	}
	return p.fault(ctx, l, method, err)
}

// exchange sends a request and receives the answer; errors are gRPC's or ours, as they come.
func (p *Peer) exchange(ctx context.Context, l *line, method string, q proto.Message, most int, take func(int) error, a proto.Message) (got int, err error) {
	cs, cancel, err := p.open(ctx, l, method)
	if err != nil {
		return 0, err
	}
	defer cancel(nil)
	sent, err := sendChunks(cs, q)
	p.settings.Metrics.sent.WithLabelValues(method).Add(float64(sent))
	if err == nil {
		err = cs.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) { // at EOF the receiver has the reason
		return 0, err
	}
	got, err = receiveChunks(cs, most, take, a)
	p.settings.Metrics.received.WithLabelValues(method).Add(float64(got))
	return got, err
}

// answerMessageMax bounds a message of an answer: gRPC keeps it, uncounted, until it is whole. Answers of calls and snapshots come in chunks; rows, results and changes of rows
// have messages of their own, inserts acks of up to acksUnreadMax and more, links frames. Of kept reads they are chunks and batches of labels, which have less than three
// times batchBytesMax.
func answerMessageMax(method string) int {
	switch method {
	case methodInserts, methodSelect, methodEvaluate, methodEvaluations, methodEvaluationsKept, methodWatchRows, methodLink:
		return messageBytesMax
	}
	return requestMessageMax
}

// open begins a gRPC stream that ends with ctx, with the line, or with cancel, which must be called.
func (p *Peer) open(ctx context.Context, l *line, method string) (grpc.ClientStream, context.CancelCauseFunc, error) {
	return p.openAs(ctx, l, both(method))
}

// openAs is open for a stream of another form.
func (p *Peer) openAs(ctx context.Context, l *line, desc grpc.StreamDesc) (grpc.ClientStream, context.CancelCauseFunc, error) {
	ctx, span := trace.Client(ctx, "peer "+desc.StreamName)
	span.Text("server.address", p.addr)
	if h := trace.Header(ctx); h != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, trace.ParentHeader, h)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	cs, err := l.conn.NewStream(ctx, &desc, fullMethod(desc.StreamName), grpc.MaxCallRecvMsgSize(answerMessageMax(desc.StreamName)))
	end := func(cause error) {
		stop()
		cancel(cause)
		span.End(cause)
	}
	if err != nil {
		end(nil)
		return nil, nil, err
	}
	return cs, end, nil
}
