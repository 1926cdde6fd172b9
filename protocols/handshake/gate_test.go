package handshake

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// slowKey is a key whose signatures wait until the test lets them go on.
type slowKey struct {
	crypto.Signer
	inside, most atomic.Int64
	signing      chan struct{} // one for each signature that begins
	goOn         chan struct{} // one for each that may end; closed: all
}

func (k *slowKey) Sign(r io.Reader, digest []byte, o crypto.SignerOpts) ([]byte, error) {
	n := k.inside.Add(1)
	defer k.inside.Add(-1)
	for {
		most := k.most.Load()
		if n <= most || k.most.CompareAndSwap(most, n) {
			break
		}
	}
	k.signing <- struct{}{}
	<-k.goOn
	return k.Signer.Sign(r, digest, o)
}

// port is a server by TLS that echoes a byte of each connection.
type port struct {
	*Gate
	t       *testing.T
	key     *slowKey
	ln      net.Listener
	metrics *prometheus.Registry
	serving sync.WaitGroup

	accepted chan net.Conn
}

func newPort(t *testing.T, processors int, change func(*tls.Config)) *port {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, of, of, own.Public(), own)
	if err != nil {
		t.Fatal(err)
	}
	p := &port{t: t, key: &slowKey{Signer: own, signing: make(chan struct{}, 10_000), goOn: make(chan struct{})}, metrics: prometheus.NewRegistry(), accepted: make(chan net.Conn, 10_000)}
	p.Gate = New(Deps{Processors: processors, Registerer: p.metrics})
	p.late = time.Minute // a busy machine may stop for longer than WaitMax
	c := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: p.key}}}
	if change != nil {
		change(c)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.ln = p.Listener(tcp, "http", c)
	p.serving.Go(p.serve)
	t.Cleanup(func() {
		_ = p.ln.Close()
		p.serving.Wait()
	})
	return p
}

func (p *port) serve() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.accepted <- c
		p.serving.Go(func() {
			defer c.Close()
			err := c.(*tls.Conn).Handshake()
			End(c)
			if err != nil {
				return
			}
			_, _ = io.CopyN(c, c, 1)
		})
	}
}

// dial connects from an address, and sends nothing.
func (p *port) dial(from string) net.Conn {
	p.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", p.ln.Addr().String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask sends a byte by TLS, and gives the error of its answer.
func (p *port) ask(from string) <-chan error {
	c := tls.Client(p.dial(from), &tls.Config{InsecureSkipVerify: true})
	done := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		done <- err
	}()
	return done
}

// waits returns when so many handshakes wait.
func (p *port) waits(n int) {
	p.t.Helper()
	for began := time.Now(); p.Waiting() != n; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			p.t.Fatalf("%d handshakes wait, not %d", p.Waiting(), n)
		}
	}
}

// TestOtherSendersNeedNotWaitForAFloodOfHandshakes: one address sends thirty ClientHellos at once, and connections that say nothing or half
// of one. One handshake is computed at a time, and the client at another address is the second.
func TestOtherSendersNeedNotWaitForAFloodOfHandshakes(t *testing.T) {
	var mu sync.Mutex
	var turns []string // the addresses, in their order
	p := newPort(t, 2, func(c *tls.Config) {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			mu.Lock()
			defer mu.Unlock()
			turns = append(turns, hello.Conn.RemoteAddr().(*net.TCPAddr).IP.String())
			return nil, nil
		}
	})
	for _, said := range []string{"", "\x16\x03\x01", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"} {
		_, _ = io.WriteString(p.dial("127.0.0.1"), said)
	}
	asked := []<-chan error{p.ask("127.0.0.1")}
	<-p.key.signing
	for range 29 {
		asked = append(asked, p.ask("127.0.0.1"))
	}
	p.waits(29)
	asked = append(asked, p.ask("127.0.0.2"))
	p.waits(30)
	close(p.key.goOn)
	for _, done := range asked {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := p.key.most.Load(); n != 1 {
		t.Errorf("%d handshakes were computed at a time", n)
	}
	if at := slices.Index(turns, "127.0.0.2"); at > 2 || at < 0 {
		t.Errorf("the client at another address was number %d", at+1)
	}
}

// TestHandshakesBeyondTheQueueAreClosed: the sender of the most is refused, with an alert, and a client at another address is served.
func TestHandshakesBeyondTheQueueAreClosed(t *testing.T) {
	p := newPort(t, 1, nil)
	p.mu.Lock()
	p.queue.most = 10
	p.mu.Unlock()
	asked := []<-chan error{p.ask("127.0.0.1")}
	<-p.key.signing
	for range 10 {
		asked = append(asked, p.ask("127.0.0.1"))
	}
	p.waits(10)
	if err := <-p.ask("127.0.0.1"); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("the twelfth handshake: %v", err)
	}
	other := p.ask("127.0.0.2")
	refused := 0
	ended := make(chan error)
	for _, done := range asked {
		go func() { ended <- <-done }()
	}
	if err := <-ended; err != nil { // before any signature ends: one of them made room for other
		refused++
	}
	close(p.key.goOn)
	for range len(asked) - 1 {
		if err := <-ended; err != nil {
			refused++
		}
	}
	if err := <-other; err != nil {
		t.Errorf("the client at another address: %v", err)
	}
	if refused != 1 {
		t.Errorf("%d of the flood are refused", refused)
	}
	if n := testutil.ToFloat64(p.refused); n != 2 {
		t.Errorf("%v are counted", n)
	}
}

// TestAClientThatLeavesGivesItsTurnBack: while its handshake is computed, and where it is to answer. Certificates of clients are asked for, so that a
// handshake has two turns.
func TestAClientThatLeavesGivesItsTurnBack(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		p := newPort(t, 1, func(c *tls.Config) { c.MaxVersion, c.ClientAuth = version, tls.RequestClientCert })
		c := p.dial("127.0.0.1")
		go func() { _ = tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
		<-p.key.signing
		_ = c.Close()
		second := p.ask("127.0.0.1")
		p.waits(1)
		close(p.key.goOn)
		if err := <-second; err != nil {
			t.Errorf("the second client: %v", err)
		}
		// One that answers nothing to the server's part of the handshake has no turn meanwhile.
		silent := tls.Client(&muteConn{Conn: p.dial("127.0.0.1")}, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
		go func() { _ = silent.Handshake() }()
		for range 20 {
			if err := <-p.ask("127.0.0.1"); err != nil {
				t.Errorf("behind one that does not answer: %v", err)
			}
		}
	}
}

// TestAnInterruptedHandshakeKeepsItsTurnWhileItComputes: a port closes connections that are too many, some of them amid a signature. Another began beside it, so that as
// many were computed at a time as clients connected.
func TestAnInterruptedHandshakeKeepsItsTurnWhileItComputes(t *testing.T) {
	p := newPort(t, 1, nil)
	first := p.ask("127.0.0.1")
	<-p.key.signing
	Interrupt(<-p.accepted)
	second := p.ask("127.0.0.2")
	for p.Waiting() != 1 {
		select {
		case <-p.key.signing:
			close(p.key.goOn)
			t.Fatal("a second handshake is computed beside the first")
		case <-time.After(time.Millisecond):
		}
	}
	third := p.ask("127.0.0.3")
	p.waits(2)
	<-p.accepted
	Interrupt(<-p.accepted) // one that waits
	p.waits(1)
	if err := <-third; err == nil {
		t.Error("an interrupted connection was served")
	}
	close(p.key.goOn)
	if err := <-first; err == nil {
		t.Error("an interrupted connection was served")
	}
	if err := <-second; err != nil {
		t.Errorf("the second client: %v", err)
	}
	if n := p.key.most.Load(); n != 1 {
		t.Errorf("%d handshakes were computed at a time", n)
	}
	a, b := net.Pipe()
	Interrupt(a) // of no gate
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other side of a closed pipe reads %v", err)
	}
}

// TestAHandshakeOfManyPiecesStandsInLine: a client sent a whole ClientHello and then single bytes. It had a turn for each, before all clients that had none.
func TestAHandshakeOfManyPiecesStandsInLine(t *testing.T) {
	g := New(Deps{Processors: 1})
	g.late = time.Minute
	conn := func(port string) (c *Conn, far net.Conn) {
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		return g.Conn(near, port), far
	}
	arrives := func(port string) (c *Conn, turn <-chan error) {
		c, _ = conn(port)
		came := make(chan error, 1)
		go func() { came <- c.enter() }()
		return c, came
	}
	waits := func(n int) {
		for g.Waiting() != n {
			time.Sleep(time.Millisecond)
		}
	}
	many, far := conn("many")
	if err := many.enter(); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= turnsAhead; n++ {
		held, its := arrives("held")
		waits(1)
		fresh, first := arrives("fresh")
		waits(2)
		next := make(chan error, 1)
		go func() {
			_, err := many.Read(make([]byte, 1))
			next <- err
		}()
		if err := <-its; err != nil { // many gave its turn n back
			t.Fatal(err)
		}
		if _, err := far.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		waits(2)
		held.leave()
		if n < turnsAhead {
			if err := <-next; err != nil || len(first) > 0 {
				t.Fatalf("turn %d of a handshake that is under way: %v; a new one was before it: %v", n+1, err, len(first) > 0)
			}
			_ = fresh.Close()
			<-first
			continue
		}
		if err := <-first; err != nil || len(next) > 0 {
			t.Fatalf("a new handshake: %v; turn %d of another was before it: %v", err, n+1, len(next) > 0)
		}
		fresh.leave()
		if err := <-next; err != nil {
			t.Error(err)
		}
	}
}

// muteConn sends its first piece and no other.
type muteConn struct {
	net.Conn
	sent atomic.Bool
}

func (c *muteConn) Write(b []byte) (int, error) {
	if c.sent.Swap(true) {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// TestAClosedConnectionLeavesTheQueue: the end of a process need not wait for turns.
func TestAClosedConnectionLeavesTheQueue(t *testing.T) {
	g := New(Deps{Processors: 1})
	a, b := net.Pipe()
	defer b.Close()
	first, second := g.Conn(a, "http"), g.Conn(a, "http")
	if err := first.enter(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- second.enter() }()
	for g.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	_ = second.Close()
	if err := <-ended; err == nil || g.Waiting() != 0 {
		t.Errorf("%v, and %d wait", err, g.Waiting())
	}
	first.End()
	third := g.Conn(a, "http")
	if err := third.enter(); err != nil {
		t.Error(err)
	}
}
