package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// receiving counts the bytes of requests from when they come until they are answered: Settings.RequestBytesMax bounds
// them all, and Settings.shareMax those of each class but maps, so that maps, which keep a cluster running, have half at least, and reads shut out no deletions.
// Requests of up to alwaysMax are counted, and never refused: pings, rows of administrators and most reads pass beside large ones.
type receiving struct {
	s      *Server
	class  requestClass
	taken  int64 // counted against bounds
	copied int64 // copies of the bytes as they came, which decode made: booked beside
}

// requestClass is the purpose of a request.
type requestClass uint8

const (
	reads    requestClass = iota // and look-ups: names and matchers
	orders                       // deletions, statistics, rows of the coordination store, questions for METADATA
	maps                         // METADATA files, their changes, and descriptions of metrics: all may be long
	classMax = maps
)

// alwaysMax is about what gRPC itself needs for a call.
const alwaysMax = 4 << 10

// shareMax bounds the requests of a class.
func (s *Settings) shareMax() int64 { return max(2*smallMax, s.RequestBytesMax/8) }

// take counts n more bytes before they are kept. The error is Throttled, or TooLarge for a request that is too long by itself; the bytes that it refuses are not
// counted.
func (r *receiving) take(n int) error {
	r.add(int64(n))
	most, held := r.s.settings.RequestBytesMax, r.s.requestBytes.Load()
	if share := r.s.settings.shareMax(); r.class != maps && held <= most {
		most, held = share, r.s.classBytes[r.class].Load()
	}
	if r.taken <= alwaysMax || held <= most {
		return nil
	}
	taken := r.taken
	r.add(-int64(n))
	if taken > most {
		return fault.Errorf(fault.TooLarge, "a request that needs more than the %d bytes of memory that this server has for requests of its kind; a larger storage.memory_bytes of the server gives it more", most)
	}
	return fault.Errorf(fault.Throttled, "requests of %d bytes are being received, the most there may be; try again later", most)
}

// add counts n more bytes, or -n fewer.
func (r *receiving) add(n int64) {
	r.taken += n
	r.s.requestBytes.Add(n)
	r.s.requestsHeld.Add(n)
	if r.class != maps {
		r.s.classBytes[r.class].Add(n)
	}
}

// requestShare is how many times Settings.SilenceMax may pass before the next part of a request.
const requestShare = 6

// awaited is a call of which each message must come in time: half a request would hold its part of the memory for requests as long as its connection lives, and
// those of eight callers keep all others out.
type awaited struct {
	receiver
	s   *Server
	ctx context.Context
}

// awaited limits the waits for the messages of a call's request.
func (s *Server) awaited(ss grpc.ServerStream) receiver {
	if whole, ok := ss.(*keptAnswer); ok { // its request has come
		return whole
	}
	return awaited{ss, s, ss.Context()}
}

// RecvMsg implements receiver.
func (a awaited) RecvMsg(m any) error {
	w := a.s.awaitPieces(a.ctx)
	defer w.stop()
	m.(*message).wait = w
	return a.receiver.RecvMsg(m)
}

// message receives the request of one evaluation, or of several.
func (r *receiving) message(from receiver) (request []byte, err error) {
	_, err = receiveMessage(from, evaluateMax, func(b []byte) error {
		if err := r.take(len(b)); err != nil {
			return err
		}
		request = append(request, b...)
		return nil
	})
	return request, err
}

// chunks receives a protobuf message of at most that many bytes, to the end of the stream.
func (r *receiving) chunks(from receiver, most int, m proto.Message) (got int, err error) {
	b, err := receiveBytes(from, most, r.take, m)
	if err == nil {
		err = r.decode(b, m)
	}
	return len(b), err
}

// decode decodes a protobuf message, of which the bytes are counted. The memory of its parts beside them is counted first: two bytes stand for an empty matcher, which
// needs a hundred times as many. The texts are copied out of b, which stays as it came until the request ends: the copy is booked here.
func (r *receiving) decode(b []byte, m proto.Message) error {
	if err := r.take(partsBytes(b, m.ProtoReflect().Descriptor())); err != nil {
		return err
	}
	r.copied += int64(len(b))
	r.s.requestsHeld.Add(int64(len(b)))
	return unmarshal(b, m)
}

// Memory of a part of a protobuf message beside its bytes, about, with its form in package peer.
const (
	messageCost = 160
	textCost    = 40
	numberCost  = 16
)

// partsBytes returns the bytes that the parts of a message need beside its own bytes once it is decoded. Of one that is malformed it counts those before the mistake.
func partsBytes(b []byte, of protoreflect.MessageDescriptor) (bytes int) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return bytes
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return bytes
		}
		value := b[:n]
		b = b[n:]
		if kind != protowire.BytesType {
			bytes += numberCost
			continue
		}
		value, _ = protowire.ConsumeBytes(value)
		switch field := of.Fields().ByNumber(number); {
		case field != nil && field.Message() != nil:
			bytes += messageCost + partsBytes(value, field.Message())
		case field != nil && field.IsPacked():
			bytes += numberCost * varints(value)
		default:
			bytes += textCost
		}
	}
	return bytes
}

// varints counts the numbers in b.
func varints(b []byte) (n int) {
	for _, c := range b {
		if c < 0x80 {
			n++
		}
	}
	return n
}

// end releases all bytes of the request.
func (r *receiving) end() {
	r.add(-r.taken)
	r.s.requestsHeld.Add(-r.copied)
	r.copied = 0
}

// RequestBytes is the memory of requests, other than inserts: as they came, and as they are decoded.
func (s *Server) RequestBytes() int64 { return s.requestsHeld.Load() }

// AnswerBytes is the memory of answers that are being sent, but those of selects and evaluations.
func (s *Server) AnswerBytes() int64 { return s.answerBytes.Load() }

// OnAnswerGrowth registers f, which is called with the coming value of AnswerBytes each time before it grows.
func (s *Server) OnAnswerGrowth(f func(to int64)) { s.answerBytes.OnGrowth(f) }

// OnRequestGrowth registers f, which is called with the coming value of RequestBytes each time before it grows.
func (s *Server) OnRequestGrowth(f func(to int64)) { s.requestsHeld.OnGrowth(f) }
