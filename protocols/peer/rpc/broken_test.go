package rpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestStreamOfAKilledServer: all waiting calls fail at once, and the error says that a new stream is needed; when the server is
// back, a new stream works.
func TestStreamOfAKilledServer(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	addr, srv := serve(t, m, Settings{})
	p := dial(t, addr, DialSettings{})
	st := openStream(t, p)
	m.series = someSeries(2000, 5000)
	set, err := p.Select(t.Context(), &peer.Select{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	errs := make(chan error)
	for range 20 {
		go func() { errs <- st.Insert(context.Background(), &peer.Insert{}) }()
	}
	m.until(t, "all are at the gate", func() bool { return m.waiting == 20 })
	go srv.grpc.Stop()
	for range 20 {
		if err := <-errs; !fault.Is(err, fault.Unavailable) || !errors.Is(err, peer.ErrStreamBroken) {
			t.Errorf("an insert in flight: %v", err)
		}
	}
	for set.Next() {
	}
	wantKind(t, "a select in flight", set.Err(), fault.Unavailable)
	for _, err := range []error{st.Insert(t.Context(), &peer.Insert{}), st.Define(t.Context(), someDefs(1))} {
		if !fault.Is(err, fault.Unavailable) || !errors.Is(err, peer.ErrStreamBroken) {
			t.Errorf("a later call: %v", err)
		}
	}
	_, err = p.Stats(t.Context(), "t", 1)
	wantKind(t, "a call of a peer that is gone", err, fault.Unavailable)
	m.until(t, "the peer's streams are closed", func() bool { return m.streams == 0 && m.sets == 0 })
	close(m.gate)

	again, err := NewServer(Deps{Storage: m}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	l := listenAgain(t, addr)
	served := make(chan error, 1)
	go func() { served <- again.Serve(l) }()
	until(t, "the peer is back", func() bool {
		next, err := p.OpenStream(t.Context(), "t")
		if err != nil {
			return false
		}
		defer next.Close()
		return next.Insert(t.Context(), &peer.Insert{}) == nil
	})
	_, err = p.Fetch(t.Context(), &peer.FileQuery{Table: "t"})
	wantKind(t, "METADATA of a server that keeps none", err, fault.Unavailable)
	if err := errors.Join(p.Close(), again.Shutdown(t.Context()), <-served); err != nil {
		t.Error(err)
	}
	wantKind(t, "a call of a closed peer", p.DeleteSeries(t.Context(), &peer.Select{}), fault.Unavailable)
}

// TestShutdownAcksWhatIsUnderWay: an accepted insert is acked, the stream then ends.
func TestShutdownAcksWhatIsUnderWay(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	addr, srv := serve(t, m, Settings{})
	p := dial(t, addr, DialSettings{})
	st := openStream(t, p)
	acked := make(chan error)
	go func() { acked <- st.Insert(t.Context(), &peer.Insert{}) }()
	m.until(t, "it is at the gate", func() bool { return m.waiting == 1 })
	down := make(chan error)
	go func() { down <- srv.Shutdown(context.Background()) }()
	<-srv.stopping
	close(m.gate)
	if err := <-acked; err != nil {
		t.Errorf("an insert under way: %v", err)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
	if err := st.Insert(t.Context(), &peer.Insert{}); !errors.Is(err, peer.ErrStreamBroken) {
		t.Errorf("an insert after it: %v", err)
	}
}

func TestClosedStreamSaysSo(t *testing.T) {
	m, p := pair(t)
	m.gate = make(chan struct{})
	st := openStream(t, p)
	done := make(chan error)
	go func() { done <- st.Insert(t.Context(), &peer.Insert{}) }()
	m.until(t, "it is at the gate", func() bool { return m.waiting == 1 })
	if err := st.Close(); err != nil {
		t.Error(err)
	}
	for _, err := range []error{<-done, st.Insert(t.Context(), &peer.Insert{}), st.Define(t.Context(), someDefs(1))} {
		if !fault.Is(err, fault.Unavailable) || !errors.Is(err, peer.ErrStreamBroken) {
			t.Errorf("a call of a closed stream: %v", err)
		}
	}
	m.until(t, "the dictionary is forgotten", func() bool { return m.streams == 0 })
	close(m.gate)
}

func TestNobodyIsThere(t *testing.T) {
	l := listen(t)
	addr := l.Addr().String()
	_ = l.Close()
	p := dial(t, addr, DialSettings{})
	for range 3 {
		began := time.Now()
		_, err := p.OpenStream(t.Context(), "t")
		wantKind(t, "an open", err, fault.Unavailable)
		if took := time.Since(began); took > busy {
			t.Errorf("it took %v to say so", took)
		}
	}
}

// busy bounds steps of two seconds on a quiet machine, and would last for ever if it went wrong.
const busy = 30 * time.Second

// listenAgain listens where another server did.
func listenAgain(t *testing.T, addr string) (l net.Listener) {
	t.Helper()
	until(t, "the address is free again", func() bool {
		var err error
		l, err = net.Listen("tcp", addr)
		return err == nil
	})
	return l
}

// wire is a proxy that can be frozen: it then passes no byte in either direction, and closes nothing.
type wire struct {
	addr  string
	mu    sync.Mutex
	cond  *sync.Cond
	cold  bool
	conns []net.Conn
}

func newWire(t *testing.T, to string) *wire {
	l := listen(t)
	w := &wire{addr: l.Addr().String()}
	w.cond = sync.NewCond(&w.mu)
	var wg sync.WaitGroup
	copyAll := func(dst, src net.Conn) {
		b := make([]byte, 4096)
		for {
			n, err := src.Read(b)
			w.mu.Lock()
			for w.cold {
				w.cond.Wait()
			}
			w.mu.Unlock()
			if err == nil {
				_, err = dst.Write(b[:n])
			}
			if err != nil {
				_ = dst.Close()
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, in, out)
			w.mu.Unlock()
			wg.Go(func() { copyAll(out, in) })
			wg.Go(func() { copyAll(in, out) })
		}
	})
	t.Cleanup(func() {
		w.freeze(false)
		_ = l.Close()
		w.cut()
		wg.Wait()
	})
	return w
}

func (w *wire) freeze(cold bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cold = cold
	w.cond.Broadcast()
}

// cut closes all connections, as the kernel does for a process that is killed.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
}

// TestAPeerThatIsKilledWhileItIsSilentAnswersAgain: its connection is closed before it would have been given up, and no call waits. gRPC dials such a connection anew for the next call alone; but
// none comes as long as the peer is called silent, where others can be asked.
func TestAPeerThatIsKilledWhileItIsSilentAnswersAgain(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	defer close(m.gate)
	addr, _ := serve(t, m, Settings{})
	w := newWire(t, addr)
	p := dial(t, w.addr, DialSettings{SilenceMax: 8 * time.Second}) // it is not given up before it is cut, on a busy machine either
	st := openStream(t, p)
	done := make(chan error)
	go func() { done <- st.Insert(context.Background(), &peer.Insert{}) }()
	m.until(t, "it is at the gate", func() bool { return m.waiting == 1 })
	w.freeze(true)
	until(t, "it owes a sign of life", func() bool { return p.Silence() > 0 })
	w.cut()
	wantKind(t, "an insert in flight", <-done, fault.Unavailable)
	w.freeze(false)
	until(t, "it gave one, though no call asked it for anything", func() bool { return p.Silence() == 0 })
}

// TestFrozenPeer: inserts, selects and calls in flight do not hang when the other end neither answers nor closes.
func TestFrozenPeer(t *testing.T) {
	m := newMemory()
	m.gate = make(chan struct{})
	addr, _ := serve(t, m, Settings{})
	w := newWire(t, addr)
	metrics := NewDialMetrics(prometheus.NewRegistry())
	p := dial(t, w.addr, DialSettings{Metrics: metrics})
	began := time.Now()
	st := openStream(t, p)
	done := make(chan error)
	go func() { done <- st.Insert(context.Background(), &peer.Insert{}) }()
	m.until(t, "it is at the gate", func() bool { return m.waiting == 1 })
	w.freeze(true)
	froze := time.Now()
	go func() {
		_, err := p.Stats(context.Background(), "t", 1)
		done <- err
	}()
	for range 2 {
		wantKind(t, "a call in flight", <-done, fault.Unavailable)
	}
	if took := time.Since(began); took > busy || took < time.Second {
		t.Errorf("it took %v to notice, 2 s are meant", took)
	}
	until(t, "the connection with calls counts as given up", func() bool { return testutil.ToFloat64(metrics.silent) == 1 })
	until(t, "the frozen peer is dialled anew", func() bool {
		p.mu.RLock()
		defer p.mu.RUnlock()
		return time.Duration(p.mu.line.connected.Load()) > froze.Add(time.Second).Sub(p.began)
	})
	if received := p.LastReceived(); received.After(froze.Add(time.Second)) { // a connection is made by the kernel
		t.Errorf("something was received from it %v after it froze", received.Sub(froze))
	}
	if err := st.Insert(t.Context(), &peer.Insert{}); !errors.Is(err, peer.ErrStreamBroken) {
		t.Errorf("a later insert: %v", err)
	}
	if silence := p.Silence(); silence < time.Second || silence > time.Since(froze) {
		t.Errorf("%v after it froze it owes a sign of life for %v", time.Since(froze), silence)
	}
	w.freeze(false)
	close(m.gate)
	until(t, "it owes no sign of life, though no call asked it for anything", func() bool { return p.Silence() == 0 })
	until(t, "the peer is back", func() bool {
		_, _, err := p.LabelNames(t.Context(), &peer.Select{}, 0)
		return err == nil
	})
}

// LabelNames of a peer that is slow but alive: the sign of life is another call's.
func TestSlowPeerIsNotFrozen(t *testing.T) {
	t.Parallel()
	m := newMemory()
	m.gate = make(chan struct{})
	addr, _ := serve(t, m, Settings{})
	p := dial(t, addr, DialSettings{SilenceMax: 6 * time.Second}) // a busy machine answers a ping within that
	st := openStream(t, p)
	done := make(chan error, 1)
	go func() { done <- st.Insert(context.Background(), &peer.Insert{}) }()
	select {
	case err := <-done:
		t.Errorf("an insert that takes long: %v", err)
	case <-time.After(13 * time.Second):
		close(m.gate)
		if err := <-done; err != nil {
			t.Errorf("an insert that took long: %v", err)
		}
	}
}

// TestListenerThatStopsReading accepts and sends nothing at all.
func TestListenerThatStopsReading(t *testing.T) {
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	p := dial(t, l.Addr().String(), DialSettings{ConnectMax: 300 * time.Millisecond})
	began := time.Now()
	_, err := p.OpenStream(t.Context(), "t")
	wantKind(t, "an open", err, fault.Unavailable)
	if took := time.Since(began); took > busy {
		t.Errorf("it took %v to say so", took)
	}
}
