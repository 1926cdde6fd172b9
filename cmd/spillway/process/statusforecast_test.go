package process

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// TestTheStatusShowsWhyRowsDoNotWait of a table that asks for smearing, and nothing of one that does not.
func TestTheStatusShowsWhyRowsDoNotWait(t *testing.T) {
	f := func(set smear.Rule, width time.Duration, servers int, window time.Duration, why smear.Reason) {
		t.Helper()
		m, err := topology.New("t", topology.Config{PartitionWidth: width, Smear: set})
		if err != nil {
			t.Fatal(err)
		}
		got := smearStatus(m, time.Unix(1e9, 0), servers)
		if set.Mode == smear.Off {
			if got != nil {
				t.Errorf("off: %+v", got)
			}
			return
		}
		if got == nil || got.Window != window || got.Why != string(why) {
			t.Errorf("%v of %v on %d servers: %+v, want %v, %s", set, width, servers, got, window, why)
		}
	}
	f(smear.Rule{}, 10*time.Second, 3, 0, "")
	f(smear.Rule{Mode: smear.Auto}, 10*time.Second, 3, 30*time.Second, smear.Spread)
	f(smear.Rule{Mode: smear.Auto}, time.Hour, 3, 0, smear.Wide)
	f(smear.Rule{Mode: smear.Auto}, 10*time.Second, 1, 0, smear.OneServer)
}

// TestTheForecastIsReadAsTheMasterWroteIt, and a table of which nothing was written has none.
func TestTheForecastIsReadAsTheMasterWroteIt(t *testing.T) {
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	now := point.Nanos(time.Now().UnixNano())
	m = m.Cover([]point.Nanos{now - 3600e9, now, now + 3600e9, now + 7200e9}, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "b"}} })
	var g *master.Growth
	sizes := map[lease.Partition]master.Size{}
	for at := now - 1800e9; at <= now; at += 60e9 {
		p, _ := m.Find(0, at)
		key := lease.Partition{Table: "t", ID: p.ID}
		rows := sizes[key].Rows + 6000
		sizes[key] = master.Size{Rows: rows, Bytes: int64(2 * rows)}
		g = g.Observed(at, m, sizes)
	}
	store := mem.New()
	if _, ok, err := store.Commit(t.Context(), nil, []coord.Write{{Key: master.GrowthPrefix + "t", Value: g.Encode()}}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	c := config{Config: settings.Default()}
	d := door{cfg: &c, behind: gatewayDeps{coord: store}}
	got, err := d.forecasts(t.Context(), found{of: m})
	if err != nil || len(got) != 1 || !got[0].Known || got[0].RowsPerSecond < 50 || got[0].RowsPerSecond > 150 || len(got[0].Partitions) < 3 {
		t.Errorf("%+v, %v", got, err)
	}
	other, err := topology.New("other", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.forecasts(t.Context(), found{of: other}); err != nil || got != nil {
		t.Errorf("of a table that was never written: %+v, %v", got, err)
	}
}
