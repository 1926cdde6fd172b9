package rpc

import (
	"context"
	"errors"
	"io"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Look-ups travel on kept streams, too: opening a stream costs more than a short answer. A request is one message, and the last message of an answer says that it
// is the last, so a short answer is one message as well. Handlers and callers read and write as on a stream of their own:
//
//	caller ─ readKept ─▶ method, request ─▶ keptAnswer ─▶ the method's handler
//	keptRead ◀─ parts, the last one or an error ◀─ keptAnswer ◀─ SendMsg, return
//
// A request is one of those that only read, as it is asked again where the server ended the stream before it answered.

// keptRequestMax bounds a request. A longer one has a stream of its own, as it has to wait for room where it arrives.
const keptRequestMax = arrivingPiece - 1<<10

// readMethods are the methods of kept streams of reads, by their number.
var readMethods = [...]string{1: methodLabelNames, methodLabelValues, methodSelect, methodExemplars, methodGetMetadata, methodStagedTimes}

// readNumber is the number of a method; 0: it has none.
func readNumber(method string) int {
	for i, m := range readMethods {
		if m == method {
			return i
		}
	}
	return 0
}

// Kinds of messages of an answer.
const (
	readPart  = iota // others follow
	readLast         // the last part
	readError        // it failed: a google.rpc.Status
	readKinds
)

// readHeads are the first bytes of messages, by kind. They are shared, and never written.
var readHeads = [readKinds]mem.SliceBuffer{{readPart}, {readLast}, {readError}}

// keptRead is a read on a kept stream, as its caller receives the answer. It belongs to one goroutine.
type keptRead struct {
	p    *Peer
	l    *line
	ctx  context.Context
	st   *keptStream
	stop func() bool

	answered bool // something came: the request may not be sent again
	whole    bool // the answer has come to its end
	kept     bool // the stream is idle again, or another read has it
}

// readKept sends a request on a kept stream. Errors are gRPC's or ours, as they come, and errNotKept.
func (p *Peer) readKept(ctx context.Context, l *line, method string, q proto.Message) (*keptRead, error) {
	number := readNumber(method)
	if number == 0 || !l.keptReads.keeps(ctx) || proto.Size(q) > keptRequestMax {
		return nil, errNotKept
	}
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend([]byte{byte(number)}, q)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "encode %T", q)
	}
	c := &keptRead{p: p, l: l, ctx: ctx}
	if c.st, c.stop, err = p.keptStream(ctx, l, &l.keptReads); err != nil {
		return nil, err
	}
	p.settings.Metrics.sent.WithLabelValues(method).Add(float64(len(b) - 1))
	if err := sendBuffer(c.st.cs, mem.SliceBuffer(b)); err != nil && !errors.Is(err, io.EOF) { // at EOF the receiver has the reason
		return nil, c.leave(err)
	}
	return c, nil
}

// RecvMsg implements receiver: parts of the answer, and then io.EOF.
func (c *keptRead) RecvMsg(to any) error {
	if c.whole {
		return io.EOF
	}
	m := to.(*message)
	switch err := c.st.cs.RecvMsg(m); {
	case errors.Is(err, io.EOF):
		return fault.Errorf(fault.Unavailable, "%s: a stream of reads ended before an answer", c.p.addr)
	case err != nil:
		return err
	}
	kind, err := cutHead(m)
	if err != nil {
		return err
	}
	if c.answered, c.whole = true, kind != readPart; c.whole && c.stop() {
		c.kept = true
		c.p.keep(c.l, &c.l.keptReads, c.st) // now: a select's caller ends its context before it closes the set
	}
	if kind == readError {
		return c.refusal(m)
	}
	return nil
}

// cutHead cuts the first byte of a message of an answer off. Errors are Corrupt; then the message is freed.
func cutHead(m *message) (kind byte, err error) {
	for len(m.data) > 0 && m.data[0].Len() == 0 {
		m.data[0].Free()
		m.data = m.data[1:]
	}
	if len(m.data) > 0 {
		kind = m.data[0].ReadOnlyData()[0]
		head, rest := mem.SplitUnsafe(m.data[0], 1)
		head.Free()
		m.data[0] = rest
		if kind < readKinds {
			return kind, nil
		}
	}
	m.data.Free()
	m.data = nil
	return 0, fault.Errorf(fault.Corrupt, "a message of a read's answer is malformed")
}

// refusal is the error that an answer ends with. That the server does not know the method is errNotKept: it is asked for it on a stream of its own, and may not know it there either.
func (c *keptRead) refusal(m *message) error {
	buf := m.whole()
	defer buf.Free()
	var s spb.Status
	if err := proto.Unmarshal(buf.ReadOnlyData(), &s); err != nil {
		return fault.Wrap(err, fault.Corrupt, "the error of a read")
	}
	switch err := status.FromProto(&s).Err(); {
	case err == nil:
		return fault.Errorf(fault.Corrupt, "a read failed without an error")
	case errors.Is(ofStatus(err), errOlder):
		return errNotKept
	default:
		return err
	}
}

// leave ends the read after err, nil where there was none, and returns the caller's error, which may be errNotKept. Unless the answer was whole the stream ends.
func (c *keptRead) leave(err error) error {
	if c.kept {
		return err
	}
	c.stop()
	c.st.end(nil)
	if err == nil || c.answered || c.ctx.Err() != nil || c.l.ctx.Err() != nil {
		return err
	}
	return c.l.keptReads.failed(c.st, err)
}

// exchangeKept is exchange on a kept stream. Errors are errNotKept, too.
func (p *Peer) exchangeKept(ctx context.Context, l *line, method string, q proto.Message, take func(int) error, a proto.Message) error {
	c, err := p.readKept(ctx, l, method, q)
	if err != nil {
		return err
	}
	got, err := receiveChunks(c, answerBytesMax, take, a)
	p.settings.Metrics.received.WithLabelValues(method).Add(float64(got))
	return c.leave(err)
}

// keptReads answers one read after the other, until the caller ends the stream or the server stops.
func (s *Server) keptReads(ss grpc.ServerStream) error { return s.serveKept(ss, s.answerReads) }

// answerReads is answerKept of reads. A read that fails does not end the stream, as its error is its answer.
func (s *Server) answerReads(ss grpc.ServerStream, k *keptHandler) error {
	for {
		a, err := receiveRead(ss)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return received(ss.Context(), err)
		case !k.begin():
			a.request.Free()
			return errStopping
		}
		a.ServerStream = ss
		if err := a.end(s.answerRead(a)); err != nil {
			return received(ss.Context(), err)
		}
		if !k.end() {
			return errStopping
		}
	}
}

// answerRead has the method's handler answer.
func (s *Server) answerRead(a *keptAnswer) error {
	if a.method == "" { // of a later build
		return status.Error(codes.Unimplemented, "no such read")
	}
	return toStatus(s.handle(a.method, a, s.handlers[a.method]))
}

// receiveRead receives a request. Errors are io.EOF, Corrupt, TooLarge, and those of the transport.
func receiveRead(from receiver) (*keptAnswer, error) {
	var m message
	if err := from.RecvMsg(&m); err != nil {
		return nil, err
	}
	buf := m.whole()
	switch n := buf.Len(); {
	case n == 0:
		buf.Free()
		return nil, fault.Errorf(fault.Corrupt, "a read without a method")
	case n > keptRequestMax+1:
		buf.Free()
		return nil, fault.Errorf(fault.TooLarge, "a read of %d bytes, at most %d travel on a kept stream", n-1, keptRequestMax)
	}
	number, rest := mem.SplitUnsafe(buf, 1)
	defer number.Free()
	a := &keptAnswer{request: mem.BufferSlice{rest}}
	if i := int(number.ReadOnlyData()[0]); i > 0 && i < len(readMethods) {
		a.method = readMethods[i]
	}
	return a, nil
}

// keptAnswer is a read on a kept stream, as its handler sees it: a stream with one message and its end. A part is held back until it is known whether another follows. It belongs to one
// goroutine.
type keptAnswer struct {
	grpc.ServerStream
	method  string          // "": not known
	request mem.BufferSlice // nil: it was received
	held    mem.BufferSlice // nil: none
	ended   bool            // its last part was sent
}

// methodOf is the method that a stream's handler is called for.
func methodOf(ss grpc.ServerStream) string {
	if a, ok := ss.(*keptAnswer); ok {
		return a.method
	}
	name, _ := grpc.MethodFromServerStream(ss)
	return name[len(fullMethod("")):]
}

// RecvMsg implements grpc.ServerStream.
func (a *keptAnswer) RecvMsg(to any) error {
	if a.request == nil {
		return io.EOF
	}
	to.(*message).data, a.request = a.request, nil
	return nil
}

// SendMsg implements grpc.ServerStream.
func (a *keptAnswer) SendMsg(part any) error {
	m := part.(*message)
	next := m.data
	m.data = nil
	if a.held != nil {
		held := a.held
		a.held = nil
		if err := a.send(readPart, held); err != nil {
			next.Free()
			return err
		}
	}
	if a.ended = m.last; a.ended {
		return a.send(readLast, next)
	}
	a.held = next
	return nil
}

// end sends the rest of the answer after the handler returned a status or nil. Errors are those of the stream.
func (a *keptAnswer) end(outcome error) error {
	held := a.held
	a.request.Free()
	a.request, a.held = nil, nil
	switch {
	case a.ended:
		held.Free()
		return outcome // the handler's own send failed, if it is one
	case outcome == nil:
		return a.send(readLast, held)
	}
	held.Free()
	b, err := proto.Marshal(status.Convert(outcome).Proto())
	if err != nil {
		return fault.Wrap(err, fault.Internal, "the error of a read")
	}
	return a.send(readError, mem.BufferSlice{mem.SliceBuffer(b)})
}

func (a *keptAnswer) send(kind int, part mem.BufferSlice) error {
	data := make(mem.BufferSlice, 0, len(part)+1)
	return a.ServerStream.SendMsg(&message{data: append(append(data, readHeads[kind]), part...)})
}
