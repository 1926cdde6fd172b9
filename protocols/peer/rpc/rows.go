package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
)

// Rows of the coordination store, passed on to administrators. A watch is one message with the request, then one message for
// each group of changes, until either side ends it.

// rowsMessageMax bounds the changes that one message of a watch holds, in bytes of values.
const rowsMessageMax = 1 << 20

var errNoRows = fault.Errorf(fault.Unavailable, "this server passes no rows of the coordination store on")

func (s *Server) getRow(ctx context.Context, p *peerpb.RowKey) (*peerpb.RowSet, error) {
	if s.deps.Rows == nil {
		return nil, errNoRows
	}
	row, ok, err := s.deps.Rows.GetRow(ctx, string(p.GetKey()))
	if err != nil || !ok {
		return &peerpb.RowSet{}, err
	}
	return &peerpb.RowSet{Rows: []*peerpb.Row{toRow(row)}}, nil
}

func (s *Server) listRows(ctx context.Context, p *peerpb.RowPrefix) (*peerpb.RowSet, error) {
	if s.deps.Rows == nil {
		return nil, errNoRows
	}
	rows, rev, err := s.deps.Rows.ListRows(ctx, string(p.GetPrefix()))
	return &peerpb.RowSet{Rows: mapped(rows, toRow), Revision: rev}, err
}

// commitRows logs which certificate changed which rows: the name that an administrator puts into the audit is only a claim.
func (s *Server) commitRows(ctx context.Context, p *peerpb.RowCommit) (*peerpb.RowCommitted, error) {
	if s.deps.Rows == nil {
		return nil, errNoRows
	}
	conditions := mapped(p.GetConditions(), func(c *peerpb.RowCondition) peer.RowCondition {
		return peer.RowCondition{Key: string(c.GetKey()), Revision: c.GetRevision()}
	})
	var keys []string
	writes := mapped(p.GetWrites(), func(w *peerpb.RowWrite) peer.RowWrite {
		keys = append(keys, string(w.GetKey()))
		return peer.RowWrite{Key: string(w.GetKey()), Value: w.GetValue(), Delete: w.GetDelete()}
	})
	rev, ok, err := s.deps.Rows.CommitRows(ctx, conditions, writes)
	id, _ := callerOf(ctx) // without TLS there is none to name
	s.deps.Log.Info("rows of the coordination store written by an administrator", "by", id.String(), "keys", keys, "committed", ok, "error", err)
	return &peerpb.RowCommitted{Ok: ok, Revision: rev}, err
}

// watchRows sends changes until the caller leaves or the server stops.
func (s *Server) watchRows(ss grpc.ServerStream) error {
	in := receiving{s: s, class: orders}
	defer in.end()
	var p peerpb.RowPrefix
	if _, err := in.chunks(s.awaited(ss), smallMax, &p); err != nil {
		return received(ss.Context(), err)
	}
	prefix, after := string(p.GetPrefix()), p.GetAfter()
	in.end() // a watch may last for days
	if s.deps.Rows == nil {
		return errNoRows
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	s.running.Go(func() {
		select {
		case <-s.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	})
	err := s.deps.Rows.WatchRows(ctx, prefix, after, func(events []peer.RowEvent) error {
		for len(events) > 0 {
			n, bytes := 0, 0
			for n < len(events) && (n == 0 || bytes+len(events[n].Value) <= rowsMessageMax) {
				bytes += len(events[n].Value) + len(events[n].Key)
				n++
			}
			if err := sendMessage(ss, &peerpb.RowSet{Rows: mapped(events[:n], toRowEvent)}); err != nil {
				return received(ss.Context(), err)
			}
			events = events[n:]
		}
		return nil
	})
	switch cause := context.Cause(ctx); {
	case errors.Is(err, peer.ErrRowsForgotten):
		return sendMessage(ss, &peerpb.RowSet{Forgotten: true})
	case cause != nil:
		return cause
	}
	return err
}

// sendMessage sends a protobuf message that fits one message of gRPC.
func sendMessage(to sender, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "encode %T", m)
	}
	buf, _ := pooled(b)
	return sendBuffer(to, buf)
}

func toRow(r peer.Row) *peerpb.Row {
	return &peerpb.Row{Key: []byte(r.Key), Value: r.Value, Revision: r.Revision}
}

func ofRow(r *peerpb.Row) peer.Row {
	return peer.Row{Key: string(r.GetKey()), Value: r.GetValue(), Revision: r.GetRevision()}
}

func toRowEvent(e peer.RowEvent) *peerpb.Row {
	r := toRow(e.Row)
	r.Deleted = e.Deleted
	return r
}

func ofRowEvent(r *peerpb.Row) peer.RowEvent {
	return peer.RowEvent{Row: ofRow(r), Deleted: r.GetDeleted()}
}

var _ peer.Rows = (*Peer)(nil)

// GetRow implements peer.Rows.
func (p *Peer) GetRow(ctx context.Context, key string) (row peer.Row, ok bool, err error) {
	var a peerpb.RowSet
	if err := p.call(ctx, methodGetRow, &peerpb.RowKey{Key: []byte(key)}, &a); err != nil || len(a.GetRows()) == 0 {
		return row, false, err
	}
	return ofRow(a.GetRows()[0]), true, nil
}

// ListRows implements peer.Rows.
func (p *Peer) ListRows(ctx context.Context, prefix string) ([]peer.Row, uint64, error) {
	var a peerpb.RowSet
	if err := p.call(ctx, methodListRows, &peerpb.RowPrefix{Prefix: []byte(prefix)}, &a); err != nil {
		return nil, 0, err
	}
	return mapped(a.GetRows(), ofRow), a.GetRevision(), nil
}

// CommitRows implements peer.Rows.
func (p *Peer) CommitRows(ctx context.Context, conditions []peer.RowCondition, writes []peer.RowWrite) (uint64, bool, error) {
	m := &peerpb.RowCommit{
		Conditions: mapped(conditions, func(c peer.RowCondition) *peerpb.RowCondition {
			return &peerpb.RowCondition{Key: []byte(c.Key), Revision: c.Revision}
		}),
		Writes: mapped(writes, func(w peer.RowWrite) *peerpb.RowWrite {
			return &peerpb.RowWrite{Key: []byte(w.Key), Value: w.Value, Delete: w.Delete}
		}),
	}
	var a peerpb.RowCommitted
	if err := p.call(ctx, methodCommitRows, m, &a); err != nil {
		return 0, false, err
	}
	return a.GetRevision(), a.GetOk(), nil
}

// WatchRows implements peer.Rows.
func (p *Peer) WatchRows(ctx context.Context, prefix string, after uint64, f func([]peer.RowEvent) error) (err error) {
	l, err := p.enter()
	if err != nil {
		return err
	}
	defer l.leave()
	cs, cancel, err := p.open(ctx, l, methodWatchRows)
	if err != nil {
		return p.fault(ctx, l, methodWatchRows, err)
	}
	defer cancel(nil)
	if _, err = sendChunks(cs, &peerpb.RowPrefix{Prefix: []byte(prefix), After: after}); err == nil {
		err = cs.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) { // at EOF the receiver has the reason
		return p.fault(ctx, l, methodWatchRows, err)
	}
	for {
		events, err := receiveRows(cs)
		switch {
		case errors.Is(err, peer.ErrRowsForgotten):
			return err
		case errors.Is(err, io.EOF):
			return fault.Errorf(fault.Unavailable, "%s ended the watch of rows", p.addr)
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return p.fault(ctx, l, methodWatchRows, err)
		}
		if err := f(events); err != nil {
			return err
		}
	}
}

func receiveRows(from receiver) ([]peer.RowEvent, error) {
	var m message
	if err := from.RecvMsg(&m); err != nil {
		return nil, err
	}
	buf := m.whole()
	defer buf.Free()
	var set peerpb.RowSet
	if err := proto.Unmarshal(buf.ReadOnlyData(), &set); err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "decode rows of a watch")
	}
	if set.GetForgotten() {
		return nil, peer.ErrRowsForgotten
	}
	return mapped(set.GetRows(), ofRowEvent), nil
}
