package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
)

// An evaluation is a stream: the caller sends a message with the request of package columns, then the select in chunks; the
// server sends the messages of the answer. Their forms are those of package columns, with its versions.

// evaluateMax bounds a request without its select.
const evaluateMax = 1 << 20

var _ peer.Evaluator = (*Peer)(nil)

// Evaluate implements peer.Evaluator. A server of an older build answers as one that does not know the plan.
func (p *Peer) Evaluate(ctx context.Context, q *peer.Select, request []byte, give func([]byte) error) (err error) {
	defer func() { p.settings.Metrics.calls.WithLabelValues(methodEvaluate, kindLabel(err)).Inc() }()
	l, err := p.enter()
	if err != nil {
		return err
	}
	defer l.leave()
	cs, cancel, err := p.open(ctx, l, methodEvaluate)
	if err == nil {
		defer cancel(nil)
		err = p.evaluate(cs, q, request, give)
	}
	err = p.fault(ctx, l, methodEvaluate, err)
	if errors.Is(err, errOlder) {
		return columns.SendOutcome(columns.Unknown, give)
	}
	return err
}

func (p *Peer) evaluate(cs grpc.ClientStream, q *peer.Select, request []byte, give func([]byte) error) error {
	if len(request) > evaluateMax {
		return fault.Errorf(fault.Invalid, "a plan of %d bytes, at most %d travel", len(request), evaluateMax)
	}
	buf, _ := pooled(request)
	err := sendBuffer(cs, buf)
	if err == nil {
		var sent int
		sent, err = sendChunks(cs, toSelect(q))
		p.settings.Metrics.sent.WithLabelValues(methodEvaluate).Add(float64(sent + len(request)))
	}
	if err == nil {
		err = cs.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) { // at EOF the receiver has the reason
		return err
	}
	received := p.settings.Metrics.received.WithLabelValues(methodEvaluate)
	for {
		n, err := receiveMessage(cs, messageBytesMax, give)
		received.Add(float64(n))
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// receiveMessage passes on a message of at most that many bytes.
func receiveMessage(from receiver, most int, give func([]byte) error) (n int, err error) {
	var m message
	if err := from.RecvMsg(&m); err != nil {
		return 0, err
	}
	buf := m.whole()
	defer buf.Free()
	if buf.Len() > most {
		return 0, fault.Errorf(fault.TooLarge, "a message of %d bytes, at most %d travel", buf.Len(), most)
	}
	return buf.Len(), give(buf.ReadOnlyData())
}

// evaluate answers an evaluation.
func (s *Server) evaluate(ss grpc.ServerStream) error {
	in := receiving{s: s, class: reads}
	defer in.end()
	request, err := in.message(s.awaited(ss))
	if err != nil {
		return received(ss.Context(), err)
	}
	var p peerpb.Select
	got, err := in.chunks(s.awaited(ss), smallMax, &p)
	s.metrics.received.WithLabelValues(methodEvaluate).Add(float64(got + len(request)))
	if err != nil {
		return received(ss.Context(), err)
	}
	q, err := ofSelect(&p)
	if err != nil {
		return err
	}
	sent := s.metrics.sent.WithLabelValues(methodEvaluate)
	give := func(b []byte) error {
		if len(b) > messageBytesMax {
			return fault.Errorf(fault.TooLarge, "a message of %d bytes, at most %d travel at once", len(b), messageBytesMax)
		}
		buf, _ := pooled(b)
		sent.Add(float64(len(b)))
		return received(ss.Context(), sendBuffer(ss, buf))
	}
	storage, ok := s.deps.Storage.(peer.Evaluator)
	if !ok {
		return columns.SendOutcome(columns.Unknown, give)
	}
	return storage.Evaluate(ss.Context(), q, request, give)
}
