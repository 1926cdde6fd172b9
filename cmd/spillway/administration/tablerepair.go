package administration

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TableRepair names the METADATA file of a table anew, after a restore of the coordination store.
type TableRepair struct {
	Flags  `embed:""`
	Table  string `arg:"" help:"Name."`
	Reason string `name:"reason" required:"" help:"What happened to the coordination store."`
	Txn    string `name:"transaction" help:"The transaction whose file to go by, as 32 hex digits, where the servers cannot show which was committed."`
	Yes    bool   `name:"yes" help:"Do not ask."`
}

// Run repairs the coordination store after a restore from an older backup: it names the newest METADATA file that a
// majority of the table's metadata servers hold.
//
// No gateway carries it out: one that ran before the restore goes by servers and maps that it read then.
func (c *TableRepair) Run() error {
	if len(c.Servers) == 0 && c.Coord.URL == "" {
		return fault.Errorf(fault.Invalid, "`table repair` has no --url: gateways that ran before the restore go by what they read then. Name a storage server with --servers HOST:PORT (SPILLWAY_SERVERS), or the coordination store with --coord")
	}
	return c.with(c.run)
}

func (c *TableRepair) run(ctx context.Context, a *admin) error {
	if err := mapstore.CheckName(c.Table); err != nil {
		return err
	}
	stored, there, err := a.store.Get(ctx, mapstore.Key(c.Table))
	if err != nil {
		return err
	}
	var row mapstore.Row
	if there {
		if row, err = mapstore.DecodeRow(stored); err != nil {
			return err
		}
	}
	n, err := a.newest(ctx, c.Table, row, c.Txn)
	if err != nil {
		return err
	}
	if row.Txn == n.File.Txn && n.Over <= row.Over || c.Txn == "" && (row.Seq > n.File.Seq || row.Seq == n.File.Seq && n.Witness == "") {
		return a.done("table %s needs no repair: the coordination store names transaction %d, and the newest file on a majority of its metadata servers is %d", c.Table, row.Seq, n.File.Seq)
	}
	var old *topology.Map
	if a.tables != nil {
		old, _ = a.tables.Get(c.Table)
	}
	if err := a.confirm(c.Yes, loses(c.Table, row, n, old)); err != nil {
		return err
	}
	what := fmt.Sprintf("repair table %s: transaction %d instead of %d, on %s", c.Table, n.File.Seq, row.Seq, joinIDs(n.Holders))
	return a.act(ctx, c.Reason, what, func() error {
		next := n.Row(row)
		_, ok, err := a.store.Commit(ctx, []coord.Condition{{Key: mapstore.Key(c.Table), Revision: stored.Revision}}, []coord.Write{{Key: mapstore.Key(c.Table), Value: next.Encode()}})
		if err == nil && !ok {
			err = fault.Errorf(fault.Stale, "the table's row changed meanwhile: look again")
		}
		if err != nil {
			return err
		}
		return a.done("the map of table %s is that of transaction %d again, kept by %s", c.Table, next.Seq, joinIDs(next.Servers))
	})
}

// newest returns the newest committed file on all servers that are registered or keep the table's files, or the file of the transaction that is named.
func (a *admin) newest(ctx context.Context, table string, row mapstore.Row, named string) (mapstore.Newest, error) {
	servers := slices.Clone(row.Servers)
	for _, s := range a.servers.All() {
		servers = append(servers, s.ID)
	}
	slices.Sort(servers)
	servers = slices.Compact(servers)
	if named != "" {
		var txn peer.TxnID
		if b, err := hex.DecodeString(named); err != nil || copy(txn[:], b) != len(txn) || len(b) != len(txn) {
			return mapstore.Newest{}, fault.Errorf(fault.Invalid, "transaction %q is not 32 hex digits", named)
		}
		return mapstore.FindNamed(ctx, table, servers, txn, a.peers.Metadata)
	}
	keep := len(row.Servers)
	if keep == 0 { // there is no row: as many as tables have
		keep = min(len(servers), 3)
	}
	return mapstore.FindNewest(ctx, table, servers, keep/2+1, a.peers.Metadata)
}

// loses describes the loss of going by the newest file.
func loses(table string, row mapstore.Row, n mapstore.Newest, old *topology.Map) string {
	var b strings.Builder
	stored := fmt.Sprintf("transaction %d", row.Seq)
	switch {
	case row.Seq == 0:
		stored = "no such table"
	case row.Dropped:
		stored += ", with which it was dropped"
	}
	fmt.Fprintf(&b, "The coordination store has %s of table %s. Transaction %d is on the disks of %s: the store is older than that, it was restored from a backup or lost writes.\n",
		stored, table, n.File.Seq, joinIDs(n.Holders))
	if len(n.Silent) > 0 {
		fmt.Fprintf(&b, "%s did not answer: a newer transaction may be there. Start them first if they can be started.\n", joinIDs(n.Silent))
	}
	if n.Witness != "" {
		fmt.Fprintf(&b, "It was committed: %s acted by its map, or has a file that stands on it.\n", n.Witness)
	}
	for _, r := range n.Rivals {
		fmt.Fprintf(&b, "No server that answers acted by it, and %v is another of this number: if that one was committed, its change is lost, and no rows. --transaction names it instead.\n", r)
	}
	for _, w := range n.Strays {
		fmt.Fprintf(&b, "%s acted by transaction %d (%x), from which it does not follow: the changes of that one are lost, and rows of its partitions with them.\n", w.Server, w.Seq, w.Txn)
	}
	fmt.Fprintf(&b, "The map of transaction %d, with %d partitions, becomes the table's map again.\n", n.File.Seq, n.Map.Len())
	if follows, known := n.Follows(row); row.Seq > 0 && !follows {
		what := "It is not known whether it follows from what the store has"
		if known {
			what = "It does not follow from what the store has: the map was changed after the restore, and these changes are lost"
		}
		fmt.Fprintf(&b, "%s.%s\n", what, lostPartitions(old, n.Map))
	}
	b.WriteString("Lease rows are as old as the backup. Their in-sync lists may name servers that lack the newest acked rows, or lack those that have them: compare\n" +
		"`spillway partition list` with what you know, and take partitions that you doubt offline. Restart processes that ran before the restore if it set the store's revisions back (etcdutl without --bump-revision).")
	return b.String()
}

// lostPartitions names the partitions that only the older map has; servers delete their rows.
func lostPartitions(old, newest *topology.Map) string {
	if old == nil {
		return ""
	}
	var only []string
	for p := range old.All() {
		if q, ok := newest.ByID(p.ID); !ok || q.TimeLo != p.TimeLo || q.PointLo != p.PointLo {
			only = append(only, fmt.Sprintf("p%d", p.ID))
		}
	}
	if len(only) == 0 {
		return ""
	}
	return " Rows in " + strings.Join(only, " ") + " of the store's map are lost."
}
