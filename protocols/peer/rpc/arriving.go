package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// gRPC gathers a message until it is whole, of up to 33 MiB in each of 1,024 streams of a connection, and asks for no permission. So the messages of requests are read here,
// from gRPC's transport: the length comes first, is held against the bound of its method, and is counted; a long insert waits for room before its bytes are asked for, and
// another long message is refused where there is none.
//
//	transport ─5 bytes─▶ length ─▶ bound of the method ─▶ long: room of all long ones ─▶ pieces, each in time ─▶ message
//	                                                     └ short: counted alone ───────┘
//
// Links are read by gRPC itself: a server has one link to each other, which must never wait.

const (
	// requestMessageMax bounds a message of a call, other than inserts and links: longer requests come in chunks of chunkBytesMax, and a plan has evaluateMax.
	requestMessageMax = evaluateMax
	// shortMessage is the length up to which a message needs no room.
	shortMessage = chunkBytesMax + 4<<10
	// arrivingPiece is how much of a message is read at a time, each in requestMax.
	arrivingPiece = 1 << 20
	// arrivingShare is the part of Settings.InsertBytesMax that long messages may have while they arrive; two of the longest always may.
	arrivingShare = 4
)

// arrivals counts the messages that are being received.
type arrivals struct {
	room *semaphore.Weighted // of long ones
	held budget.Held         // of all
}

func newArrivals(s *Settings) arrivals {
	return arrivals{room: semaphore.NewWeighted(max(2*messageBytesMax, s.InsertBytesMax/arrivingShare))}
}

// messageReader is the part of gRPC's transport that reads. A test holds it against the version of gRPC that is used.
type messageReader interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// arrivingStream is a stream of which the messages are counted as they arrive.
type arrivingStream struct {
	grpc.ServerStream
	s     *Server
	from  messageReader
	most  int
	waits bool // for room, a message that is long; else it is refused
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

// RecvMsg implements grpc.ServerStream. Errors are io.EOF at the end of the stream, TooLarge, Throttled, Corrupt, and those of the transport.
func (a *arrivingStream) RecvMsg(m any) error {
	var header [5]byte
	if err := a.from.ReadMessageHeader(header[:]); err != nil {
		return err
	}
	n := int64(binary.BigEndian.Uint32(header[1:]))
	switch {
	case header[0] != 0:
		return fault.Errorf(fault.Corrupt, "a message of a peer is compressed; peers compress what is in it")
	case n > int64(a.most):
		return fault.Errorf(fault.TooLarge, "a message of %d bytes, at most %d travel", n, a.most)
	}
	if n > shortMessage {
		if err := a.enter(n); err != nil {
			return err
		}
		defer a.s.arrivals.room.Release(n)
	}
	a.s.arrivals.held.Add(n)
	defer a.s.arrivals.held.Add(-n)
	data, err := a.read(int(n))
	if err != nil {
		return err
	}
	m.(*message).data = data
	return nil
}

// enter acquires room for a long message. Errors are Canceled and Throttled.
func (a *arrivingStream) enter(n int64) error {
	switch room := a.s.arrivals.room; {
	case a.waits:
		return fault.Wrap(room.Acquire(a.Context(), n), fault.Canceled, "wait for room for a message of %d bytes", n)
	case !room.TryAcquire(n):
		return fault.Errorf(fault.Throttled, "there is no room for a message of %d bytes beside those that are being received; try again later", n)
	}
	return nil
}

// read reads a message, each piece of it in time: one that stopped within would keep its room as long as its connection lives.
func (a *arrivingStream) read(n int) (data mem.BufferSlice, err error) {
	for n > 0 {
		piece := min(n, arrivingPiece)
		stop := a.s.closeLater(a.Context())
		some, err := a.from.Read(piece)
		stop()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			data.Free()
			return nil, err
		}
		data = append(data, some...)
		n -= piece
	}
	return data, nil
}

// closeLater closes the connection of a call if the next part of its request has not come within requestMax, unless stop is called before.
func (s *Server) closeLater(ctx context.Context) (stop func()) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return func() {}
	}
	info, ok := p.AuthInfo.(pacedInfo)
	if !ok {
		return func() {}
	}
	late := time.AfterFunc(s.requestMax, func() {
		s.deps.Log.Info("connection closed, a request on it did not come", "peer", info.conn.RemoteAddr().String(), "waited", s.requestMax)
		_ = info.conn.Close()
	})
	return func() { late.Stop() }
}

// ArrivingBytes is the memory of messages of requests that are being received, but those of links.
func (s *Server) ArrivingBytes() int64 { return s.arrivals.held.Load() }

// OnArrivingGrowth has f called with the coming value of ArrivingBytes each time before it grows.
func (s *Server) OnArrivingGrowth(f func(to int64)) { s.arrivals.held.OnGrowth(f) }
