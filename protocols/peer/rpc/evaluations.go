package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
)

// Several evaluations of one query travel as one request: one message with all plans and selects, and records of all answers, in messages that they
// share. A small evaluation costs less than the stream that carries it. FORMAT.md draws both.

const (
	evaluationsVersion = 1
	// answerGathered is from how many bytes on gathered records are sent. A longer one travels by itself.
	answerGathered = 32 << 10
	// answerAge is for how long records of evaluations that ended wait for those of others.
	answerAge = time.Millisecond
)

// Kinds of records.
const (
	answerMessage = iota // of the answer of an evaluation
	answerEnd            // it has ended
	answerError          // it has failed: a google.rpc.Status
	answerKinds
)

var _ peer.Evaluations = (*Peer)(nil)

// EvaluateAll implements peer.Evaluations. A server of an older build is asked for one evaluation at a time.
func (p *Peer) EvaluateAll(ctx context.Context, all []*peer.Evaluation) {
	a := answers{open: make([]*peer.Evaluation, len(all)), left: len(all)}
	copy(a.open, all)
	request, fits := appendEvaluations(nil, all)
	if !fits {
		p.evaluateEach(ctx, all)
		return
	}
	err := p.evaluations(ctx, request, &a)
	if errors.Is(err, errOlder) {
		p.evaluateEach(ctx, all)
		return
	}
	if err == nil && a.left > 0 {
		err = a.endedEarly(p.addr)
	}
	a.endAll(err)
}

// evaluateEach asks for each evaluation by itself.
func (p *Peer) evaluateEach(ctx context.Context, all []*peer.Evaluation) {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, e := range all {
		g.Go(func() error {
			e.End(p.Evaluate(ctx, e.Select, e.Request, e.Give))
			return nil
		})
	}
	_ = g.Wait()
}

// evaluations sends a request and hands out its answers.
func (p *Peer) evaluations(ctx context.Context, request []byte, a *answers) (err error) {
	defer func() { p.settings.Metrics.calls.WithLabelValues(methodEvaluations, kindLabel(err)).Inc() }()
	l, err := p.enter()
	if err != nil {
		return err
	}
	defer l.leave()
	if l.kept.keeps(ctx) {
		if err := p.askKept(ctx, l, request, a); !errors.Is(err, errNotKept) {
			return p.fault(ctx, l, methodEvaluations, err)
		}
	}
	cs, cancel, err := p.openAs(ctx, l, grpc.StreamDesc{StreamName: methodEvaluations, ServerStreams: true}) // one message: its end is the request's
	if err == nil {
		defer cancel(nil)
		err = p.receiveAnswers(cs, request, a, false)
	}
	return p.fault(ctx, l, methodEvaluations, err)
}

// receiveAnswers returns nil at the end of the stream, or, if the stream is kept or the server may go on, as soon as no evaluation is left. A kept stream that
// ends before that is Unavailable.
func (p *Peer) receiveAnswers(cs grpc.ClientStream, request []byte, a *answers, kept bool) error {
	buf, _ := pooled(request)
	if err := sendBuffer(cs, buf); err != nil && !errors.Is(err, io.EOF) { // at EOF the receiver has the reason
		return err
	}
	p.settings.Metrics.sent.WithLabelValues(methodEvaluations).Add(float64(len(request)))
	received := p.settings.Metrics.received.WithLabelValues(methodEvaluations)
	for {
		n, err := receiveMessage(cs, messageBytesMax, func(b []byte) error { return decodeAnswers(b, a.take) })
		received.Add(float64(n))
		switch {
		case errors.Is(err, io.EOF) && kept:
			return a.endedEarly(p.addr)
		case errors.Is(err, io.EOF), err == nil && a.left == 0 && (kept || a.refused):
			return nil
		case err != nil:
			return err
		}
	}
}

// answers hands out the answers to evaluations.
type answers struct {
	open    []*peer.Evaluation // by number; nil: it has ended
	left    int                // that have not
	refused bool               // some were ended here: the server may have more
	// answered says that a record came: the request may not be sent again.
	answered bool
}

// take decodes a record. Errors are Corrupt.
func (a *answers) take(of, kind int, b []byte) error {
	a.answered = true
	if of >= len(a.open) {
		return fault.Errorf(fault.Corrupt, "an answer to evaluation %d of %d", of, len(a.open))
	}
	e := a.open[of]
	if e == nil {
		return nil // it was ended here
	}
	switch kind {
	case answerMessage:
		if err := e.Give(b); err != nil {
			a.refused = true
			a.end(of, err)
		}
	case answerEnd:
		a.end(of, nil)
	default:
		var s spb.Status
		if err := proto.Unmarshal(b, &s); err != nil {
			return fault.Wrap(err, fault.Corrupt, "the error of an evaluation")
		}
		err := status.FromProto(&s).Err()
		if err == nil {
			return fault.Errorf(fault.Corrupt, "an evaluation failed without an error")
		}
		a.end(of, ofStatus(err))
	}
	return nil
}

func (a *answers) end(of int, err error) {
	a.open[of].End(err)
	a.open[of] = nil
	a.left--
}

func (a *answers) endAll(err error) {
	for i, e := range a.open {
		if e != nil {
			a.end(i, err)
		}
	}
}

// appendEvaluations appends a request; fits is false if it would be too long.
func appendEvaluations(b []byte, all []*peer.Evaluation) (_ []byte, fits bool) {
	if len(all) > peer.EvaluationsMax {
		return nil, false
	}
	b = append(b, evaluationsVersion)
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, e := range all {
		b = binary.AppendUvarint(b, uint64(len(e.Request)))
		b = append(b, e.Request...)
		q := toSelect(e.Select)
		b = binary.AppendUvarint(b, uint64(proto.Size(q)))
		var err error
		if b, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(b, q); err != nil || len(b) > evaluateMax {
			return nil, false
		}
	}
	return b, true
}

// decodeMessage decodes a protobuf message. It is unmarshal, or books the message's memory first.
type decodeMessage func(b []byte, m proto.Message) error

// decodeEvaluations reads a request; the plans lie in it. Errors are Corrupt, Invalid, and those of decode.
func decodeEvaluations(b []byte, decode decodeMessage) (all []*peer.Evaluation, err error) {
	if len(b) == 0 {
		return nil, fault.Errorf(fault.Corrupt, "a request without evaluations")
	}
	if b[0] != evaluationsVersion {
		return nil, fault.Errorf(fault.Invalid, "a request for evaluations of version %d, this build knows %d", b[0], evaluationsVersion)
	}
	n, b, good := cutUvarint(b[1:])
	if !good || n == 0 || n > peer.EvaluationsMax {
		return nil, fault.Errorf(fault.Corrupt, "a request for %d evaluations, at most %d", n, peer.EvaluationsMax)
	}
	for range n {
		e := &peer.Evaluation{}
		var selected []byte
		if e.Request, b, good = cutBytes(b); good {
			selected, b, good = cutBytes(b)
		}
		if !good {
			return nil, fault.Errorf(fault.Corrupt, "evaluation %d of %d is cut off", len(all), n)
		}
		var q peerpb.Select
		if err := decode(selected, &q); err != nil {
			return nil, fault.Annotate(err, "the selector of an evaluation")
		}
		if e.Select, err = ofSelect(&q); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	evaluated := len(all)
	for _, e := range all {
		if columns.AsksForRows(e.Request) { // they are few, and leave the processors to evaluations
			evaluated--
		}
	}
	for _, e := range all {
		e.Select.Beside = max(0, evaluated-1)
	}
	if len(b) > 0 {
		return nil, fault.Errorf(fault.Corrupt, "%d bytes behind %d evaluations", len(b), n)
	}
	return all, nil
}

func appendAnswer(b []byte, of, kind int, data []byte) []byte {
	return append(appendAnswerHead(b, of, kind, len(data)), data...)
}

func appendAnswerHead(b []byte, of, kind, bytes int) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(of)<<2|uint64(kind)), uint64(bytes))
}

// decodeAnswers passes on the records of a message. Errors are Corrupt, and those of take.
func decodeAnswers(b []byte, take func(of, kind int, data []byte) error) error {
	for len(b) > 0 {
		head, rest, ok := cutUvarint(b)
		var data []byte
		if ok {
			data, rest, ok = cutBytes(rest)
		}
		if of, kind := head>>2, int(head&3); !ok || of >= peer.EvaluationsMax || kind >= answerKinds || kind == answerEnd && len(data) > 0 {
			return fault.Errorf(fault.Corrupt, "a record of an answer to evaluations is malformed")
		} else if err := take(int(of), kind, data); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func cutUvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}

// cutBytes cuts off bytes that are preceded by their length.
func cutBytes(b []byte) (data, rest []byte, ok bool) {
	n, b, ok := cutUvarint(b)
	if !ok || n > math.MaxInt32 || int(n) > len(b) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}

// evaluations answers one request.
func (s *Server) evaluations(ss grpc.ServerStream) error {
	in := receiving{s: s, class: reads}
	defer in.end()
	request, err := s.evaluationsRequest(s.awaited(ss), &in)
	if err == nil {
		err = s.answerEvaluations(ss, request, in.decode)
	}
	return received(ss.Context(), err)
}

// evaluationsRequest receives a request.
func (s *Server) evaluationsRequest(from receiver, in *receiving) (request []byte, err error) {
	request, err = in.message(from)
	s.metrics.received.WithLabelValues(methodEvaluations).Add(float64(len(request)))
	return request, err
}

// answerEvaluations answers several evaluations, as many at a time as there are processors.
func (s *Server) answerEvaluations(ss grpc.ServerStream, request []byte, decode decodeMessage) error {
	all, err := decodeEvaluations(request, decode)
	if err != nil {
		return err
	}
	out := &answerWriter{to: ss, sent: func(n int) { s.metrics.sent.WithLabelValues(methodEvaluations).Add(float64(n)) }, began: time.Now()}
	storage, ok := s.deps.Storage.(peer.Evaluator)
	err = columns.Share(ss.Context(), len(all), runtime.GOMAXPROCS(0), nil, func(ctx context.Context, i int) error {
		give := func(b []byte) error { return out.add(i, answerMessage, b) }
		if !ok {
			return out.end(i, columns.SendOutcome(columns.Unknown, give))
		}
		return out.end(i, s.evaluation(ctx, storage, all[i], give))
	})
	if err == nil {
		err = out.flush()
	}
	return err
}

// evaluation answers one. A panic is the outcome of this one alone, not of those that came with it.
func (s *Server) evaluation(ctx context.Context, storage peer.Evaluator, e *peer.Evaluation, give func([]byte) error) (err error) {
	defer func() { s.logPanic(err) }()
	defer fault.Caught(&err)
	return storage.Evaluate(ctx, e.Select, e.Request, give)
}

// answerWriter gathers records of answers. Its methods may be called from many goroutines; errors are those of the stream, and TooLarge.
type answerWriter struct {
	to    sender
	sent  func(bytes int)
	began time.Time // of the oldest record, or when it was last empty

	mu       sync.Mutex
	gathered []byte
}

func (w *answerWriter) add(of, kind int, data []byte) error {
	if len(data) > messageBytesMax-2*binary.MaxVarintLen64 {
		return fault.Errorf(fault.TooLarge, "a message of %d bytes, at most %d travel at once", len(data), messageBytesMax)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.gathered)+len(data) > answerGathered {
		if err := w.flushLocked(); err != nil {
			return err
		}
	}
	if len(data) <= answerGathered {
		w.gathered = appendAnswer(w.gathered, of, kind, data)
		return nil
	}
	head := appendAnswerHead(nil, of, kind, len(data))
	buf, _ := pooled(data)
	w.sent(len(head) + len(data))
	return w.to.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(head), buf}})
}

// end adds the outcome of an evaluation.
func (w *answerWriter) end(of int, err error) error {
	kind, data := answerEnd, []byte(nil)
	if err != nil {
		var encoded error
		if data, encoded = proto.Marshal(status.Convert(toStatus(err)).Proto()); encoded != nil {
			return fault.Wrap(encoded, fault.Internal, "the error of an evaluation")
		}
		kind = answerError
	}
	if err := w.add(of, kind, data); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.began) < answerAge {
		return nil
	}
	return w.flushLocked()
}

func (w *answerWriter) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flushLocked()
}

func (w *answerWriter) flushLocked() error {
	w.began = time.Now()
	if len(w.gathered) == 0 {
		return nil
	}
	buf, _ := pooled(w.gathered)
	w.sent(len(w.gathered))
	w.gathered = w.gathered[:0]
	return sendBuffer(w.to, buf)
}
