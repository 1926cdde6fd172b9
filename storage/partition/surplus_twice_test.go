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
