package figures

import (
	"math"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestTheForecastShowsWhatIsLaidOut: the rate of a steady load, the newest partitions that ended with their sizes, and those to come with the ones that they should get.
func TestTheForecastShowsWhatIsLaidOut(t *testing.T) {
	hour := point.Nanos(time.Hour)
	now := presplit.SyntheticStart + 12*hour + hour/2
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var times []point.Nanos
	for i := range 24 {
		times = append(times, presplit.SyntheticStart+point.Nanos(i)*hour)
	}
	m = m.Cover(times, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "b"}} })
	var rows presplit.History
	for at := presplit.SyntheticStart; at < now; at += 60e9 {
		rows.Observe(at, at+60e9, 6000) // 100 rows a second
	}
	f := Forecaster{Map: m, Now: now, Ahead: 2 * time.Hour, Past: 3, Target: 1e6, Sizes: func(id point.PartitionID) (master.Size, bool) {
		p, _ := m.ByID(id)
		switch {
		case p.TimeHi <= now:
			return master.Size{Rows: 350_000, Bytes: 700_000}, true
		case p.TimeLo <= now:
			return master.Size{Rows: 180_000, Bytes: 999}, true
		}
		return master.Size{}, false
	}}
	got := f.Column(master.ColumnGrowth{Rows: &rows, BytesPerRow: 2})
	if !got.Known || math.Abs(got.RowsPerSecond-100) > 1 || got.RingHi != 1 || len(got.Points) != 13 || math.Abs(got.Points[12].BytesPerSecond-200) > 2 || got.Since == nil {
		t.Errorf("%+v", got)
	}
	if len(got.Partitions) != 6 {
		t.Fatalf("%+v", got.Partitions)
	}
	for i, p := range got.Partitions {
		want := int64(700_000)
		if i >= 3 {
			want = 720_000 // present and expected rows
		}
		if p.Bytes == nil || math.Abs(float64(*p.Bytes-want)) > 10_000 || p.Expected != (i >= 3) || p.From != time.Unix(0, presplit.SyntheticStart+point.Nanos(9+i)*hour).UTC() || p.Server != "b" {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
}
