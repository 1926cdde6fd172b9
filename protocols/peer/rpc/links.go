package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// LinkSettings are numbers a user sets, and the hello of this side.
type LinkSettings struct {
	Self peer.LinkHello

	// FrameWindowBytes bounds the received frames of one link that are not released, within RoomBytes. Default 80 MiB; at least twice the longest frame.
	// Larger: more memory a server that this one shares partitions with.
	FrameWindowBytes int64
	// PieceWindowBytes bounds the pieces of segments of one link likewise, within PieceRoomBytes. Default 4 MiB; at least 512 KiB.
	PieceWindowBytes int64
	// PieceRoomBytes bounds those of all links together, beyond 512 KiB of each, and those that wait to be sent likewise. Default an eighth of
	// RoomBytes. Larger: segments pass faster over a long way, where there are many servers.
	PieceRoomBytes int64
	// RoomBytes bounds the received frames of all links together that are not released, beyond 1 MiB of each. Default 512 MiB; at least
	// twice the longest frame. It bounds those that wait to be sent likewise. Links with builds that do not ask for room have FrameWindowBytes each beside it.
	RoomBytes int64
	// SilenceAfter is how long nothing may be received before the other side is reported as silent. Default 500 ms.
	SilenceAfter time.Duration
	// GiveUpAfter is how long nothing may be received before the link is closed and dialled again. Default 2 s.
	GiveUpAfter time.Duration

	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: none
}

// linkFrameWindowMin lets the longest frame be sent while a part of the window is not released yet.
const linkFrameWindowMin = 2 * (peer.LinkFrameBytesMax + bodyCost)

func (s *LinkSettings) setDefaults() {
	setDefault(&s.FrameWindowBytes, 80<<20)
	setDefault(&s.PieceWindowBytes, 4<<20)
	setDefault(&s.RoomBytes, 512<<20)
	setDefault(&s.PieceRoomBytes, s.RoomBytes/pieceRoomShare)
	setDefault(&s.SilenceAfter, 500*time.Millisecond)
	setDefault(&s.GiveUpAfter, 4*s.SilenceAfter)
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate reports every mistake at once. Errors are Invalid.
func (s LinkSettings) Validate() error {
	s.setDefaults()
	var errs []error
	if s.Self.Server == "" || len(s.Self.Server) > linkServerBytesMax {
		errs = append(errs, fault.Errorf(fault.Invalid, "a link of a server with the id %q", s.Self.Server))
	}
	if s.FrameWindowBytes < linkFrameWindowMin || s.PieceWindowBytes < pieceWindowMin || max(s.FrameWindowBytes, s.PieceWindowBytes) > linkWindowMax {
		errs = append(errs, fault.Errorf(fault.Invalid, "windows of %d and %d bytes on a link", s.FrameWindowBytes, s.PieceWindowBytes))
	}
	if s.RoomBytes < linkFrameWindowMin {
		errs = append(errs, fault.Errorf(fault.Invalid, "room of %d bytes for all links, less than %d", s.RoomBytes, linkFrameWindowMin))
	}
	if s.PieceRoomBytes < pieceWindowMin {
		errs = append(errs, fault.Errorf(fault.Invalid, "room of %d bytes for the pieces of segments of all links, less than %d", s.PieceRoomBytes, pieceWindowMin))
	}
	if s.SilenceAfter < 20*time.Millisecond || s.GiveUpAfter < s.SilenceAfter {
		errs = append(errs, fault.Errorf(fault.Invalid, "a link silent after %v and given up after %v", s.SilenceAfter, s.GiveUpAfter))
	}
	return joinInvalid(errs)
}

// linkWindowMax bounds windows, so that sums of windows do not overflow.
const linkWindowMax = 1 << 40

// Links are the links of one server to all others. Both sides may dial: only the link dialled by the server with the lower id stays.
//
//	a dials b ──hello──▶ b        a < b: the link that a dialled stays, whichever came first
//	a ◀──hello── b dials a        a process that restarted, or dials again, replaces its older link
type Links struct {
	// Constant.
	settings LinkSettings
	handler  peer.LinkHandler
	metrics  *linkMetrics
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	running  sync.WaitGroup
	room     *linkRoom
	pieces   *sharedSendRoom // for pieces of segments that wait to be sent
	queues   *sharedSendRoom // for frames that wait to be sent, beyond the first bytes of each link
	held     budget.Held     // bodies that came and are not released, and those that are queued, with bodyCost each

	mu struct {
		sync.Mutex
		closed bool
		links  map[string]*link              // by the other server's id
		wanted map[string]context.CancelFunc // dialled by us
		// windows are those for pieces of segments, of servers that are wanted, and of those that have a link or greet this one.
		windows map[string]*pieceWindow
	}
}

// NewLinks makes the links of a server; there are none yet. Errors are Invalid.
func NewLinks(s LinkSettings, h peer.LinkHandler) (*Links, error) {
	s.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s.Self.Capabilities |= peer.CanAskRoom
	ls := &Links{settings: s, handler: h, room: newLinkRoom(s.RoomBytes), queues: newSharedSendRoom(s.RoomBytes, linkFrameWindowMin/2),
		pieces: newSharedSendRoom(s.PieceRoomBytes, peer.LinkPieceBytesMax+bodyCost)}
	ls.ctx, ls.stop = context.WithCancel(context.Background())
	ls.mu.links, ls.mu.wanted, ls.mu.windows = map[string]*link{}, map[string]context.CancelFunc{}, map[string]*pieceWindow{}
	ls.metrics = newLinkMetrics(s.Registerer, ls)
	return ls, nil
}

// Link returns the link to a server, if there is one.
func (ls *Links) Link(server string) (peer.Link, bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.mu.links[server]
	return l, l != nil
}

// HeldBytes is the memory of frames and pieces of segments of all links: of those that came and are not released, and of those that wait to be sent.
func (ls *Links) HeldBytes() int64 { return ls.held.Load() }

// OnHeldGrowth registers f, which is called with the coming value of HeldBytes each time before it grows.
func (ls *Links) OnHeldGrowth(f func(to int64)) { ls.held.OnGrowth(f) }

// Connect keeps a link to a server, calling it by p, until Disconnect or Close. A call with another Peer replaces the first.
func (ls *Links) Connect(server string, p *Peer) {
	ls.connect(server, func(ctx context.Context) (pipe, context.Context, context.CancelCauseFunc, error) {
		return p.openLink(ctx)
	})
}

// dialLink opens a pipe; cancel ends it.
type dialLink func(context.Context) (_ pipe, ctx context.Context, cancel context.CancelCauseFunc, err error)

func (ls *Links) connect(server string, dial dialLink) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.mu.closed || server == ls.settings.Self.Server {
		return
	}
	if end := ls.mu.wanted[server]; end != nil {
		end()
	}
	ctx, end := context.WithCancel(ls.ctx)
	ls.mu.wanted[server] = end
	ls.running.Go(func() { ls.keep(ctx, server, dial) })
}

// Disconnect ends the link to a server and stops dialling it.
func (ls *Links) Disconnect(server string) {
	ls.mu.Lock()
	end, l := ls.mu.wanted[server], ls.mu.links[server]
	delete(ls.mu.wanted, server)
	ls.dropWindowLocked(server)
	ls.mu.Unlock()
	if end != nil {
		end()
	}
	if l != nil {
		l.Close("it is not wanted any more")
	}
}

// Close ends all links and returns when no goroutine is left.
func (ls *Links) Close() {
	ls.mu.Lock()
	ls.mu.closed = true
	var all []*link
	for _, l := range ls.mu.links {
		all = append(all, l)
	}
	ls.mu.Unlock()
	ls.stop()
	for _, l := range all {
		l.Close("the server stops")
	}
	ls.running.Wait()
}

const (
	linkRetryFirst = 100 * time.Millisecond
	linkRetryMost  = 2 * time.Second
)

// keep dials a server whenever there is no link.
func (ls *Links) keep(ctx context.Context, server string, dial dialLink) {
	retry := linkRetryFirst
	for first := true; ctx.Err() == nil; first = false {
		if l, ok := ls.Link(server); ok {
			select {
			case <-l.(*link).done:
				retry = linkRetryFirst
			case <-ctx.Done():
				return
			}
			continue
		}
		if !first || ls.settings.Self.Server > server { // its own dialling comes first
			select {
			case <-ctx.Done():
				return
			case <-time.After(retry/2 + rand.N(retry)):
			}
			if _, ok := ls.Link(server); ok {
				continue
			}
		}
		if err := ls.dial(ctx, server, dial); err != nil && ctx.Err() == nil {
			ls.settings.Log.Debug("a server cannot be linked to", "server", server, "error", err, "retry", retry)
			ls.metrics.linkDials.WithLabelValues(kindLabel(err)).Inc()
			retry = min(linkRetryMost, retry*8/5)
			continue
		}
		retry = linkRetryFirst
	}
}

// dial makes a link and carries it to its end. An error means that there was none.
func (ls *Links) dial(ctx context.Context, server string, dial dialLink) error {
	p, lctx, cancel, err := dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { cancel(ctx.Err()) })
	defer stop()
	own, admitted := ls.greeting(server), false
	defer func() {
		if !admitted {
			ls.leaveWindow(server)
		}
	}()
	buf, _ := pooled(own.append(nil))
	if err := p.SendMsg(&message{data: mem.BufferSlice{buf}}); err != nil && !isEOF(err) {
		cancel(err)
		return ofStatus(err)
	}
	other, err := ls.greeted(lctx, p)
	if err == nil && other.Server != server {
		err = fault.Errorf(fault.Denied, "server %s was dialled, and %s answers", server, other.Server)
	}
	if err != nil {
		cancel(err)
		return err
	}
	l := newLink(lctx, cancel, ls, p, own, other, true)
	if err := ls.admit(l); err != nil {
		cancel(err)
		return err
	}
	admitted = true // carry leaves the window
	ls.metrics.linkDials.WithLabelValues("ok").Inc()
	ls.carry(l)
	return nil
}

// accept answers a server that dials, and returns when the link ends. name is the one in its certificate; "": it has none. The pipe must end when accept
// has returned.
func (ls *Links) accept(ctx context.Context, p pipe, name string) error {
	other, err := ls.greeted(ctx, p)
	if err == nil && name != "" && name != other.Server {
		err = fault.Errorf(fault.Denied, "a certificate of %s, and a link of %s", name, other.Server)
	}
	if err != nil {
		return err
	}
	lctx, cancel := context.WithCancelCause(ctx)
	own := ls.greeting(other.Server)
	l := newLink(lctx, cancel, ls, p, own, other, false)
	if err := ls.admit(l); err != nil {
		cancel(err)
		ls.leaveWindow(other.Server)
		return err
	}
	buf, _ := pooled(own.append(nil))
	if err := p.SendMsg(&message{data: mem.BufferSlice{buf}}); err != nil {
		cancel(err) // and receive returns the reason
	}
	go ls.carry(l) // counted by admit; a gRPC stream that we end is read to its end only when its handler has returned
	<-lctx.Done()
	if why := l.why(); why != nil {
		return why
	}
	return context.Cause(lctx)
}

// greeting is our hello to a server. It enters the server's window for pieces of segments, until leaveWindow.
func (ls *Links) greeting(server string) linkGreeting {
	return linkGreeting{LinkHello: ls.settings.Self, versionMin: linkOldest, versionMax: linkVersion,
		frameWindow: uint64(ls.settings.FrameWindowBytes), pieceWindow: uint64(ls.enterWindow(server))}
}

const (
	// pieceWindowLeast is the window for pieces that each link has: four of the longest.
	pieceWindowLeast = 4 * (peer.LinkPieceBytesMax + bodyCost)
	// pieceWindowMin is the least that a hello may promise.
	pieceWindowMin = 4 * peer.LinkPieceBytesMax
	// pieceRoomShare is the part of the room for frames that pieces have beside it.
	pieceRoomShare = 8
)

// pieceWindow is the window for pieces of segments that a server is given. It is promised in the hello and cannot be withdrawn.
type pieceWindow struct {
	bytes int64
	users int // links, and hellos that may become links: the window is free for others when none is left
}

// enterWindow returns the window of a server, which keeps it from one link to the next while it is wanted. Each call has its leaveWindow.
func (ls *Links) enterWindow(server string) int64 {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w := ls.mu.windows[server]; w != nil {
		w.users++
		return w.bytes
	}
	given, others := int64(0), 0
	for _, w := range ls.mu.windows {
		if w.bytes > pieceWindowLeast { // which each has beside the room
			given += w.bytes
		}
	}
	for other := range ls.mu.wanted {
		if ls.mu.windows[other] == nil && other != server {
			others++
		}
	}
	n := pieceWindowOf(ls.settings.PieceRoomBytes, ls.settings.PieceWindowBytes, given, 1+others+len(ls.mu.windows))
	ls.mu.windows[server] = &pieceWindow{bytes: n, users: 1}
	return n
}

// pieceWindowOf is the window of one of so many servers: a share of the room, as far as it is not given to others, and at least
// pieceWindowLeast, so that segments pass to and from each server, however many there are. So all windows together are at most the room and
// pieceWindowLeast for each server.
func pieceWindowOf(room, most, given int64, servers int) int64 {
	return max(min(room/int64(servers), room-given, most), pieceWindowLeast)
}

// leaveWindow ends what enterWindow began.
func (ls *Links) leaveWindow(server string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.mu.windows[server].users--
	ls.dropWindowLocked(server)
}

// dropWindowLocked frees the window of a server that has no link and is not wanted.
func (ls *Links) dropWindowLocked(server string) {
	if w := ls.mu.windows[server]; w != nil && w.users == 0 && ls.mu.wanted[server] == nil {
		delete(ls.mu.windows, server)
	}
}

// greetingShare is how many times GiveUpAfter the other side's hello may be late: a server that begins has more to do than to give a sign of life.
const greetingShare = 5

// greeted waits for the other side's hello, until ctx ends or greetingShare is over. After an error its goroutine lasts until the caller ends the pipe.
func (ls *Links) greeted(ctx context.Context, p pipe) (linkGreeting, error) {
	type greeted struct {
		h   linkGreeting
		err error
	}
	came := make(chan greeted, 1)
	go func() {
		h, err := receiveGreeting(p)
		came <- greeted{h, err}
	}()
	most := greetingShare * ls.settings.GiveUpAfter
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case g := <-came:
		return g.h, g.err
	case <-timer.C:
		return linkGreeting{}, fault.Errorf(fault.Unavailable, "the other server sent no hello for %v; the link is given up", most)
	case <-ctx.Done():
		return linkGreeting{}, context.Cause(ctx)
	}
}

func receiveGreeting(p pipe) (h linkGreeting, err error) {
	var m message
	if err := p.RecvMsg(&m); err != nil {
		if isEOF(err) {
			return h, fault.Errorf(fault.Unavailable, "the other server ended the link before it began")
		}
		return h, ofStatus(err)
	}
	buf := m.whole()
	defer buf.Free()
	r, rest, err := cutLinkRecord(buf.ReadOnlyData())
	if err == nil && (r.kind != linkHello || len(rest)+len(r.body) > 0) {
		err = fault.Errorf(fault.Corrupt, "a link begins with a record of type %d, not with a hello", r.kind)
	}
	if err == nil {
		h, err = decodeGreeting(r.head)
	}
	if err != nil {
		return h, err
	}
	return h, h.check()
}

// check refuses a server with an incompatible hello.
func (h *linkGreeting) check() error {
	switch {
	case h.versionMin > linkVersion || h.versionMax < linkOldest:
		return fault.Errorf(fault.Unavailable, "server %s speaks versions %d to %d of links, this one %d to %d: upgrade the older of the two",
			h.Server, h.versionMin, h.versionMax, linkOldest, linkVersion)
	case h.frameWindow < linkFrameWindowMin || h.frameWindow > linkWindowMax || h.pieceWindow < pieceWindowMin || h.pieceWindow > linkWindowMax:
		return fault.Errorf(fault.Corrupt, "server %s has windows of %d and %d bytes", h.Server, h.frameWindow, h.pieceWindow)
	}
	return nil
}

// errLinked refuses a second link between two servers.
var errLinked = fault.Errorf(fault.Stale, "the two servers are linked already")

// admit makes l the link to its server, unless an existing one stays. One that l replaces has ended when admit returns.
func (ls *Links) admit(l *link) error {
	for {
		if l.ctx.Err() != nil { // the other side has given it up and dialled again: that one must not have to yield
			return context.Cause(l.ctx)
		}
		ls.mu.Lock()
		old := ls.mu.links[l.other.Server]
		switch {
		case ls.mu.closed:
			ls.mu.Unlock()
			return errStopping
		case l.other.Server == ls.settings.Self.Server:
			ls.mu.Unlock()
			return fault.Errorf(fault.Denied, "server %s is linked to itself; two servers have one id", l.other.Server)
		case old == nil:
			ls.mu.links[l.other.Server] = l
			ls.running.Add(1)
			ls.mu.Unlock()
			return nil
		}
		ls.mu.Unlock()
		if old.why() == nil && !ls.yields(old, l) {
			return errLinked
		}
		old.Close("a newer one takes its place")
		select {
		case <-old.done: // its handler may be at work for long
		case <-l.ctx.Done():
		}
	}
}

// yields reports whether a link gives way to a newer one of the same two servers.
func (ls *Links) yields(old, l *link) bool {
	switch {
	case old.other.Boot != l.other.Boot || old.silent.Load():
		return true
	case old.dialed == l.dialed:
		return true // dialled again by the same side: it has closed the older one
	}
	return l.dialed == (ls.settings.Self.Server < l.other.Server) // the lower id's
}

// carry runs an admitted link to its end.
func (ls *Links) carry(l *link) {
	defer ls.running.Done()
	defer ls.leaveWindow(l.other.Server)
	log := ls.settings.Log.With("server", l.other.Server)
	log.Info("linked", "dialled", l.dialed, "boot", l.other.Boot, "capabilities", uint64(l.other.Capabilities))
	l.run()
	log.Info("link ended", "error", l.why(), "took", time.Since(l.began).Round(time.Millisecond))
}

// gone removes a link that has ended.
func (ls *Links) gone(l *link) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.mu.links[l.other.Server] == l {
		delete(ls.mu.links, l.other.Server)
	}
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// openLink opens a link's stream. It ends with ctx or cancel.
func (p *Peer) openLink(ctx context.Context) (pipe, context.Context, context.CancelCauseFunc, error) {
	l, err := p.enter()
	if err != nil {
		return nil, nil, nil, err
	}
	cs, end, err := p.open(ctx, l, methodLink)
	if err != nil {
		l.leave()
		return nil, nil, nil, p.fault(ctx, l, methodLink, err)
	}
	lctx, cancel := context.WithCancelCause(context.Background())
	var once sync.Once
	return cs, lctx, func(why error) {
		once.Do(func() {
			cancel(why)
			end(why)
			l.leave()
		})
	}, nil
}

// link serves a stream of a server that dials.
func (s *Server) link(ss grpc.ServerStream) error {
	if s.deps.Links == nil {
		return fault.Errorf(fault.Unavailable, "this server has no copies of partitions: it is linked to none")
	}
	name := ""
	if !s.settings.TLS.Insecure {
		id, err := callerOf(ss.Context())
		if err != nil {
			return err
		}
		name = id.Name
	}
	ctx, cancel := context.WithCancel(ss.Context())
	defer cancel()
	s.running.Go(func() {
		select {
		case <-s.stopping:
			cancel()
		case <-ctx.Done():
		}
	})
	return s.deps.Links.accept(ctx, ss, name)
}
