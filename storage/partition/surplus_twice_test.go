package partition

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestSurplusThatWaitsIsNotReplaced: H leads twice without anyone, and is cut behind the same frame both times, before the first frames were handed over.
func TestSurplusThatWaitsIsNotReplaced(t *testing.T) {
	fs := vfs.NewMem()
	h := openBench(t, fs, 1)
	h.must(h.put("a", 1, 1))
	h.must(h.FollowLeader(2))
	if h.HasSurplus() {
		t.Error("frames are set aside that were not cut")
	}
	first, err := h.Cut(point.Serial{})
	h.must(err)
	h.must(h.Lead(3))
	h.must(h.under(3, "b", 2))
	h.must(h.FollowLeader(4))
	second, err := h.Cut(point.Serial{})
	h.must(err)
	if first.Path == second.Path {
		t.Fatalf("both are in %s", first.Path)
	}
	h.close()

	h = following(t, fs, 4)
	defer h.close()
	h.must(h.Tidy(true))
	if !h.HasSurplus() {
		t.Error("it is forgotten after a restart")
	}
	files, err := h.SurplusFiles()
	h.must(err)
	got := ""
	for i := range files {
		h.must(h.ReadSurplus(&files[i], func(f *frame.Frame) error {
			for i, id := range f.IDs {
				got += fmt.Sprintf("%s %d:%v; ", f.Defs[id].Get("i"), f.Times[i], f.Values[i])
			}
			return nil
		}))
		h.must(h.ForgetSurplus(&files[i]))
	}
	if want := "a 1:1; b 2:3; "; got != want && got != "b 2:3; a 1:1; " {
		t.Errorf("set aside is %q, want %q", got, want)
	}
	if files, err = h.SurplusFiles(); len(files) > 0 || err != nil || h.HasSurplus() {
		t.Errorf("%v, %v are left", files, err)
	}
}

// TestRowsOfASeriesWhoseLabelsCannotBeReadAreNotCut: the labels of a quiet series could not be read, its file had none, and the log was cut: no server
// could read the file, and the rows of all series in it were lost.
func TestRowsOfASeriesWhoseLabelsCannotBeReadAreNotCut(t *testing.T) {
	h, _ := leading(t, vfs.NewMem(), 1)
	defer h.close()
	m := followingWith(t, vfs.NewMem(), 1, hushed)
	defer m.close()
	for _, name := range []string{"a", "b", "c"} {
		h.must(h.put(name, 1, 1))
	}
	m.must(m.catchUp(h, 1))
	h.must(h.Flush(t.Context(), ByAge))
	m.must(m.catchUp(h, 1))
	m.must(m.fetch(h, 1))
	h.must(h.put("a", 2, 2))
	m.must(m.catchUp(h, 1))
	v, err := m.View() // the row is applied
	m.must(err)
	v.Close()
	m.must(m.FollowLeader(2))
	if m.ids.Load().quiet == nil {
		m.mu.Lock()
		m.mu.warm = false
		m.mu.Unlock()
		m.must(m.warm())
	}
	last := m.Last()
	m.must(m.mu.segments[0].reader.Close()) // as an error of the disk at each read
	if s, err := m.Cut(m.Flushed()); err == nil || m.Last() != last {
		t.Errorf("cut off is %+v (%v), and the log ends at %v, not at %v", s, err, m.Last(), last)
	}
	if files, err := m.SurplusFiles(); len(files) > 0 || err != nil {
		t.Errorf("set aside are %v, %v", files, err)
	}
}
