package rpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/trace"
)

// Streams of evaluations are kept: opening one costs as much processor time as a small answer does otherwise.
//
//	request ─▶ an idle stream, or a new one ─▶ request, answers ─▶ all evaluations have ended: the stream is idle again
//	                                                            ▶ an error, or the caller left: it is cancelled
//
// A stream carries one request at a time, so HTTP/2's flow control holds for each answer by itself, and no answer waits for another. Requests and answers
// have the form of a stream with one request.

// keptMax bounds the idle streams of a line, of each method. Larger: more goroutines at both ends, which sleep.
const keptMax = 16

// keptStreams are the idle streams of a method on a line.
type keptStreams struct {
	method  string      // constant
	unknown atomic.Bool // the peer's build has no such streams

	mu struct {
		sync.Mutex
		idle []*keptStream
	}
}

// keptStream is a stream of evaluations or of reads. Its owner is the request that uses it.
type keptStream struct {
	cs   grpc.ClientStream
	end  context.CancelCauseFunc
	used bool // it carried a request before
}

// take removes and returns the stream that was used last; nil if none is idle.
func (k *keptStreams) take() *keptStream {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.mu.idle) - 1
	if n < 0 {
		return nil
	}
	st := k.mu.idle[n]
	k.mu.idle = k.mu.idle[:n]
	return st
}

// put keeps a stream for a later request; false: enough are idle.
func (k *keptStreams) put(st *keptStream) bool {
	st.used = true
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.mu.idle) == keptMax {
		return false
	}
	k.mu.idle = append(k.mu.idle, st)
	return true
}

// keep keeps a stream for a later request, or ends it. It is ended from this side and then from the server's: a reset is a frame of those that a server counts, so that requests which come many at a
// time would slow their connection down. Meanwhile it is a call, as it has a place among the streams of the connection.
func (p *Peer) keep(l *line, of *keptStreams, st *keptStream) {
	if of.put(st) {
		return
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	switch {
	case p.mu.closed:
		st.end(nil)
		return
	case l.active.Add(1) > int64(p.settings.CallsMax):
		l.leave()
		st.end(nil)
		return
	}
	p.running.Go(func() {
		defer l.leave()
		defer st.end(nil)
		var m message
		if st.cs.CloseSend() == nil && st.cs.RecvMsg(&m) == nil {
			m.data.Free()
		}
	})
}

// errNotKept means that another stream has to be used: nothing was answered on this one, which the server had ended, or it knows no such streams.
var errNotKept = errors.New("the request was not answered on a kept stream")

// keeps reports whether a request travels on a kept stream. One in a span does not: the span is named when a stream begins.
func (k *keptStreams) keeps(ctx context.Context) bool {
	return !k.unknown.Load() && trace.Header(ctx) == ""
}

// askKept sends a request on a kept stream and hands out its answers. Errors are gRPC's or ours, as they come, and errNotKept.
func (p *Peer) askKept(ctx context.Context, l *line, request []byte, a *answers) error {
	st, stop, err := p.keptStream(ctx, l, &l.kept)
	if err != nil {
		return err
	}
	err = p.receiveAnswers(st.cs, request, a, true)
	if whole := stop(); err == nil && whole && !a.refused {
		p.keep(l, &l.kept, st)
		return nil
	}
	st.end(nil)
	if err == nil || a.answered || ctx.Err() != nil || l.ctx.Err() != nil {
		return err
	}
	return l.kept.failed(st, err)
}

// failed returns errNotKept for the error of a stream on which nothing was answered, or the error as it is.
func (k *keptStreams) failed(st *keptStream, err error) error {
	switch {
	case errors.Is(ofStatus(err), errOlder):
		k.unknown.Store(true)
		return errNotKept
	case st.used: // the server stopped, or ended it for another reason, while it was idle
		return errNotKept
	case fault.Is(ofStatus(err), fault.Denied): // the refusal of a stream of its own names the call that was made
		return errNotKept
	}
	return err
}

// keptStream gives an idle stream or opens one. It ends with ctx until stop, which reports whether it did not.
func (p *Peer) keptStream(ctx context.Context, l *line, of *keptStreams) (st *keptStream, stop func() bool, err error) {
	if st = of.take(); st != nil {
		return st, context.AfterFunc(ctx, func() { st.end(ctx.Err()) }), nil
	}
	own, abandon := context.WithCancelCause(context.Background())
	stop = context.AfterFunc(ctx, func() { abandon(ctx.Err()) })
	cs, cancel, err := p.open(own, l, of.method)
	if err != nil {
		stop()
		abandon(nil)
		return nil, nil, err
	}
	return &keptStream{cs: cs, end: func(cause error) { cancel(cause); abandon(cause) }}, stop, nil
}

// keptEvaluations answers one request after the other, until the caller ends the stream or the server stops. The requests are answered where they are
// received: handing each to the handler would wake one more goroutine, and often a thread.
//
//	goroutine ─ receive ─▶ answer ─▶ receive ─▶ …
//	handler   ─ waits for the end of the stream or of the server ─▶ for the answer under way, if there is one
func (s *Server) keptEvaluations(ss grpc.ServerStream) error { return s.serveKept(ss, s.answerKept) }

// serveKept runs answer, which answers the requests of a stream.
func (s *Server) serveKept(ss grpc.ServerStream, answer func(grpc.ServerStream, *keptHandler) error) error {
	k, ended := &keptHandler{}, make(chan error, 1)
	s.running.Go(func() { ended <- answer(ss, k) }) // until the handler returns, at the latest
	var err error
	select {
	case err := <-ended:
		return err
	case <-s.stopping:
		err = errStopping
	case <-ss.Context().Done():
		err = ss.Context().Err()
	}
	if k.leave() {
		return err
	}
	return <-ended
}

// answerKept answers the requests of a stream. Errors are errStopping where the handler left, and those of a request.
func (s *Server) answerKept(ss grpc.ServerStream, k *keptHandler) error {
	in := receiving{s: s, class: reads}
	defer in.end()
	for {
		request, err := s.evaluationsRequest(ss, &in)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return received(ss.Context(), err)
		case !k.begin():
			return errStopping
		}
		err = s.answerEvaluations(ss, request, in.decode)
		s.metrics.calls.WithLabelValues(methodEvaluations, kindLabel(err)).Inc()
		in.end()
		if err != nil {
			return received(ss.Context(), err)
		}
		if !k.end() {
			return errStopping
		}
	}
}

// keptHandler is the handler of a kept stream: it may return while no answer is under way, since none may be sent after that.
type keptHandler struct {
	mu        sync.Mutex
	answering bool
	left      bool // no further request is answered
}

// begin is called before a request is answered; false: it may not be any more.
func (k *keptHandler) begin() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answering = !k.left
	return k.answering
}

// end is called after an answer; false: it was the last one.
func (k *keptHandler) end() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answering = false
	return !k.left
}

// leave has no further request answered, and reports whether no answer is under way.
func (k *keptHandler) leave() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = true
	return !k.answering
}

// endedEarly is the error of answers that end before all evaluations have.
func (a *answers) endedEarly(addr string) error {
	return fault.Errorf(fault.Unavailable, "%s: the answer ended before %d of %d evaluations", addr, a.left, len(a.open))
}
