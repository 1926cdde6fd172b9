package forward_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestRowsOfSeriesThatAServerRefusesAreNamedAndTheRestIsKept: rows of two partitions, one of whose leaders has no room for some series.
func TestRowsOfSeriesThatAServerRefusesAreNamedAndTheRestIsKept(t *testing.T) {
	c := newCluster(t, forward.Settings{}, "n1", "n2")
	full := func(l point.Labels) bool { return l.Get("i") != "1" && l.Get("i") != "3" }
	c.servers["n1"].room = full
	hour := int64(time.Hour)
	table, err := c.forward.Table(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	write := func(atomic bool, name string, hours ...int64) (*point.Batch, error) {
		t.Helper()
		b := point.GetBatch(table.Dict())
		b.Atomic = atomic
		for i := range 5 {
			id := querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, name, "i", fmt.Sprint(i)))
			b.BeginItem()
			for _, h := range hours {
				b.Append(id, h*hour+int64(i), float64(i))
			}
			b.Hists = append(b.Hists, point.HistRow{ID: id, Time: hours[0]*hour + int64(i), H: []byte{1}})
		}
		return b, table.Write(t.Context(), b, point.All)
	}
	b, err := write(false, "m", 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := c.tables.Get("t")
	one, _ := m.Find(0, hour)
	with1 := 0 // rows of the first hour, or of the second, are n1's
	if one.Placements[0].Server == "n1" {
		with1 = 1
	}
	if want := 2 + 2*with1; b.RefusedRows != want {
		t.Errorf("%d rows are refused, want %d: the floats of two series in the partition of n1, and their histograms where they lie there", b.RefusedRows, want)
	}
	var named []string
	for _, r := range b.Refused {
		if r.Kind != fault.Invalid || r.Reason != "no room" {
			t.Errorf("%+v", r)
		}
		if r.Item > 0 {
			named = append(named, fmt.Sprint(r.Item, r.Text))
		}
	}
	if got := strings.Join(named, " "); got != `2{__name__="m", i="1"} 4{__name__="m", i="3"}` {
		t.Errorf("refused are %s", got)
	}
	if want := []int{3 - with1, 7 - with1}; !slices.Equal(b.Unkept.Floats, want) || len(b.Unkept.Hists) != 2*with1 {
		t.Errorf("refused are the rows %v and the histograms %v, want the rows %v", b.Unkept.Floats, b.Unkept.Hists, want)
	}
	b.Put()

	c.servers["n1"].room = nil
	if b, err = write(false, "m", 1, 2); err != nil || b.RefusedRows != 0 {
		t.Errorf("when there is room again: %v, %d rows are refused", err, b.RefusedRows)
	}
	b.Put()
	c.servers["n1"].room = full
	if b, err = write(true, "other", int64(2-with1)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `i="1"`) || b.RefusedRows != 0 {
		t.Errorf("an atomic write of which series are refused: %v", err)
	}
	b.Put()
	if got := c.counted("spillway_forward_refused_series_total", ""); got != 4 {
		t.Errorf("%v series are counted as refused, want two of each write", got)
	}
}
