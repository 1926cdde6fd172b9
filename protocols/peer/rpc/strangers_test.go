package rpc

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/handshake"
)

// TestStrangersLeaveFilesForRows: a program without a certificate opens connection after connection and says nothing. Each had a file descriptor for ten seconds, until the server had none for a segment. The
// oldest ones are closed, none beyond the bound is kept, and a peer with a certificate is served meanwhile.
func TestStrangersLeaveFilesForRows(t *testing.T) {
	const more = 40
	a := newTestAuthority(t)
	addr, _ := serve(t, newMemory(), Settings{TLS: a.files(t, "127.0.0.1")})
	var conns []net.Conn
	for range StrangersMax + more {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	p := dial(t, addr, DialSettings{TLS: a.files(t, "gw")})
	st, err := p.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatalf("a peer beside them: %v", err)
	}
	defer st.Close()
	// The server closes a handshake that lasts ten seconds: earlier ones are closed for the bound.
	closed, ended := 0, make(chan bool, len(conns))
	for _, c := range conns {
		go func() {
			_ = c.SetReadDeadline(time.Now().Add(8 * time.Second))
			_, err := c.Read(make([]byte, 1))
			ended <- !errors.Is(err, os.ErrDeadlineExceeded)
		}()
	}
	for range more {
		if <-ended {
			closed++
		}
	}
	if closed != more {
		t.Errorf("%d connections are closed, %d are more than there may be", closed, more)
	}
}

// TestStrangersInTheClearAreBounded: without certificates each silent connection, and each that began HTTP/2 and no call, kept 30 KiB and more. One with a call is never closed.
func TestStrangersInTheClearAreBounded(t *testing.T) {
	addr, _ := serve(t, newMemory(), Settings{TLS: TLS{Insecure: true}})
	p := dial(t, addr, DialSettings{TLS: TLS{Insecure: true}})
	st, err := p.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	open := func() net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
			t.Fatal(err)
		}
		return c
	}
	var conns []net.Conn
	for range StrangersMax + 1 {
		conns = append(conns, open())
	}
	oneIsClosed(t, conns)
	if err := p.Ping(t.Context()); err != nil {
		t.Errorf("a peer beside them: %v", err)
	}
}

// TestFewerFilesHaveFewerStrangers: the bound is that of the settings, with certificates and in the clear.
func TestFewerFilesHaveFewerStrangers(t *testing.T) {
	for name, of := range map[string]TLS{"certificates": newTestAuthority(t).files(t, "127.0.0.1"), "in the clear": {Insecure: true}} {
		t.Run(name, func(t *testing.T) {
			addr, _ := serve(t, newMemory(), Settings{TLS: of, StrangersMax: 3})
			var conns []net.Conn
			for range 4 {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if of.Insecure { // a connection is one once HTTP/2 has begun
					_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
				}
				conns = append(conns, c)
			}
			oneIsClosed(t, conns)
		})
	}
}

// oneIsClosed waits for the server to close one of the connections, earlier than the ten seconds after which it closes a silent one. Which of them is its oldest depends on the order
// in which their goroutines run.
func oneIsClosed(t *testing.T, conns []net.Conn) {
	t.Helper()
	ended := make(chan error, len(conns))
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(8 * time.Second))
		go func() {
			_, err := io.Copy(io.Discard, c)
			ended <- err
		}()
	}
	if err := <-ended; errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("there is one more than may be, and none is closed")
	}
}

// from is a connection from an address.
type from struct {
	net.Conn
	addr   string
	closed *int
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.addr), Port: 1} }

func (f from) Close() error {
	*f.closed++
	return nil
}

// TestAFloodOfStrangersClosesItsOwnConnections: a peer at another address, which handshakes slowly as the processors are busy, was closed when 512 others had come.
func TestAFloodOfStrangersClosesItsOwnConnections(t *testing.T) {
	var s strangers
	var peer, flood, second int
	leavePeer := s.enter(from{addr: "10.0.0.9", closed: &peer})
	var leave []func()
	for range 3 * StrangersMax {
		leave = append(leave, s.enter(from{addr: "10.0.0.1", closed: &flood}), s.enter(from{addr: "10.0.0.2", closed: &second}))
	}
	if peer != 0 || s.n != StrangersMax || flood+second != 5*StrangersMax+1 || max(flood-second, second-flood) > 2 {
		t.Errorf("closed: %d of the peer, %d and %d of the flood; %d are left", peer, flood, second, s.n)
	}
	leavePeer()
	for _, f := range leave {
		f()
	}
	if s.n != 0 || len(s.hosts) != 0 {
		t.Errorf("%d connections of %d hosts are left behind", s.n, len(s.hosts))
	}
}

// TestHandshakesOfStrangersLeaveProcessorsForRows: handshakes of the peer port wait for turns on half of the processors, of which there is one here. While it
// is in use the handshake of a peer waits, and it goes on when the turn ends.
func TestHandshakesOfStrangersLeaveProcessorsForRows(t *testing.T) {
	a := newTestAuthority(t)
	m := newMemory()
	srv, err := NewServer(Deps{Storage: m, Metadata: m, Processors: 1}, Settings{TLS: a.files(t, "127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	l, served := listen(t), make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	gate := srv.creds.(*certificates).gate
	goOn := make(chan struct{})
	held := computes(gate, goOn)
	p := dial(t, l.Addr().String(), DialSettings{TLS: a.files(t, "gw"), ConnectMax: time.Minute})
	opened := make(chan error, 1)
	go func() {
		st, err := p.OpenStream(t.Context(), "t")
		if err == nil {
			err = st.Close()
		}
		opened <- err
	}()
	for gate.Waiting() == 0 {
		select {
		case err := <-opened:
			t.Fatalf("the peer had no turn, and its stream: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	close(goOn)
	if err := <-opened; err != nil {
		t.Errorf("the peer: %v", err)
	}
	<-held
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestAStrangerThatIsClosedWaitsForNoTurn: its handshake stood in the queue until its turn came, or for five seconds.
func TestAStrangerThatIsClosedWaitsForNoTurn(t *testing.T) {
	a := newTestAuthority(t)
	creds, err := newCredentials(a.files(t, "127.0.0.1"), "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := creds.(*certificates)
	c.gate = handshake.New(handshake.Deps{Processors: 1})
	goOn := make(chan struct{})
	held := computes(c.gate, goOn)
	client, server := net.Pipe()
	defer client.Close()
	go func() { _ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.ServerHandshake(server)
		ended <- err
	}()
	for c.gate.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	for range StrangersMax {
		_, silent := net.Pipe()
		defer c.strangers.enter(c.gate.Conn(silent, "peer"))()
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the handshake of the oldest stranger: %v", err)
	}
	close(goOn)
	<-held
}

// computes begins a handshake that keeps its turn until goOn is closed, and returns when it has it.
func computes(gate *handshake.Gate, goOn <-chan struct{}) (ended <-chan struct{}) {
	client, server := net.Pipe()
	turn, done := make(chan struct{}), make(chan struct{})
	conn := gate.Conn(server, "held")
	go func() {
		defer close(done)
		_ = tls.Server(conn, handshake.Gated(&tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			close(turn)
			<-goOn
			return nil, errors.New("it has computed enough")
		}})).Handshake()
		conn.End()
		_ = conn.Close()
	}()
	go func() {
		_ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake()
		_ = client.Close()
	}()
	<-turn
	return done
}
