package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
)

// set receives the batches of a select. The peer sends as far ahead as the HTTP/2 window allows.
type set struct {
	p      *Peer
	l      *line
	ctx    context.Context // the asker's: it decides what an error means
	cs     receiver
	cancel context.CancelCauseFunc

	reader batchReader
	ready  []peer.Series
	at     int
	goesOn bool // the last of ready is not whole yet
	joined bool // it was joined already: its times are shared with no other series
	err    error
	ended  bool
	closed bool
}

// Select implements peer.Storage.
func (p *Peer) Select(ctx context.Context, q *peer.Select) (_ peer.SeriesSet, err error) {
	l, err := p.enter()
	if err != nil {
		return nil, err
	}
	s := &set{p: p, l: l, ctx: ctx, at: -1}
	m := toSelect(q)
	if m.FormatMax = batchVersion; q.Ranks {
		m.FormatMax = batchRanked
	}
	err = errNotKept
	if q.LabelsOnly && endsSoon(ctx) { // without rows the first series come at once
		err = s.beginKept(m)
	}
	if errors.Is(err, errNotKept) {
		err = s.begin(m)
	}
	if err == nil {
		return s, nil
	}
	l.leave()
	err = p.fault(ctx, l, methodSelect, err)
	p.settings.Metrics.calls.WithLabelValues(methodSelect, kindLabel(err)).Inc()
	return nil, err
}

// keptSelectMax is below five minutes, after which a server gives up a kept stream of which nothing is read. A select that may last longer has a stream of its own, with its
// deadline, for which the server waits.
const keptSelectMax = 4 * time.Minute

func endsSoon(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) < keptSelectMax
}

// begin asks on a stream of its own, and waits until the peer opens the select or refuses it.
func (s *set) begin(m *peerpb.Select) error {
	cs, cancel, err := s.p.open(s.ctx, s.l, methodSelect)
	if err != nil {
		return err
	}
	sent, err := sendChunks(cs, m)
	s.p.settings.Metrics.sent.WithLabelValues(methodSelect).Add(float64(sent))
	if err == nil {
		err = cs.CloseSend()
	}
	if err == nil || errors.Is(err, io.EOF) { // at EOF the receiver has the reason
		err = receiveOpened(cs)
	}
	if err != nil {
		cancel(nil)
		return err
	}
	s.cs, s.cancel = cs, cancel
	return nil
}

// beginKept is begin on a kept stream. Errors are errNotKept, too.
func (s *set) beginKept(m *peerpb.Select) error {
	c, err := s.p.readKept(s.ctx, s.l, methodSelect, m)
	if err != nil {
		return err
	}
	if err := receiveOpened(c); err != nil {
		return c.leave(err)
	}
	s.cs, s.cancel = c, func(error) { _ = c.leave(nil) }
	return nil
}

func receiveOpened(from receiver) error {
	var opened message
	if err := from.RecvMsg(&opened); err != nil {
		return err
	}
	opened.data.Free()
	return nil
}

// Next implements peer.SeriesSet. The last series of a batch that goes on is held back until the batch with its end is there.
func (s *set) Next() bool {
	for {
		s.at++
		if s.at < len(s.ready)-1 || s.at == len(s.ready)-1 && !s.goesOn {
			return true
		}
		if s.ended || s.closed {
			s.ready, s.at = nil, 0
			return false
		}
		if err := s.receive(); err != nil {
			s.ended = true
			s.ready, s.at = nil, 0
			if !errors.Is(err, io.EOF) {
				s.err = s.p.fault(s.ctx, s.l, methodSelect, err)
			}
			return false
		}
	}
}

// Ready reports whether Next does not wait for the peer.
func (s *set) Ready() bool {
	return s.ended || s.closed || s.at+1 < len(s.ready)-1 || s.at+1 == len(s.ready)-1 && !s.goesOn
}

// receive receives the next batch. It continues a series left over from this one.
func (s *set) receive() error {
	var m message
	if err := s.cs.RecvMsg(&m); err != nil {
		if errors.Is(err, io.EOF) && s.goesOn {
			return fault.Errorf(fault.Corrupt, "a select ended within a series")
		}
		return err
	}
	buf := m.whole()
	defer buf.Free()
	s.p.settings.Metrics.received.WithLabelValues(methodSelect).Add(float64(buf.Len()))
	next, goesOn, err := s.reader.decode(buf.ReadOnlyData())
	if err != nil {
		return err
	}
	if len(next) == 0 {
		return errBatch
	}
	if s.goesOn {
		begun, rest := &s.ready[len(s.ready)-1], &next[0]
		if begun.Labels != rest.Labels {
			return fault.Errorf(fault.Corrupt, "a select goes on with %v within %v", rest.Labels, begun.Labels)
		}
		if !s.joined { // its neighbours may have the same column of times: the first append copies it, those of later pieces grow the copy
			begun.Times = begun.Times[:len(begun.Times):len(begun.Times)]
		}
		rest.Times = append(begun.Times, rest.Times...)
		rest.Values = append(begun.Values, rest.Values...)
		rest.Hists = append(begun.Hists, rest.Hists...)
		rest.Ranks, rest.HistRanks = append(begun.Ranks, rest.Ranks...), append(begun.HistRanks, rest.HistRanks...)
	}
	s.joined = s.goesOn && len(next) == 1
	s.ready, s.at, s.goesOn = next, -1, goesOn
	return nil
}

// At implements peer.SeriesSet.
func (s *set) At() *peer.Series { return &s.ready[s.at] }

// Err implements peer.SeriesSet.
func (s *set) Err() error { return s.err }

// Close implements peer.SeriesSet.
func (s *set) Close() error {
	if !s.closed {
		s.closed = true
		s.cancel(nil)
		s.l.leave()
		s.ready, s.at = nil, 0
		s.p.settings.Metrics.calls.WithLabelValues(methodSelect, kindLabel(s.err)).Inc()
	}
	return nil
}
