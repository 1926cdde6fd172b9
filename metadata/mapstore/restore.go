package mapstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Restore makes the rows of the coordination store name the newest METADATA files on this disk, where they name older ones or
// are gone: the store was lost, or an old one put in its place. It is for the only running process: its disk
// has every committed file. A file that a crash left uncommitted may become committed here; its change was neither acked
// nor refused. Errors are Unavailable or Corrupt (the list of files).
func (s *Server) Restore(ctx context.Context) error {
	infos, err := s.deps.Disk.List()
	if err != nil {
		return err
	}
	slices.SortFunc(infos, func(a, b Info) int { return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Seq, a.Seq)) })
	for len(infos) > 0 {
		table := infos[0].Table
		n := slices.IndexFunc(infos, func(i Info) bool { return i.Table != table })
		if n < 0 {
			n = len(infos)
		}
		if err := s.restore(ctx, table, infos[:n]); err != nil {
			return fault.Annotate(err, "restore the map of table %q", table)
		}
		infos = infos[n:]
	}
	return nil
}

// restore does so for one table; newest first.
func (s *Server) restore(ctx context.Context, table string, infos []Info) error {
	row, _, err := s.deps.Store.Get(ctx, Key(table))
	if err != nil {
		return err
	}
	var r Row
	if len(row.Value) > 0 {
		if r, err = DecodeRow(row); err != nil {
			return nil // Adopt handles it, or reports the fault
		}
	}
	for _, i := range infos {
		if r.Dropped || r.Dropping || r.Seq >= i.Seq {
			return nil
		}
		if _, _, err := s.deps.Disk.Get(table, i.Txn); err != nil {
			s.deps.Log.Warn("a METADATA file newer than its row cannot be read", "table", table, "seq", i.Seq, "error", err)
			continue
		}
		newer := Row{Txn: i.Txn, Seq: i.Seq, Servers: []topology.ServerID{s.deps.Self}, Round: r.Round}
		_, ok, err := s.deps.Store.Commit(ctx, []coord.Condition{{Key: Key(table), Revision: row.Revision}}, []coord.Write{{Key: Key(table), Value: newer.Encode()}})
		if err == nil && !ok {
			err = fault.Errorf(fault.Unavailable, "another process changes it")
		}
		if err == nil {
			s.deps.Log.Warn("the coordination store was older than the maps; the newest map is the committed one again", "table", table, "seq_before", r.Seq, "seq", i.Seq)
		}
		return err
	}
	return nil
}
