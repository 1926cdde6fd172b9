package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// gRPC by itself would gather whole messages without a common bound: up to 33 MiB in each of 1,024 streams of a connection. So the messages of requests are
// read here, from gRPC's transport: the length comes first, is compared with the bound of its method, and is counted. A message longer than a piece waits for
// room once its first piece has come: a length alone reserves nothing.
//
//	transport ─5 bytes─▶ length ─▶ bound of the method ─▶ first piece ─▶ more: room of its kind, shared by peers ─▶ pieces, never long without one ─▶ message
//	                                                                    └ none: counted alone ───────────────────▶ message
//
// A message of inserts is counted as long as its memory is held. Messages of links need no room: a server has one link to each other server, which must never
// wait.

const (
	// requestMessageMax bounds a message of a call, other than inserts and links: longer requests come in chunks of chunkBytesMax, and a plan has evaluateMax.
	requestMessageMax = evaluateMax
	// shortMessage is the length up to which an insert need not wait for long ones.
	shortMessage = chunkBytesMax + 4<<10
	// arrivingPiece is how much of a message is read at a time, about a frame of HTTP/2: a connection carries frames of its streams by turns, so that a piece of each comes soon
	// on a slow connection, too. It is also the length up to which a message needs no room: pings, heartbeats and most reads pass whatever else arrives.
	arrivingPiece = 16 << 10
	// arrivingShare is the part of Settings.InsertBytesMax that long inserts may have while they arrive; two of the longest always may. Short ones have half as much.
	arrivingShare = 4
	// arrivingCalls is how many of the longest messages of other requests may arrive at a time.
	arrivingCalls = 16
	// arrivingWait is how long a message waits for room. Its stream waits with it, and so do its definitions.
	arrivingWait = 5 * time.Second
)

// arrivals counts the messages that are being received.
type arrivals struct {
	long, short, calls *sharedRoom   // of inserts, and of other requests
	held               budget.Held   // of all
	wait               time.Duration // for room; constant once the server serves
}

func newArrivals(s *Settings) arrivals {
	share := s.InsertBytesMax / arrivingShare
	return arrivals{
		long:  newSharedRoom(share, messageBytesMax),
		short: newSharedRoom(share/2, int64(pooledBytes(shortMessage))),
		calls: newSharedRoom(arrivingCalls*requestMessageMax, requestMessageMax),
		wait:  arrivingWait,
	}
}

// of returns the room for a message; nil: it needs none.
func (a *arrivals) of(n int, of arrivingKind) *sharedRoom {
	switch {
	case n <= arrivingPiece || of == ofLink:
		return nil
	case of == ofCall:
		return a.calls
	case n > shortMessage:
		return a.long
	}
	return a.short
}

// errNoRoom is the reason why a message is not kept. It is the answer to an insert of one record, as gateways send them; any other stream ends.
var errNoRoom = fault.Errorf(fault.Throttled, "messages that are being received have all the room there is; try again later")

// messageReader is the part of gRPC's transport that reads. A test checks that the gRPC in use has it.
type messageReader interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// arrivingStream is a stream of which the messages are counted as they arrive.
type arrivingStream struct {
	grpc.ServerStream
	s      *Server
	from   messageReader
	peer   string // shares room with all others of the same
	most   int
	kind   arrivingKind
	unread unreadCall

	sending sending
}

// arrivingKind is the kind of a call whose messages arrive.
type arrivingKind uint8

const (
	ofCall arrivingKind = iota
	ofInserts
	ofLink
)

// arriving reads a call's messages here. gRPC reads them where the transport is not its own.
func (s *Server) arriving(name string, ss grpc.ServerStream) grpc.ServerStream {
	from, ok := grpc.ServerTransportStreamFromContext(ss.Context()).(messageReader)
	if !ok {
		return ss
	}
	a := &arrivingStream{ServerStream: ss, s: s, from: from, peer: pacedOf(ss.Context()).peer, most: requestMessageMax}
	switch name {
	case methodInserts:
		a.most, a.kind = messageBytesMax, ofInserts
	case methodLink:
		a.most, a.kind = linkMessageMax, ofLink
	case methodSnapshots: // their own limit is longer
		return a
	}
	a.sending.max, a.sending.reads = s.sendMax, name == methodSelect
	return a
}

// pacedOf is the connection of a call; the zero pacedInfo where it has none.
func pacedOf(ctx context.Context) (info pacedInfo) {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		info, _ = p.AuthInfo.(pacedInfo)
	}
	return info
}

// RecvMsg implements grpc.ServerStream. A message of inserts is counted as long as it is held; of one without room the first record's header is received, with the reason. Errors
// are io.EOF at the end of the stream, TooLarge, Throttled, Corrupt, and those of the transport.
func (a *arrivingStream) RecvMsg(to any) (err error) {
	a.reads(true)
	defer func() {
		if err == nil { // else nothing comes any more
			a.reads(false)
		}
	}()
	m := to.(*message)
	n, err := a.length()
	if err != nil {
		return err
	}
	m.length = n
	wait := m.wait
	if wait == nil {
		wait = a.s.awaitPieces(a.Context())
		defer wait.stop()
	}
	in := &arrival{of: &a.s.arrivals, room: a.s.arrivals.of(n, a.kind), length: n, inserts: a.kind == ofInserts}
	left, err := a.gather(in, wait)
	if err == nil {
		m.data, m.release, err = in.whole()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoRoom) && in.inserts:
		return a.refuse(m, in, left, wait, err)
	}
	in.drop()
	return err
}

// length receives the length of the next message.
func (a *arrivingStream) length() (int, error) {
	var header [5]byte
	if err := a.from.ReadMessageHeader(header[:]); err != nil {
		return 0, err
	}
	n := int64(binary.BigEndian.Uint32(header[1:]))
	switch {
	case header[0] != 0:
		return 0, fault.Errorf(fault.Corrupt, "a message of a peer is compressed; peers compress what is in it")
	case n > int64(a.most):
		return 0, fault.Errorf(fault.TooLarge, "a message of %d bytes, at most %d travel", n, a.most)
	}
	return int(n), nil
}

// gather reads a message. left is how many of its bytes were not read. Errors are errNoRoom, and those of the transport.
func (a *arrivingStream) gather(in *arrival, wait *wait) (left int, err error) {
	if in.room == nil {
		return a.read(in.length, wait, in.keep)
	}
	left, err = a.read(arrivingPiece, wait, in.keep)
	left += in.length - arrivingPiece
	if err != nil {
		return left, err
	}
	if err := a.enter(in); err != nil {
		return left, err
	}
	refused := in.room.refusals()
	defer wait.holding(in)()
	return a.read(left, wait, func(piece mem.BufferSlice) error {
		if err := in.keep(piece); err != nil {
			return err
		}
		if wait.slow() && in.room.refusals() != refused {
			return fault.Annotate(errNoRoom, "a message of %d bytes, of which some have not come in %v", in.length, a.s.requestMax)
		}
		return nil
	})
}

// enter waits for room for a message of which the first piece has come. Errors are Canceled and errNoRoom.
func (a *arrivingStream) enter(in *arrival) error {
	a.reads(false)
	defer a.reads(true)
	has, err := in.room.enter(a.Context(), a.s.arrivals.wait, a.peer, in.needs())
	switch {
	case err == nil:
		in.enter(has)
	case a.Context().Err() != nil:
		return fault.Wrap(a.Context().Err(), fault.Canceled, "wait for room for a message of %d bytes", in.length)
	}
	return err
}

// refuse reads on to the end of a message of inserts without keeping it, so that its stream goes on.
func (a *arrivingStream) refuse(m *message, in *arrival, left int, wait *wait, why error) error {
	head := in.drop()
	_, err := a.read(left, wait, func(piece mem.BufferSlice) error {
		piece.Free()
		return nil
	})
	if err == nil {
		m.data, m.refused = mem.BufferSlice{mem.SliceBuffer(head)}, why
	}
	return err
}

// read reads n bytes in pieces, until keep has an error. left are the bytes that were not read.
func (a *arrivingStream) read(n int, wait *wait, keep func(piece mem.BufferSlice) error) (left int, err error) {
	for n > 0 {
		some, err := a.from.Read(min(n, arrivingPiece))
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return n, err
		}
		n -= some.Len()
		wait.came()
		if err := keep(some); err != nil {
			return n, err
		}
	}
	return 0, nil
}

// wait closes the connection of a call when nothing of a message has come for Server.requestMax: else half a message would hold its memory as long as its
// connection lives, since gRPC ends a wait only with its handler or its connection. Long before that, a message of which nothing comes loses its room to others
// that wait for some. It counts steps, not time: a pause of this process is one step.
type wait struct {
	s    *Server
	conn net.Conn // nil: none to close

	mu struct {
		sync.Mutex
		timer   *time.Timer
		holds   *arrival // nil: no room
		silent  int      // steps since bytes came
		steps   int      // since the wait began
		stopped bool
	}
}

const (
	// waitSteps is how many steps of a wait are Server.requestMax.
	waitSteps = 32
	// silentSteps is after how many without bytes a message loses its room, if others wait: two to four seconds, less than they wait.
	silentSteps = 2
)

// awaitPieces begins a wait, which the caller stops.
func (s *Server) awaitPieces(ctx context.Context) *wait {
	w := &wait{s: s, conn: pacedOf(ctx).conn}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.timer = time.AfterFunc(s.requestMax/waitSteps, w.step)
	return w
}

func (w *wait) step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.stopped {
		return
	}
	w.mu.steps++
	w.mu.silent++
	if in := w.mu.holds; in != nil && w.mu.silent >= silentSteps && in.room.wanted() {
		in.drop()
	}
	if w.mu.silent < waitSteps {
		w.mu.timer.Reset(w.s.requestMax / waitSteps)
		return
	}
	w.mu.stopped = true
	if w.conn != nil {
		go w.close()
	}
}

func (w *wait) close() {
	w.s.deps.Log.Info("connection closed, a request on it did not come", "peer", w.conn.RemoteAddr().String(), "waited", w.s.requestMax)
	_ = w.conn.Close()
}

// came notes that bytes came.
func (w *wait) came() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.silent = 0
}

// holding makes a message lose its room if nothing of it comes between now and the call of done.
func (w *wait) holding(in *arrival) (done func()) {
	set := func(in *arrival) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.mu.holds, w.mu.silent = in, 0
	}
	set(in)
	return func() { set(nil) }
}

// slow reports whether the wait began Server.requestMax ago or earlier.
func (w *wait) slow() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.steps >= waitSteps
}

func (w *wait) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.stopped = true
	w.mu.timer.Stop()
}

// ArrivingBytes is the memory of messages of requests that are being received, but those of links. One of inserts is counted as long as it is held.
func (s *Server) ArrivingBytes() int64 { return s.arrivals.held.Load() }

// OnArrivingGrowth registers f, which is called with the coming value of ArrivingBytes each time before it grows.
func (s *Server) OnArrivingGrowth(f func(to int64)) { s.arrivals.held.OnGrowth(f) }
