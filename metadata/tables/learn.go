package tables

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Newest returns where the newest map of a table that this process has is stored, for a process that has an older one; false: it has none.
func (t *Tables) Newest(name string) (at peer.MapAt, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v := t.mu.tables[name]
	if v == nil {
		return peer.MapAt{}, false
	}
	if m, _ := v.At(); m == nil {
		return peer.MapAt{}, false
	}
	row := v.Row()
	servers := make([]string, len(row.Servers))
	for i, s := range row.Servers {
		servers[i] = string(s)
	}
	return peer.MapAt{Txn: row.Txn, Seq: row.Seq, Servers: servers}, true
}

// Age is how long ago the map of a table here was last proven to be the newest (Machine.NewestAt); of a table without a map, how long ago it
// was proven not to exist. Where Run proves it, that is a matter of seconds while the store answers.
func (t *Tables) Age(name string) time.Duration {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if v := t.mu.tables[name]; v != nil {
		return time.Since(v.NewestAt())
	}
	return time.Since(t.mu.proven)
}

// Learn returns a table's map at the transaction that a server named, or a newer one that is here. The map is fetched from the metadata servers
// that at names, without the coordination store, and is verified: the transaction is the committed one in that server's view, and
// a file of another transaction, or with a wrong checksum, is refused. Errors are Invalid (at names nothing), NotFound (a table without a
// map here: only the store brings new ones), Unavailable (also: no server has the named transaction) or Canceled.
func (t *Tables) Learn(ctx context.Context, name string, at peer.MapAt) (*topology.Map, error) {
	if !at.Valid() {
		return nil, fault.Errorf(fault.Invalid, "table %q: transaction %d on %d servers names no map", name, at.Seq, len(at.Servers))
	}
	known, ok := t.Get(name)
	switch {
	case !ok:
		return nil, fault.Errorf(fault.NotFound, "table %q is not known here", name)
	case known.Seq >= at.Seq:
		return known, nil
	}
	want := mapstore.Row{Txn: at.Txn, Seq: at.Seq, Dropping: t.Dropping(name)}
	for _, s := range at.Servers {
		want.Servers = append(want.Servers, topology.ServerID(s))
	}
	since, have := t.have(name)
	m, err := t.fetchFrom(ctx, name, want, since, have)
	if err != nil {
		return nil, err
	}
	t.step(name, Known{Map: m, Row: want})
	if now, ok := t.Get(name); ok {
		return now, nil
	}
	return nil, fault.Errorf(fault.NotFound, "table %q was dropped", name)
}
