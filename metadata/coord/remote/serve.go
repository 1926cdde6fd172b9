package remote

import (
	"context"
	"errors"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Serve passes a store on. mayWrite decides whether a row may be written or deleted under these conditions.
func Serve(store coord.Store, mayWrite func(coord.Write, []coord.Condition) bool) peer.Rows {
	return &served{store, mayWrite}
}

type served struct {
	store    coord.Store
	mayWrite func(coord.Write, []coord.Condition) bool
}

// GetRow implements peer.Rows.
func (s *served) GetRow(ctx context.Context, key string) (peer.Row, bool, error) {
	row, ok, err := s.store.Get(ctx, key)
	return toPeer(row), ok, err
}

// ListRows implements peer.Rows.
func (s *served) ListRows(ctx context.Context, prefix string) ([]peer.Row, uint64, error) {
	rows, rev, err := s.store.List(ctx, prefix)
	out := make([]peer.Row, len(rows))
	for i, row := range rows {
		out[i] = toPeer(row)
	}
	return out, uint64(rev), err
}

// CommitRows implements peer.Rows.
func (s *served) CommitRows(ctx context.Context, conditions []peer.RowCondition, writes []peer.RowWrite) (uint64, bool, error) {
	cs := make([]coord.Condition, len(conditions))
	for i, c := range conditions {
		cs[i] = coord.Condition{Key: c.Key, Revision: coord.Revision(c.Revision)}
	}
	ws := make([]coord.Write, len(writes))
	for i, w := range writes {
		if !s.mayWrite(coord.Write(w), cs) {
			return 0, false, fault.Errorf(fault.Denied, "row %q is not written by hand: the cluster keeps it by itself", w.Key)
		}
		ws[i] = coord.Write(w)
	}
	rev, ok, err := s.store.Commit(ctx, cs, ws)
	return uint64(rev), ok, err
}

// WatchRows implements peer.Rows.
func (s *served) WatchRows(ctx context.Context, prefix string, after uint64, f func([]peer.RowEvent) error) error {
	err := s.store.Watch(ctx, prefix, coord.Revision(after), func(events []coord.Event) error {
		out := make([]peer.RowEvent, len(events))
		for i, e := range events {
			out[i] = peer.RowEvent{Row: toPeer(e.Row), Deleted: e.Deleted}
		}
		return f(out)
	})
	if errors.Is(err, coord.ErrCompacted) {
		return peer.ErrRowsForgotten
	}
	return err
}

func toPeer(r coord.Row) peer.Row {
	return peer.Row{Key: r.Key, Value: r.Value, Revision: uint64(r.Revision)}
}
