package forward

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// FamilyCopies is how many servers get the descriptions of a table's metric families, so that a reader that asks all
// servers but two finds them.
const FamilyCopies = 3

// metadata hands descriptions of metric families to a few servers, the same for a table as long as they can be reached;
// readers ask all. One that accepts them is enough: senders repeat them every few minutes. Descriptions that are refused
// are no reason to refuse the rows beside them.
func (t *Table) metadata(ctx context.Context, rows []point.MetadataRow) error {
	if len(rows) == 0 {
		return nil
	}
	ids := homes(t.name, t.f.deps.Servers.IDs())
	if len(ids) == 0 {
		return fault.Errorf(fault.Unavailable, "no storage server can be reached to keep metadata of table %q", t.name)
	}
	errs := make([]error, len(ids))
	var g errgroup.Group
	for i, id := range ids {
		g.Go(func() error {
			s, ok := t.f.deps.Servers.Server(id)
			if !ok {
				errs[i] = fault.Errorf(fault.Unavailable, "storage server %q is not known here", id)
				return nil
			}
			errs[i] = s.PutMetadata(ctx, t.name, rows)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, err := range errs {
		if err == nil {
			return nil
		}
		if fault.Is(err, fault.Invalid) {
			t.f.deps.Log.Debug("metadata refused", "table", t.name, "error", err)
			return nil
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return fault.Wrap(errors.Join(errs...), fault.Unavailable, "no storage server keeps metadata of table %q", t.name)
}

// homes picks FamilyCopies of the servers for a table: a server that joins or leaves changes the choice of few tables
// (rendezvous hashing).
func homes(table string, ids []topology.ServerID) []topology.ServerID {
	ids = slices.Clone(ids)
	rank := func(id topology.ServerID) uint64 { return xxhash.Sum64String(table + "\x00" + string(id)) }
	slices.SortFunc(ids, func(a, b topology.ServerID) int { return cmp.Compare(rank(a), rank(b)) })
	return ids[:min(len(ids), FamilyCopies)]
}
