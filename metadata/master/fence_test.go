package master

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
)

// TestAFenceThatIsWrittenAnewKeepsItsAge: else a step that is refused in every round would keep it for ever, and no server could lead the partition.
func TestAFenceThatIsWrittenAnewKeepsItsAge(t *testing.T) {
	now := time.Duration(0)
	rows := NewRows(func() time.Duration { return now }, time.Second)
	w := lease.Prohibit(lease.Partition{Table: "cpu", ID: 1}, "s1", lease.Note{Who: Fencer, When: time.Unix(9, 0).UTC(), Reason: "move p1"})
	for rev := range coord.Revision(100) {
		row := coord.Row{Key: w.Key, Value: w.Value, Revision: rev + 1}
		var err error
		if rev%7 == 3 {
			err = rows.Listed([]coord.Row{row}, row.Revision)
		} else {
			err = rows.Changed([]coord.Event{{Row: row}})
		}
		if err != nil {
			t.Fatal(err)
		}
		if old := len(rows.OldFences()) > 0; old != (now >= fenceAge) {
			t.Fatalf("after %v: old %v", now, old)
		}
		now += time.Second
	}
}
