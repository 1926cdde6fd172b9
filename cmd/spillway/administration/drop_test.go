package administration

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// deafAfterDrop is a coordination store that does not answer a request for all lease rows once a table was dropped.
type deafAfterDrop struct {
	coord.Store
	table string
	deaf  *bool // it did not answer
}

func (s deafAfterDrop) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if prefix == lease.Prefix {
		row, ok, err := s.Get(ctx, mapstore.Key(s.table))
		if err != nil {
			return nil, 0, err
		}
		if r, err := mapstore.DecodeRow(row); ok && err == nil && r.Dropped {
			*s.deaf = true
			return nil, 0, fault.Errorf(fault.Unavailable, "etcd: read %s: context deadline exceeded", prefix)
		}
	}
	return s.Store.List(ctx, prefix)
}

// TestADropDoesNotFailForLeaseRowsThatAreLeft: the coordination store gave no answer after the table was dropped, and the command failed. Run again, it would have
// dropped the table that a writer had made in the meantime.
func TestADropDoesNotFailForLeaseRowsThatAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tw := newTown(t)
		deaf := false
		tw.store = deafAfterDrop{Store: tw.store, table: "cpu", deaf: &deaf}
		tw.server([]string{"s1", "copies=on"})
		tw.command(strings.Fields("table create cpu --replicas 1"))
		tw.row("cover", []string{"cpu", "2026-11-27T12:00:00Z"})
		said := tw.command(strings.Fields("table drop cpu --confirm=cpu --reason=test"))
		if !deaf || !strings.Contains(said, "table cpu is dropped") || strings.Contains(said, "spillway:") {
			t.Errorf("the store was deaf: %t; the command said: %s", deaf, said)
		}
	})
}
