package administration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestOneDeadServerWithAThousandTablesIsOneFinding: it was one for each table.
func TestOneDeadServerWithAThousandTablesIsOneFinding(t *testing.T) {
	e := examination{live: map[topology.ServerID]bool{"s1": true, "s2": true, "s4": true}, s: master.State{Leases: map[lease.Partition]lease.Lease{}}}
	for i, host := range []string{"h1", "h2", "h3", "h4"} {
		id := topology.ServerID(fmt.Sprintf("s%d", i+1))
		e.s.Servers = append(e.s.Servers, master.Server{Server: registry.Server{ID: id, Host: host}, Live: e.live[id]})
	}
	copies := func(table string, servers ...topology.ServerID) {
		t.Helper()
		m, err := topology.New(table, topology.Config{PartitionWidth: 24 * time.Hour, Replicas: len(servers)})
		if err != nil {
			t.Fatal(err)
		}
		var at []topology.Placement
		l := lease.Lease{State: lease.Held, Holder: servers[0], Epoch: 1}
		for i, s := range servers {
			pl := topology.Placement{Server: s, ID: point.PlacementID(i + 1)}
			if at = append(at, pl); i < len(servers)-1 {
				l.InSync = append(l.InSync, lease.Member{Server: s, Placement: pl.ID})
			}
		}
		if m, err = m.Apply(m.Covering([]point.Nanos{1}, func(point.PartitionID) []topology.Placement { return at })); err != nil {
			t.Fatal(err)
		}
		for p := range m.All() {
			e.s.Leases[lease.Partition{Table: table, ID: p.ID}] = l
		}
		e.s.Tables = append(e.s.Tables, m)
	}
	for i := range 1000 {
		copies(fmt.Sprintf("t%03d", i), "s1", "s2", "s3")
	}
	copies("other", "s1", "s2", "s4")
	e.partitions()
	got := e.grouped()
	if len(got) != 2 {
		t.Fatalf("%d findings, the first: %+v", len(got), got[:min(len(got), 3)])
	}
	if f := got[0]; f.Kind != "few copies" || f.Subject != "s3" || !strings.Contains(f.What, "1000 times, the first of t000: ") || !strings.Contains(f.What, "t001 t002 t003 t004 t005 and 994 more") || !strings.Contains(f.Do, "bring back s3") {
		t.Errorf("%+v", f)
	}
	if f := got[1]; f.Subject != "other" || !strings.Contains(f.Do, "wait") {
		t.Errorf("another cause: %+v", f)
	}
}
