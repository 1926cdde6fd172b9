package remote

import (
	"context"
	"errors"
	"sync"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Open makes a store of a server that serves one. hangUp is called once, by Close.
func Open(server peer.Rows, hangUp func() error) coord.Store {
	life, end := context.WithCancel(context.Background())
	return &store{server: server, hangUp: sync.OnceValue(hangUp), life: life, end: end}
}

type store struct {
	server peer.Rows
	hangUp func() error
	life   context.Context // ends with Close
	end    context.CancelFunc
}

var errClosed = fault.Errorf(fault.Unavailable, "the coordination store is closed")

func (s *store) usable(ctx context.Context) error {
	if s.life.Err() != nil {
		return errClosed
	}
	return ctx.Err()
}

// Get implements coord.Store.
func (s *store) Get(ctx context.Context, key string) (coord.Row, bool, error) {
	if err := s.usable(ctx); err != nil {
		return coord.Row{}, false, err
	}
	row, ok, err := s.server.GetRow(ctx, key)
	return ofPeer(row), ok, err
}

// List implements coord.Store.
func (s *store) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if err := s.usable(ctx); err != nil {
		return nil, 0, err
	}
	rows, rev, err := s.server.ListRows(ctx, prefix)
	var out []coord.Row
	for _, row := range rows {
		out = append(out, ofPeer(row))
	}
	return out, coord.Revision(rev), err
}

// Commit implements coord.Store.
func (s *store) Commit(ctx context.Context, conditions []coord.Condition, writes []coord.Write) (coord.Revision, bool, error) {
	if err := s.usable(ctx); err != nil {
		return 0, false, err
	}
	cs := make([]peer.RowCondition, len(conditions))
	for i, c := range conditions {
		cs[i] = peer.RowCondition{Key: c.Key, Revision: uint64(c.Revision)}
	}
	ws := make([]peer.RowWrite, len(writes))
	for i, w := range writes {
		ws[i] = peer.RowWrite(w)
	}
	rev, ok, err := s.server.CommitRows(ctx, cs, ws)
	return coord.Revision(rev), ok, err
}

// Watch implements coord.Store.
func (s *store) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	err := s.server.WatchRows(watch, prefix, uint64(after), func(events []peer.RowEvent) error {
		out := make([]coord.Event, len(events))
		for i, e := range events {
			out[i] = coord.Event{Row: ofPeer(e.Row), Deleted: e.Deleted}
		}
		return f(out)
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case s.life.Err() != nil:
		return errClosed
	case errors.Is(err, peer.ErrRowsForgotten):
		return coord.ErrCompacted
	}
	return err
}

// Close implements coord.Store: watches end as Unavailable.
func (s *store) Close() error {
	s.end()
	return s.hangUp()
}

func ofPeer(r peer.Row) coord.Row {
	return coord.Row{Key: r.Key, Value: r.Value, Revision: coord.Revision(r.Revision)}
}
