package mapstore_test

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	coordmem "github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

var three = []topology.ServerID{"s1", "s2", "s3"}

// keepsBackups has the file of an older row stay until that row is put back.
func keepsBackups() mapstore.Settings {
	set := quick()
	set.KeepFiles = 4
	return set
}

// covered makes a table and covers so many hours more; it returns the row of each transaction, that at 0 of the first.
func (c *cluster) covered(hours int) (rows []mapstore.Row) {
	c.t.Helper()
	c.create("cpu", three...)
	rows = append(rows, c.row("cpu"))
	for hour := range hours {
		if err := c.cover(c.nodes[hour%3], "cpu", hour); err != nil {
			c.t.Fatal(err)
		}
		rows = append(rows, c.row("cpu"))
	}
	c.converged("cpu")
	return rows
}

// putBack has the coordination store hold an older row, and starts all servers again.
func (c *cluster) putBack(row mapstore.Row) {
	c.t.Helper()
	for _, n := range c.nodes {
		n.stop()
	}
	if _, _, err := c.store.Commit(c.t.Context(), nil, []coord.Write{{Key: mapstore.Key("cpu"), Value: row.Encode()}}); err != nil {
		c.t.Fatal(err)
	}
	for _, n := range c.nodes {
		c.start(n)
	}
}

// swept waits until every server swept several times.
func (c *cluster) swept() {
	for range 20 {
		time.Sleep(5 * time.Millisecond)
		for _, n := range c.nodes {
			n.server.Sweep(c.t.Context())
		}
	}
}

// TestTheNewestMapIsOnTheDisksHoweverLateTheRepair: the coordination store goes back, and the repair is not at once. The servers swept the newer files as
// undecided ones meanwhile: no repair found them, and the next partition got the id of one that had rows, which were deleted.
func TestTheNewestMapIsOnTheDisksHoweverLateTheRepair(t *testing.T) {
	for back, lost := range []string{1: "the last transaction", 3: "three transactions"} {
		if lost == "" {
			continue
		}
		t.Run(lost, func(t *testing.T) {
			c := newCluster(t, coordmem.New(), 3, keepsBackups())
			rows := c.covered(6)
			newest := rows[6]
			for _, n := range c.nodes {
				n.acted.Store(&peer.Acted{Txn: newest.Txn, Seq: newest.Seq})
			}
			c.putBack(rows[6-back])
			c.swept()
			if err := c.cover(c.nodes[1], "cpu", 20); !fault.Is(err, fault.Unavailable) {
				t.Errorf("a change on the old map: %v", err)
			}
			n, err := mapstore.FindNewest(t.Context(), "cpu", three, 2, c.peer)
			if err != nil || n.File.Txn != newest.Txn || len(n.Holders) < 2 {
				t.Fatalf("%v: %v", n, err)
			}
			if _, _, err := c.store.Commit(t.Context(), nil, []coord.Write{{Key: mapstore.Key("cpu"), Value: n.Row(rows[6-back]).Encode()}}); err != nil {
				t.Fatal(err)
			}
			if err := c.cover(c.nodes[1], "cpu", 20); err != nil {
				t.Errorf("a change on the newest map: %v", err)
			}
		})
	}
}

// TestATableGoesOnFromTheMapThatAPersonNames although servers acted by a newer one, whose files lie there: they are swept like others that lost.
func TestATableGoesOnFromTheMapThatAPersonNames(t *testing.T) {
	c := newCluster(t, coordmem.New(), 3, keepsBackups())
	rows := c.covered(6)
	for _, n := range c.nodes {
		n.acted.Store(&peer.Acted{Txn: rows[6].Txn, Seq: rows[6].Seq})
	}
	c.putBack(rows[3])
	n, err := mapstore.FindNamed(t.Context(), "cpu", three, rows[3].Txn, c.peer)
	if err != nil || n.Over != rows[6].Seq {
		t.Fatalf("%v over %d: %v", n, n.Over, err)
	}
	c.putBack(n.Row(rows[3]))
	for hour := 20; hour < 26; hour++ {
		err := c.cover(c.nodes[hour%3], "cpu", hour)
		for deadline := time.Now().Add(time.Minute); fault.Is(err, fault.Unavailable) && time.Now().Before(deadline); { // a server may not have the row yet
			err = c.cover(c.nodes[hour%3], "cpu", hour)
		}
		if err != nil {
			t.Fatalf("hour %d: %v", hour, err)
		}
	}
	if row := c.row("cpu"); row.Seq != rows[3].Seq+6 || row.Over != 0 {
		t.Errorf("%+v", row)
	}
	c.swept()
	for _, n := range c.nodes {
		for _, lost := range rows[4:6] {
			if _, _, err := n.disk.Get("cpu", lost.Txn); err == nil {
				t.Errorf("%s keeps transaction %d that a person decided against", n.id, lost.Seq)
			}
		}
	}
}
