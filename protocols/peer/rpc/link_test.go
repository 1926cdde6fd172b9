package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// ear is a handler that records its calls.
type ear struct {
	keep bool // bodies are not released until the test does it
	mu   sync.Mutex
	news chan struct{} // closed and replaced with every event

	links    []peer.Link
	ended    []error
	messages []string
	frames   []string
	bodies   []peer.Body
	pieces   int
	silent   []bool
}

func newEar() *ear { return &ear{news: make(chan struct{})} }

func (e *ear) note(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	close(e.news)
	e.news = make(chan struct{})
}

// until waits for a condition.
func (e *ear) until(t testing.TB, what string, is func() bool) {
	t.Helper()
	end := time.After(time.Minute)
	for {
		e.mu.Lock()
		ok, news := is(), e.news
		e.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-news:
		case <-end:
			t.Fatalf("no %s", what)
		}
	}
}

func (e *ear) Linked(l peer.Link) { e.note(func() { e.links = append(e.links, l) }) }
func (e *ear) Message(_ peer.Link, r *peer.Route, m peer.LinkMessage) {
	e.note(func() { e.messages = append(e.messages, fmt.Sprintf("%v %#v", *r, m)) })
}

func (e *ear) Frame(_ peer.Link, r *peer.Route, b peer.Body) {
	e.note(func() {
		e.frames = append(e.frames, fmt.Sprintf("%s %d %d", r.Table, r.Epoch, len(b.Bytes())))
		if e.keep {
			e.bodies = append(e.bodies, b)
		}
	})
	if !e.keep {
		b.Done()
	}
}

func (e *ear) Piece(_ peer.Link, _ *peer.Route, _ peer.SegmentPiece, b peer.Body) {
	e.note(func() { e.pieces++ })
	b.Done()
}
func (e *ear) Silent(_ peer.Link, silent bool) {
	e.note(func() { e.silent = append(e.silent, silent) })
}
func (e *ear) Unlinked(_ peer.Link, why error) { e.note(func() { e.ended = append(e.ended, why) }) }

// linked waits for the n-th link.
func (e *ear) linked(t testing.TB, n int) peer.Link {
	t.Helper()
	e.until(t, fmt.Sprint("link ", n), func() bool { return len(e.links) >= n })
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.links[n-1]
}

func linksOf(t testing.TB, server string, h peer.LinkHandler) *Links {
	t.Helper()
	return linksGivenUp(t, 0, server, h)
}

// linksGivenUp gives links up after that time; 0: the default, which a busy machine may be silent for.
func linksGivenUp(t testing.TB, after time.Duration, server string, h peer.LinkHandler) *Links {
	t.Helper()
	self := peer.LinkHello{Server: server, Boot: rand.Uint64(), Capabilities: peer.CanFreeze}
	ls, err := NewLinks(LinkSettings{Self: self, GiveUpAfter: after, Registerer: prometheus.NewRegistry()}, h)
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

var someRoute = peer.Route{Table: "metrics", Partition: 1<<60 + 7, From: 0xfedcba9876543210, To: 3, Epoch: 1 << 40}

// someMessages is one of each kind with all fields set.
func someMessages() []peer.LinkMessage {
	ends := []point.EpochEnd{{Epoch: 1, Seq: 90}, {Epoch: 1 << 40, Seq: 101}}
	s := func(e, n uint64) point.Serial { return point.Serial{Epoch: point.Epoch(e), Seq: n} }
	return []peer.LinkMessage{
		&peer.ChainBegin{Version: 3, Order: []peer.LinkMember{{Placement: 5, Server: "s1", Store: [16]byte{1, 15: 16}}, {Placement: 1 << 63, Server: "s2"}}, Ends: ends},
		&peer.ChainBegin{},
		&peer.ChainReport{Version: 4, Upto: s(1, 90), End: s(2, 1<<50)},
		&peer.ChainPing{Version: 1, Sent: -5, Own: s(1, 1), End: s(1, 2)},
		&peer.ChainPong{Sent: 1 << 60, For: time.Second},
		&peer.ChainRefuse{End: s(9, 9)},
		&peer.SegmentOffer{Slot: 300, ID: point.SegmentID{Epoch: 2, Seq: 5}, Base: point.SegmentID{Epoch: 1, Seq: 4}, Major: true, Size: 1 << 33, Checksum: 1<<64 - 1, Ends: ends, Info: []byte(`{"id":1}`)},
		&peer.SegmentAccept{Slot: 300, Offset: 1 << 33},
		&peer.SegmentDecline{Slot: 300, Reason: peer.DeclineOutOfOrder, Ends: ends},
		&peer.SegmentCommit{Slot: 300},
		&peer.SegmentAck{Slot: 300, ID: point.SegmentID{Epoch: 2, Seq: 5}},
		&peer.ChainLeave{Echo: 1 << 50},
		&peer.ChainLeft{},
		&peer.ChainRest{Version: 2, Sent: 1 << 51, Own: s(1, 3), End: s(1, 3)},
		&peer.ChainRests{Sent: 1 << 51},
		&peer.CompareAsk{After: s(2, 90), End: s(1<<40, 101)},
		&peer.CompareAnswer{After: s(2, 90), End: s(1<<40, 101), Segments: 1<<64 - 3, Log: 1 << 63, Frames: 11},
	}
}

// joined links two servers of one process.
func joined(t testing.TB, a, b *ear) (la, lb peer.Link, end func()) {
	t.Helper()
	x, y := linksGivenUp(t, time.Minute, "a", a), linksGivenUp(t, time.Minute, "b", b)
	JoinLinks(x, y)
	return a.linked(t, 1), b.linked(t, 1), func() { x.Close(); y.Close() }
}

// overNetwork links two servers by gRPC.
func overNetwork(t testing.TB, a, b *ear) (la, lb peer.Link, end func()) {
	t.Helper()
	x, y := linksGivenUp(t, time.Minute, "a", a), linksGivenUp(t, time.Minute, "b", b)
	addr, _ := serveLinks(t, y, Settings{})
	p := dial(t, addr, DialSettings{})
	x.Connect("b", p)
	return a.linked(t, 1), b.linked(t, 1), func() { x.Close(); y.Close() }
}

// serveLinks serves the links of a server on a loopback port.
func serveLinks(t testing.TB, ls *Links, s Settings) (addr string, srv *Server) {
	t.Helper()
	if s.TLS == (TLS{}) {
		s.TLS = plain
	}
	srv, err := NewServer(Deps{Storage: newMemory(), Links: ls}, s)
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		if err := srv.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), srv
}

func TestALinkCarriesEverythingBothWays(t *testing.T) {
	for name, link := range map[string]func(testing.TB, *ear, *ear) (peer.Link, peer.Link, func()){"memory": joined, "network": overNetwork} {
		t.Run(name, func(t *testing.T) {
			a, b := newEar(), newEar()
			la, lb, end := link(t, a, b)
			defer end()
			if la.Peer().Server != "b" || lb.Peer().Server != "a" || !la.Peer().Capabilities.Has(peer.CanFreeze) {
				t.Errorf("linked %+v and %+v", la.Peer(), lb.Peer())
			}
			for from, to := range map[peer.Link]*ear{la: b, lb: a} {
				var want []string
				for _, m := range someMessages() {
					if err := from.Send(&someRoute, m); err != nil {
						t.Fatal(err)
					}
					want = append(want, fmt.Sprintf("%v %#v", someRoute, m))
				}
				to.until(t, "messages", func() bool { return len(to.messages) == len(want) })
				for i := range want {
					if to.messages[i] != want[i] && !bytes.Contains([]byte(want[i]), []byte("0x")) {
						t.Errorf("got %s, want %s", to.messages[i], want[i])
					}
				}
				var freed atomic.Int32
				sizes := []int{0, 1, 100, linkReferenced, 10_000, linkMessageBytes, linkMessageBytes + 1, 3_000_000, peer.LinkFrameBytesMax}
				for _, n := range sizes {
					if err := sendFrame(t.Context(), from, &someRoute, make([]byte, n), func() { freed.Add(1) }); err != nil {
						t.Fatal(err)
					}
				}
				to.until(t, "frames", func() bool { return len(to.frames) == len(sizes) })
				for i, n := range sizes {
					if want := fmt.Sprintf("metrics %d %d", someRoute.Epoch, n); to.frames[i] != want {
						t.Errorf("frame %q, want %q", to.frames[i], want)
					}
				}
				for range 50 {
					if err := from.Piece(t.Context(), &someRoute, peer.SegmentPiece{Slot: 3, Offset: 9}, make([]byte, peer.LinkPieceBytesMax)); err != nil {
						t.Fatal(err)
					}
				}
				to.until(t, "pieces", func() bool { return to.pieces == 50 })
				if err := sendFrame(t.Context(), from, &someRoute, make([]byte, peer.LinkFrameBytesMax+1), func() { freed.Add(1) }); !fault.Is(err, fault.TooLarge) {
					t.Errorf("a frame that is too long: %v", err)
				}
				for end := time.Now().Add(time.Minute); int(freed.Load()) != len(sizes)+1; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%d of %d frames were given back", freed.Load(), len(sizes)+1)
					}
				}
			}
		})
	}
}

// Bodies that a handler has not released bound the sender's room: urgent messages go through all the same.
func TestAFullLinkTakesUrgentMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newEar(), newEar()
		b.keep = true
		la, _, end := joined(t, a, b)
		defer end()
		rec := make([]byte, 1<<20)
		sent := 0
		for try := time.Second; ; sent++ {
			ctx, cancel := context.WithTimeout(t.Context(), try)
			err := sendFrame(ctx, la, &someRoute, rec, nil)
			if cancel(); err != nil {
				break
			}
		}
		if err := la.TryFrame(&someRoute, rec, nil); !fault.Is(err, fault.Throttled) || sent < 78 || sent > 80 {
			t.Errorf("%d MiB on their way, then %v", sent, err)
		}
		if err := la.Send(&someRoute, &peer.ChainPong{}); err != nil {
			t.Error(err)
		}
		if err := la.Piece(t.Context(), &someRoute, peer.SegmentPiece{}, rec[:peer.LinkPieceBytesMax]); err != nil {
			t.Error(err)
		}
		b.until(t, "message and piece", func() bool { return len(b.messages) == 1 && b.pieces == 1 })
		waiting := make(chan error, 1)
		go func() { waiting <- sendFrame(t.Context(), la, &someRoute, rec, nil) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := sendFrame(ctx, la, &someRoute, rec, nil); !fault.Is(err, fault.Canceled) {
			t.Errorf("a wait that was given up: %v", err)
		}
		b.until(t, "frames", func() bool { return len(b.bodies) == sent })
		b.mu.Lock()
		bodies := b.bodies
		b.mu.Unlock()
		for _, body := range bodies {
			body.Done()
		}
		if err := <-waiting; err != nil {
			t.Errorf("room came, and the wait ends with %v", err)
		}
	})
}

func TestSilenceIsReportedAndThenTheLinkGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newEar(), newEar()
		x, y := linksOf(t, "a", a), linksOf(t, "b", b)
		defer y.Close()
		defer x.Close()
		var deaf atomic.Bool
		x.connect("b", func(context.Context) (pipe, context.Context, context.CancelCauseFunc, error) {
			p, ctx, cancel, err := y.dialled()
			return &lossy{p, &deaf, ctx}, ctx, cancel, err
		})
		a.linked(t, 1)
		for _, step := range []struct {
			deaf  bool
			sleep time.Duration
			want  string
		}{
			{false, 3 * time.Second, "1 links, 0 ended, silent []"},
			{true, 700 * time.Millisecond, "1 links, 0 ended, silent [true]"},
			{false, 200 * time.Millisecond, "1 links, 0 ended, silent [true false]"},
			{true, 1800 * time.Millisecond, "1 links, 0 ended, silent [true false true]"},
			{true, 500 * time.Millisecond, "1 links, 1 ended, silent [true false true]"},
			{false, 5 * time.Second, "2 links, 1 ended, silent [true false true]"},
		} {
			deaf.Store(step.deaf)
			time.Sleep(step.sleep)
			if got := a.story(); got != step.want {
				t.Errorf("%s; want %s", got, step.want)
			}
		}
	})
}

// slowEar does not come back from a frame until it may.
type slowEar struct {
	*ear
	may chan struct{}
}

func (e *slowEar) Frame(l peer.Link, r *peer.Route, b peer.Body) {
	<-e.may
	e.ear.Frame(l, r, b)
}

// TestALinkWithALateHandlerIsNotSilent: while this side's own handler was at work for long, the other side was called silent, and the link was given up.
func TestALinkWithALateHandlerIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newEar(), &slowEar{newEar(), make(chan struct{})}
		x, y := linksOf(t, "a", a), linksOf(t, "b", b)
		defer y.Close()
		defer x.Close()
		JoinLinks(x, y)
		la, lb := a.linked(t, 1), b.linked(t, 1)
		if err := sendFrame(t.Context(), la, &someRoute, []byte("a frame"), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		const whole = "1 links, 0 ended, silent []"
		if s := lb.Silence(); s != 0 || b.story() != whole {
			t.Errorf("while its handler is at work the other side is silent for %v: %s", s, b.story())
		}
		close(b.may)
		time.Sleep(5 * time.Second)
		if s := lb.Silence(); s > time.Second || b.story() != whole {
			t.Errorf("the other side was silent for %v: %s", s, b.story())
		}
	})
}

func (e *ear) story() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprintf("%d links, %d ended, silent %v", len(e.links), len(e.ended), e.silent)
}

// lossy drops messages while it is deaf.
type lossy struct {
	pipe
	deaf *atomic.Bool
	ctx  context.Context
}

func (p *lossy) RecvMsg(v any) error {
	for {
		if err := p.pipe.RecvMsg(v); err != nil || !p.deaf.Load() {
			return err
		}
		v.(*message).data.Free()
	}
}

// tallied counts the records that pass one end of a pipe, by type, and the longest time without any in each direction. Messages need a moment
// to arrive, so that the two sides do not look at the same instant.
type tallied struct {
	pipe
	mu        sync.Mutex
	records   map[linkType]int
	last      [2]time.Time // of sent and received messages
	pause     [2]time.Duration
	connected bool
}

func (p *tallied) count(way int, m *message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.pause[way] = max(p.pause[way], now.Sub(p.last[way]))
	p.last[way] = now
	for b := m.data.Materialize(); len(b) > 0; {
		r, rest, err := cutLinkRecord(b)
		if err != nil {
			return
		}
		p.records[r.kind]++
		b = rest
	}
}

func (p *tallied) SendMsg(v any) error {
	p.count(0, v.(*message))
	return p.pipe.SendMsg(v)
}

func (p *tallied) RecvMsg(v any) error {
	err := p.pipe.RecvMsg(v)
	if err != nil {
		return err
	}
	p.count(1, v.(*message))
	trip := time.Millisecond
	if !p.connected {
		p.connected, trip = true, 30*time.Millisecond
	}
	<-time.After(trip)
	return nil
}

// forget begins to count anew.
func (p *tallied) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records, p.pause, p.last = map[linkType]int{}, [2]time.Duration{}, [2]time.Time{time.Now(), time.Now()}
}

// At rest one side pings and the other answers, eight times a second, and each measures the trip once a second; where messages pass, that alone is
// left. Neither side is ever without a sign of life of the other for half of the time after which it calls it silent.
func TestALinkPingsOnlyWhereNothingElsePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := linksOf(t, "a", newEar()), linksOf(t, "b", newEar())
		defer y.Close()
		defer x.Close()
		p := &tallied{}
		p.forget()
		x.connect("b", func(context.Context) (pipe, context.Context, context.CancelCauseFunc, error) {
			near, ctx, cancel, err := y.dialled()
			p.pipe = near
			return p, ctx, cancel, err
		})
		time.Sleep(time.Second)
		for _, step := range []struct {
			what    string
			every   time.Duration // between messages of each side; 0: none
			pings   int           // of both sides in ten seconds, about
			longest time.Duration
		}{
			{"at rest", 0, 90, 190 * time.Millisecond},
			{"with a message in 40 ms", 40 * time.Millisecond, 20, 41 * time.Millisecond},
			{"at rest again", 0, 90, 190 * time.Millisecond},
		} {
			p.forget()
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
				if step.every == 0 {
					time.Sleep(10 * time.Second)
					continue
				}
				for _, ls := range []*Links{x, y} {
					for _, other := range []string{"a", "b"} {
						if l, ok := ls.Link(other); ok {
							if err := l.Send(&someRoute, &peer.ChainPong{Sent: 1}); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				time.Sleep(step.every)
			}
			p.mu.Lock()
			if got := p.records[linkPing]; got < step.pings-3 || got > step.pings+3 {
				t.Errorf("%s: %d pings in ten seconds, want some %d: %v", step.what, got, step.pings, p.records)
			}
			if p.pause[0] > step.longest || p.pause[1] > step.longest {
				t.Errorf("%s: nothing was sent for %v and received for %v, want at most %v", step.what, p.pause[0], p.pause[1], step.longest)
			}
			p.mu.Unlock()
		}
	})
}

// Both sides dial at once, again and again: one link is left, the same for both sides.
func TestTwoServersThatDialEachOtherHaveOneLink(t *testing.T) {
	for range 20 {
		a, b := newEar(), newEar()
		x, y := linksOf(t, "a", a), linksOf(t, "b", b)
		addrX, _ := serveLinks(t, x, Settings{})
		addrY, _ := serveLinks(t, y, Settings{})
		px, py := dial(t, addrX, DialSettings{}), dial(t, addrY, DialSettings{})
		go x.Connect("b", py)
		y.connect("a", func(ctx context.Context) (pipe, context.Context, context.CancelCauseFunc, error) {
			return px.openLink(ctx)
		})
		one := func() bool { return len(a.links) == len(a.ended)+1 && len(b.links) == len(b.ended)+1 }
		settled := func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(a.links) > 0 && len(b.links) > 0 && one()
		}
		var word string
		for end := time.Now().Add(time.Minute); ; {
			if settled() { // and a message on one end's link reaches the other
				word = fmt.Sprint(rand.Uint64())
				l, ok := x.Link("b")
				if ok && l.Send(&peer.Route{Table: word}, &peer.ChainPong{}) == nil {
					time.Sleep(5 * time.Millisecond)
					b.mu.Lock()
					n := len(b.messages)
					received := n > 0 && bytes.Contains([]byte(b.messages[n-1]), []byte(word))
					b.mu.Unlock()
					if received && settled() {
						break
					}
				}
			}
			if time.Now().After(end) {
				t.Fatalf("%d links and %d ends at a, %d and %d at b: %v %v", len(a.links), len(a.ended), len(b.links), len(b.ended), a.ended, b.ended)
			}
			time.Sleep(time.Millisecond)
		}
		x.Close()
		y.Close()
	}
}

func TestAServerThatBeganAnewTakesThePlaceOfItsOldLink(t *testing.T) {
	b := newEar()
	y := linksOf(t, "b", b)
	defer y.Close()
	addr, _ := serveLinks(t, y, Settings{})
	for n := 1; n <= 3; n++ {
		a := newEar()
		x := linksOf(t, "a", a)
		defer x.Close()
		x.Connect("b", dial(t, addr, DialSettings{}))
		boot := b.linked(t, n).Peer().Boot
		if boot != x.settings.Self.Boot {
			t.Errorf("linked to boot %d, want %d", boot, x.settings.Self.Boot)
		}
		if n > 1 {
			x.Disconnect("b")
			break
		}
		_ = a.linked(t, 1)
	}
}

func TestALinkSurvivesTheOtherServersRestart(t *testing.T) {
	a, b := newEar(), newEar()
	x, y := linksOf(t, "a", a), linksOf(t, "b", b)
	defer x.Close()
	addr, srv := serveLinks(t, y, Settings{})
	x.Connect("b", dial(t, addr, DialSettings{}))
	first := a.linked(t, 1)
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	y.Close()
	a.until(t, "end", func() bool { return len(a.ended) == 1 })
	for _, err := range []error{first.Send(&someRoute, &peer.ChainPong{}), first.TryFrame(&someRoute, nil, nil), sendFrame(t.Context(), first, &someRoute, nil, nil)} {
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("on a link that ended: %v", err)
		}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skip("the port is taken: ", err)
	}
	y2 := linksOf(t, "b", newEar())
	defer y2.Close()
	srv2, err := NewServer(Deps{Storage: newMemory(), Links: y2}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv2.Serve(l) }()
	if again := a.linked(t, 2); again.Peer().Boot != y2.settings.Self.Boot {
		t.Errorf("linked to boot %d", again.Peer().Boot)
	}
	_ = srv2.Shutdown(t.Context())
	<-done
}

// linkOnce dials a link as server x and returns the error that ends it.
func linkOnce(ctx context.Context, p *Peer) error {
	pipe, _, cancel, err := p.openLink(ctx)
	if err != nil {
		return err
	}
	defer cancel(nil)
	h := linkGreeting{LinkHello: peer.LinkHello{Server: "x"}, versionMin: 1, versionMax: 1, frameWindow: 80 << 20, pieceWindow: 4 << 20}
	buf, _ := pooled(h.append(nil))
	_ = sendBuffer(pipe, buf)
	var m message
	if err := pipe.RecvMsg(&m); err != nil {
		return ofStatus(err)
	}
	m.data.Free()
	return nil
}

// A certificate is for a role and a name: that of a gateway or another server opens no link.
func TestALinkIsOfTheServerThatTheCertificateNames(t *testing.T) {
	a := newTestAuthority(t)
	ls := linksOf(t, "b", newEar())
	defer ls.Close()
	addr, _ := serveLinks(t, ls, Settings{TLS: a.files(t, "127.0.0.1")})
	for id, want := range map[Identity]bool{{RoleStorage, "x"}: true, {RoleStorage, "y"}: false, {RoleGateway, "x"}: false, {RoleAdmin, "x"}: false} {
		p := dial(t, addr, DialSettings{TLS: a.filesOf(t, "x", id.URI())})
		if err := linkOnce(t.Context(), p); want != (err == nil) || !want && !fault.Is(err, fault.Denied) {
			t.Errorf("a link of %v that calls itself x: %v", id, err)
		}
	}
}

func TestAPeerThatBreaksTheRulesLosesItsLink(t *testing.T) {
	good := func() linkGreeting {
		return linkGreeting{LinkHello: peer.LinkHello{Server: "evil", Boot: 1}, versionMin: 1, versionMax: 9, frameWindow: 80 << 20, pieceWindow: 4 << 20}
	}
	hello := func(change func(*linkGreeting)) []byte {
		h := good()
		change(&h)
		return h.append(nil)
	}
	own := func(kind linkType, head ...byte) []byte {
		return endLinkRecord(append(beginLinkRecord(nil, kind), head...), 0, 0)
	}
	body := func(kind linkType, head, body []byte) []byte {
		return append(endLinkRecord(append(beginLinkRecord(nil, kind), head...), 0, len(body)), body...)
	}
	numbers := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	asking := func(h *linkGreeting) { h.Capabilities = peer.CanAskRoom }
	frameHead := func(total byte) []byte { return append(appendRoute(nil, &someRoute), total) }
	for name, messages := range map[string][][]byte{
		"no hello":               {own(linkPing, make([]byte, 8)...)},
		"newer versions alone":   {hello(func(h *linkGreeting) { h.versionMin = 2 })},
		"a window of nothing":    {hello(func(h *linkGreeting) { h.frameWindow = 0 })},
		"a window without end":   {hello(func(h *linkGreeting) { h.pieceWindow = 1<<64 - 1 })},
		"no name":                {hello(func(h *linkGreeting) { h.Server = "" })},
		"the own name":           {hello(func(h *linkGreeting) { h.Server = "b" })},
		"two hellos":             {hello(func(*linkGreeting) {}), hello(func(*linkGreeting) {})},
		"room that was not used": {hello(func(*linkGreeting) {}), own(linkCredit, append(make([]byte, 8), 1, 0, 0, 0, 0, 0, 0, 0)...)},
		"half a ping":            {hello(func(*linkGreeting) {}), own(linkPing, 1, 2)},
		"room it had not":        {hello(asking), own(linkAsk, append(numbers(1), numbers(1)...)...)},
		"asks twice":             {hello(asking), own(linkAsk, append(numbers(0), numbers(32<<20)...)...), own(linkAsk, append(numbers(0), numbers(32<<20)...)...), own(linkAsk, append(numbers(0), numbers(32<<20)...)...), own(linkAsk, append(numbers(0), numbers(32<<20)...)...)},
		"asks for too much":      {hello(asking), own(linkAsk, append(numbers(0), numbers(33<<20)...)...)},
		"asks and cannot":        {hello(func(*linkGreeting) {}), own(linkAsk, append(numbers(0), numbers(1)...)...)},
		"asks before the grant":  append([][]byte{hello(asking)}, slices.Repeat([][]byte{own(linkAsk, append(numbers(0), numbers(1)...)...)}, 100)...),
		"more than its room":     {hello(asking), body(linkFrame, binary.AppendUvarint(appendRoute(nil, &someRoute), linkFirstBytes), []byte{1})},
		"gives, not asked":       {hello(asking), own(linkGrant, numbers(1)...)},
		"keeps, not sent":        {hello(asking), own(linkKept, numbers(1)...)},
		"an unknown type":        {hello(func(*linkGreeting) {}), own(77, appendRoute(nil, &someRoute)...)},
		"a part of nothing":      {hello(func(*linkGreeting) {}), body(linkFramePart, nil, []byte{1})},
		"more than the frame":    {hello(func(*linkGreeting) {}), body(linkFrame, frameHead(1), []byte{1, 2})},
		"a frame in a frame":     {hello(func(*linkGreeting) {}), body(linkFrame, frameHead(9), []byte{1}), body(linkFrame, frameHead(1), []byte{1})},
		"a part too long":        {hello(func(*linkGreeting) {}), body(linkFrame, frameHead(2), []byte{1}), body(linkFramePart, nil, []byte{1, 2})},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEar()
			ls := linksOf(t, "b", e)
			defer ls.Close()
			p, _, cancel, err := ls.dialled()
			if err != nil {
				t.Fatal(err)
			}
			defer cancel(nil)
			for _, m := range messages {
				buf, _ := pooled(m)
				if sendBuffer(p, buf) != nil {
					break
				}
			}
			for err == nil {
				var m message
				if err = p.RecvMsg(&m); err == nil {
					m.data.Free()
				}
			}
			e.until(t, "end of the link", func() bool { return len(e.links) == len(e.ended) })
			if k := fault.KindOf(err); k != fault.Corrupt && k != fault.Unavailable && k != fault.Denied {
				t.Errorf("ended by %v", err)
			}
			for _, why := range e.ended { // and not because nothing came any more
				if !fault.Is(why, fault.Corrupt) {
					t.Errorf("the link ended by %v", why)
				}
			}
		})
	}
}
