package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// set receives the batches of a select. The peer sends as far ahead as the HTTP/2 window allows.
type set struct {
	p      *Peer
	l      *line
	ctx    context.Context // the asker's: it decides what an error means
	cs     grpc.ClientStream
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
	if s.cs, s.cancel, err = p.open(ctx, l, methodSelect); err == nil {
		if err = s.begin(q); err == nil {
			return s, nil
		}
		s.cancel(nil)
	}
	l.leave()
	err = p.fault(ctx, l, methodSelect, err)
	p.settings.Metrics.calls.WithLabelValues(methodSelect, kindLabel(err)).Inc()
	return nil, err
}

// begin asks, and waits until the peer opens the select or refuses it.
func (s *set) begin(q *peer.Select) error {
	m := toSelect(q)
	if m.FormatMax = batchVersion; q.Ranks {
		m.FormatMax = batchRanked
	}
	sent, err := sendChunks(s.cs, m)
	s.p.settings.Metrics.sent.WithLabelValues(methodSelect).Add(float64(sent))
	if err == nil {
		err = s.cs.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var opened message
	if err := s.cs.RecvMsg(&opened); err != nil {
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
