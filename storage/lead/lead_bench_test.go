package lead

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// BenchmarkMayAct is a cost that an insert has three times, with the clock that a server has.
func BenchmarkMayAct(b *testing.B) {
	w := newWorld(b)
	s1 := w.start("s1", vfs.NewMem())
	p := w.create("s1")
	w.led(p)
	for b.Loop() {
		if _, ok := s1.MayAct("t", p); !ok {
			b.Fatal("the lease is lost")
		}
	}
}
