package server_test

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// offered defines or offers the series from lo on, and returns how many are refused.
func offered(t *testing.T, st peer.Stream, lo, n int) peer.Refused {
	t.Helper()
	var defs []peer.Def
	for i := lo; i < lo+n; i++ {
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: labelsOf(i)})
	}
	refused, err := st.(peer.Offerer).Offer(t.Context(), defs)
	if err != nil {
		t.Fatal(err)
	}
	return refused
}

// TestATablesShareOfSeriesHoldsWhicheverGatewaySends: a storage server had memory for so many series, and accepted whatever any number of gateways sent.
func TestATablesShareOfSeriesHoldsWhicheverGatewaySends(t *testing.T) {
	const most, section = 8192, 256
	p := startWith(t, vfs.NewMem(), newMap(t), server.Settings{Server: "s1", Epoch: 1, SeriesMax: most})
	defer p.stop(t)
	open := func(table string) peer.Stream {
		t.Helper()
		st, err := p.server.OpenStream(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	first := open("t")
	refused := offered(t, first, 0, 2*most)
	got := 2*most - len(refused.IDs)
	if want := most / 4 * 3; got < want || got > want+section {
		t.Fatalf("%d series are taken where there is memory for %d: want three quarters of them", got, most)
	}
	if !strings.Contains(refused.Reason, `table "t"`) || !strings.Contains(refused.Reason, "intake.series_max") {
		t.Errorf("the reason is %q", refused.Reason)
	}

	// Those that are known go on, through another gateway too.
	second := open("t")
	if again := offered(t, second, 0, got); len(again.IDs) != 0 {
		t.Errorf("%d of %d known series are refused", len(again.IDs), got)
	}
	if more := offered(t, second, 4*most, section); len(more.IDs) != section {
		t.Errorf("%d of %d new series of the table above its share are refused", len(more.IDs), section)
	}
	// Another table has its share.
	quiet := open("quiet")
	if theirs := offered(t, quiet, 0, 500); len(theirs.IDs) != 0 {
		t.Errorf("%d of 500 series of a table within its share are refused", len(theirs.IDs))
	}
	// A series that another server accepted is defined, and kept.
	id := refused.IDs[0]
	if err := first.Define(t.Context(), []peer.Def{{ID: id, Labels: labelsOf(int(id))}}); err != nil {
		t.Fatal(err)
	}
	err := first.Insert(t.Context(), &peer.Insert{Partition: 1, Stamp: 1 << 10, IDs: []point.SeriesID{id}, Times: []point.Nanos{1e9}, Values: []float64{1}})
	if err != nil {
		t.Errorf("a row that another server accepted: %v", err)
	}
	for _, st := range []peer.Stream{first, second, quiet} {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
}
