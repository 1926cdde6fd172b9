package staging

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestFramesGoTogetherByTableAndSize, and those that could not be forwarded before go alone.
func TestFramesGoTogetherByTableAndSize(t *testing.T) {
	f := func(want string, due ...Frame) {
		t.Helper()
		text := ""
		for i := range due {
			due[i].ID.Stamp = point.Stamp(i)
		}
		for _, g := range Groups(due, 3, 10) {
			for _, f := range g {
				text += fmt.Sprint(f.ID.Stamp)
			}
			text += " "
		}
		if text != want {
			t.Errorf("%q, want %q", text, want)
		}
	}
	a, b, alone, large := Frame{Table: "a", Bytes: 1}, Frame{Table: "b", Bytes: 1}, Frame{Table: "a", Bytes: 1, Alone: true}, Frame{Table: "a", Bytes: 8}
	f("")
	f("0 ", a)
	f("012 34 ", a, a, a, a, a)
	f("01 2 ", a, a, b)
	f("0 1 2 34 ", a, alone, alone, a, a)
	f("012 3 ", a, large, a, large)
	f("0 12 ", large, large, a)
}

// TestManySmallFramesAreOnTheirWayAtOnce: by their rows, where each frame that goes alone costs a call.
func TestManySmallFramesAreOnTheirWayAtOnce(t *testing.T) {
	f := func(name string, rows int, alone bool, want int) {
		t.Helper()
		m := New(Settings{Server: "A", BytesMax: 1 << 30})
		for n := range 3 * smallForwardsMax {
			m.Restore(Frame{ID: ID{point.Stamp(n + 1), 1}, Table: "t", Bytes: 1, Rows: rows, Holders: []topology.ServerID{"A"}, Alone: alone})
		}
		due := m.Due(time.Unix(1700000000, 0))
		if len(due) != want {
			t.Errorf("%s: %d are due at once, want %d", name, len(due), want)
		}
		if more := m.Due(time.Unix(1700000000, 0)); len(more) > 0 {
			t.Errorf("%s: %d more are due", name, len(more))
		}
		for i := range due {
			m.Forwarded(due[i].ID)
		}
		if left := m.tables["t"]; left.underWay != 0 || left.wayRows != 0 {
			t.Errorf("%s: %d frames, %d rows are counted as under way", name, left.underWay, left.wayRows)
		}
		if more := m.Due(time.Unix(1700000000, 0)); len(more) != want {
			t.Errorf("%s: then %d are due at once, want %d", name, len(more), want)
		}
	}
	f("small ones", 1, false, smallForwardsMax)
	f("larger ones", 100, false, 1+(forwardRowsMax-1)/100)
	f("large ones", 10_000, false, forwardsMax)
	f("those that go alone", 1, true, forwardsMax)
}
