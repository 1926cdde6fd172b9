package paged_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/storage/paged"
)

func TestMapIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m paged.Map[uint32, uint32]
		want := map[uint32]uint32{}
		key := rapid.OneOf(rapid.Uint32Range(0, 3000), rapid.Uint32Range(0, 1<<20))
		for range rapid.IntRange(0, 50).Draw(t, "puts") {
			k, v := key.Draw(t, "k"), rapid.Uint32Max(1<<32-2).Draw(t, "v")
			m.Put(k, v)
			want[k] = v
		}
		ask := rapid.SliceOf(key).Draw(t, "asked")
		got, all := m.Append(nil, ask)
		wantAll := true
		for i, k := range ask {
			v, ok := want[k]
			wantAll = wantAll && ok
			if g, gok := m.Get(k); g != v && ok || gok != ok || ok && got[i] != v {
				t.Fatalf("%d: got %d %v and %d, want %d %v", k, g, gok, got[i], v, ok)
			}
		}
		if all != wantAll {
			t.Fatalf("all known: %v, want %v", all, wantAll)
		}
		n, last := 0, -1
		m.Each(func(k, v uint32) {
			if want[k] != v || int(k) <= last {
				t.Fatalf("each gave %d → %d after %d", k, v, last)
			}
			n, last = n+1, int(k)
		})
		if n != len(want) {
			t.Fatalf("each gave %d of %d", n, len(want))
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	var m paged.Map[uint32, uint32]
	ks := make([]uint32, 2000)
	for i := range ks {
		ks[i] = uint32(i)
		m.Put(uint32(i), uint32(i))
	}
	dst := make([]uint32, 0, len(ks))
	b.ReportAllocs()
	for b.Loop() {
		dst, _ = m.Append(dst[:0], ks)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2000, "ns/row")
}
