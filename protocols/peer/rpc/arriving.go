package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// gRPC gathers a message until it is whole, of up to 33 MiB in each of 1,024 streams of a connection, and asks for no permission. So the messages of requests are read here,
// from gRPC's transport: the length comes first, is held against the bound of its method, and is counted. A long insert waits a while for room before its bytes are asked
// for; another long message has room of its own, and is refused where there is none.
//
//	transport ─5 bytes─▶ length ─▶ bound of the method ─▶ long: room of all long ones ─▶ pieces, never long without one ─▶ message
//	                                                     └ short: counted alone ───────┘
//
// An insert is counted until all that is in its message is done or admitted. Links are read by gRPC itself: a server has one link to each other, which must never wait.

const (
	// requestMessageMax bounds a message of a call, other than inserts and links: longer requests come in chunks of chunkBytesMax, and a plan has evaluateMax.
	requestMessageMax = evaluateMax
	// shortMessage is the length up to which a message needs no room.
	shortMessage = chunkBytesMax + 4<<10
	// arrivingPiece is how much of a message is read at a time, about a frame of HTTP/2: a connection carries frames of its streams by turns, so that a piece of each comes soon
	// on a slow connection, too.
	arrivingPiece = 16 << 10
	// arrivingShare is the part of Settings.InsertBytesMax that long inserts may have while they arrive; two of the longest always may.
	arrivingShare = 4
	// arrivingCalls is how many long messages of other requests may arrive at a time.
	arrivingCalls = 16
	// arrivingWait is how long an insert waits for room. Its stream waits with it, and so do its definitions.
	arrivingWait = 5 * time.Second
)

// arrivals counts the messages that are being received.
type arrivals struct {
	room    *semaphore.Weighted // of long inserts
	calls   *semaphore.Weighted // of other long messages, which do not wait: a semaphore refuses them while any waits
	held    budget.Held         // of all
	wait    time.Duration       // of a long insert for room; constant once the server serves
	refused atomic.Int64        // inserts that waited so long
}

func newArrivals(s *Settings) arrivals {
	return arrivals{
		room:  semaphore.NewWeighted(max(2*messageBytesMax, s.InsertBytesMax/arrivingShare)),
		calls: semaphore.NewWeighted(arrivingCalls * requestMessageMax),
		wait:  arrivingWait,
	}
}

// errNoRoom is the reason why a long message of inserts is not kept. Where it is one record, as gateways send it, that is answered; else its stream ends.
var errNoRoom = fault.Errorf(fault.Throttled, "long inserts that are being received have all the room there is; try again later")

// messageReader is the part of gRPC's transport that reads. A test holds it against the version of gRPC that is used.
type messageReader interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// arrivingStream is a stream of which the messages are counted as they arrive.
type arrivingStream struct {
	grpc.ServerStream
	s       *Server
	from    messageReader
	most    int
	inserts bool // a message that is long waits for room; else it is refused
}

// arriving has a call's messages read here. Of a transport that gRPC does not serve itself they are read by gRPC.
func (s *Server) arriving(name string, ss grpc.ServerStream) grpc.ServerStream {
	from, ok := grpc.ServerTransportStreamFromContext(ss.Context()).(messageReader)
	if !ok || name == methodLink {
		return ss
	}
	if name == methodInserts {
		return &arrivingStream{ss, s, from, messageBytesMax, true}
	}
	return &arrivingStream{ss, s, from, requestMessageMax, false}
}

// RecvMsg implements grpc.ServerStream. A message of inserts is counted until it is done; of one without room the first record's header is received, with the reason. Errors
// are io.EOF at the end of the stream, TooLarge, Throttled, Corrupt, and those of the transport.
func (a *arrivingStream) RecvMsg(to any) error {
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
	left := n
	release, err := a.enter(n)
	if err == nil {
		left, err = a.gather(m, n, wait)
	}
	if errors.Is(err, errNoRoom) {
		return a.refuse(m, left, wait, release, err)
	}
	if err != nil {
		m.data.Free()
		m.data = nil
	}
	if err == nil && a.inserts {
		m.release = release
	} else {
		release()
	}
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

// enter counts a message before it is read. Errors are Canceled and Throttled; release is never nil.
func (a *arrivingStream) enter(length int) (release func(), err error) {
	all, n := &a.s.arrivals, int64(length)
	room := all.calls
	switch {
	case n <= shortMessage:
		room = nil
	case a.inserts:
		room = all.room
		err = a.awaitRoom(n)
	case !room.TryAcquire(n):
		err = fault.Errorf(fault.Throttled, "there is no room for a message of %d bytes beside those that are being received; try again later", n)
	}
	if err != nil {
		return func() {}, err
	}
	all.held.Add(n)
	return func() {
		all.held.Add(-n)
		if room != nil {
			room.Release(n)
		}
	}, nil
}

// awaitRoom waits for room for a long insert. Errors are Canceled and errNoRoom.
func (a *arrivingStream) awaitRoom(n int64) error {
	ctx, stop := context.WithTimeout(a.Context(), a.s.arrivals.wait)
	defer stop()
	err := a.s.arrivals.room.Acquire(ctx, n)
	switch {
	case err == nil:
		return nil
	case a.Context().Err() != nil:
		return fault.Wrap(err, fault.Canceled, "wait for room for a message of %d bytes", n)
	}
	a.s.arrivals.refused.Add(1)
	return fault.Annotate(errNoRoom, "a message of %d bytes", n)
}

// gather reads a message. One of inserts is read into one buffer: in the transport's own it would be copied once more when it is whole, and be there twice. A long one ends with
// errNoRoom if it is not whole after Server.requestMax and another one found no room since it began. left is how many of its bytes were not read.
func (a *arrivingStream) gather(m *message, n int, wait *wait) (left int, err error) {
	if !a.inserts || n <= arrivingPiece {
		return a.read(n, wait, func(piece mem.BufferSlice) error {
			m.data = append(m.data, piece...)
			return nil
		})
	}
	refused := a.s.arrivals.refused.Load()
	buf, data := poolBuffer(n)
	m.data = mem.BufferSlice{buf}
	return a.read(n, wait, func(piece mem.BufferSlice) error {
		data = data[piece.CopyTo(data):]
		piece.Free()
		if n > shortMessage && len(data) > 0 && wait.slow() && a.s.arrivals.refused.Load() != refused {
			return fault.Annotate(errNoRoom, "a message of %d bytes, of which %d have not come in %v", n, len(data), a.s.requestMax)
		}
		return nil
	})
}

// refuse reads on to the end of a message without keeping it, so that its stream goes on.
func (a *arrivingStream) refuse(m *message, left int, wait *wait, release func(), why error) (err error) {
	defer func() {
		if err != nil {
			m.data = nil
		}
	}()
	var head []byte
	if m.data != nil {
		head = append(head, m.data[0].ReadOnlyData()[:recordLen]...)
		m.data.Free()
	}
	release()
	_, err = a.read(left, wait, func(piece mem.BufferSlice) error {
		for _, b := range piece {
			head = append(head, b.ReadOnlyData()[:min(b.Len(), recordLen-len(head))]...)
		}
		piece.Free()
		return nil
	})
	m.data, m.refused = mem.BufferSlice{mem.SliceBuffer(head)}, why
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

// wait closes the connection of a call when nothing of a message has come for Server.requestMax: half a message would hold its memory as long as its connection lives, and
// gRPC ends a wait only with its handler or its connection. It counts steps, so that a time in which this process did not run is one of them.
type wait struct {
	s    *Server
	conn net.Conn // nil: none to close

	mu struct {
		sync.Mutex
		timer   *time.Timer
		silent  int // steps since bytes came
		steps   int // since the wait began
		stopped bool
	}
}

// waitSteps is how many steps of a wait are Server.requestMax.
const waitSteps = 8

// awaitPieces begins a wait, which the caller stops.
func (s *Server) awaitPieces(ctx context.Context) *wait {
	w := &wait{s: s}
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(pacedInfo); ok {
			w.conn = info.conn
		}
	}
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
	if w.mu.silent++; w.mu.silent < waitSteps {
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

// ArrivingBytes is the memory of messages of requests that are being received, but those of links. One of inserts is counted until it is done.
func (s *Server) ArrivingBytes() int64 { return s.arrivals.held.Load() }

// OnArrivingGrowth has f called with the coming value of ArrivingBytes each time before it grows.
func (s *Server) OnArrivingGrowth(f func(to int64)) { s.arrivals.held.OnGrowth(f) }
