package remotewrite

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

// symbolHashes gives the hashes of n symbols that differ little from each other.
func symbolHashes(n int) []point.Hash {
	d := point.NewDict(0)
	hs := make([]point.Hash, n)
	for i := range hs {
		hs[i] = d.Hash(fmt.Appendf(nil, "host_%d", i))
	}
	return hs
}

func mixOf(hs ...point.Hash) point.Hash {
	m := mixBegin()
	for i := 0; i < len(hs); i += 2 {
		m.pair(hs[i], hs[i+1])
	}
	return m.sum()
}

// TestMixOfSimilarSeriesNeverMeets mixes 300,000 sequences made of few symbols and looks at every quarter of the
// sums: 32 bits of a good hash of so many collide about 10 times.
func TestMixOfSimilarSeriesNeverMeets(t *testing.T) {
	h := symbolHashes(100)
	seen := make(map[point.Hash]bool, 300_000)
	var quarters [4]map[uint32]bool
	for q := range quarters {
		quarters[q] = make(map[uint32]bool, 300_000)
	}
	met := [4]int{}
	for i := range 300_000 {
		s := mixOf(h[i%100], h[i/100%100], h[i/10_000%100], h[0])
		if seen[s] {
			t.Fatalf("two sequences share %x", s)
		}
		seen[s] = true
		for q, v := range [4]uint32{uint32(s.Lo), uint32(s.Lo >> 32), uint32(s.Hi), uint32(s.Hi >> 32)} {
			if quarters[q][v] {
				met[q]++
			}
			quarters[q][v] = true
		}
	}
	for q, n := range met {
		if n > 40 {
			t.Errorf("quarter %d: %d sums met, of a good hash about 10", q, n)
		}
	}
}

func TestMixDistinguishesOrderAndPlace(t *testing.T) {
	h := symbolHashes(4)
	seqs := [][]point.Hash{
		{}, {h[0], h[1]}, {h[1], h[0]}, {h[0], h[1], h[2], h[3]}, {h[2], h[3], h[0], h[1]}, {h[0], h[3], h[2], h[1]},
		{h[0], h[0]}, {h[0], h[0], h[0], h[0]}, {h[0], h[1], h[0], h[1]}, {{}, {}}, {{}, {}, {}, {}},
	}
	seen := map[point.Hash]int{}
	for i, s := range seqs {
		sum := mixOf(s...)
		if j, dup := seen[sum]; dup {
			t.Errorf("sequences %d and %d share a sum", i, j)
		}
		seen[sum] = i
	}
}

// TestMixSpreadsEveryBit flips one bit of one symbol's hash: each bit of the sum must change half of the time.
func TestMixSpreadsEveryBit(t *testing.T) {
	const rounds = 512
	hs := symbolHashes(24 * rounds)
	for at := range 24 {
		for bit := 0; bit < 128; bit += 7 {
			flips := 0
			for r := range rounds {
				seq := append([]point.Hash(nil), hs[24*r:24*r+24]...)
				a := mixOf(seq...)
				if bit < 64 {
					seq[at].Lo ^= 1 << bit
				} else {
					seq[at].Hi ^= 1 << (bit - 64)
				}
				b := mixOf(seq...)
				flips += bits.OnesCount64(a.Lo^b.Lo) + bits.OnesCount64(a.Hi^b.Hi)
			}
			if share := float64(flips) / (128 * rounds); math.Abs(share-0.5) > 0.02 {
				t.Errorf("symbol %d, bit %d: %.3f of the sum's bits change", at, bit, share)
			}
		}
	}
}

// TestMixIsNoSumOfRawBytes: the domains of 1.0 and 2.0 are apart even where the bytes agree.
func TestMixIsNoSumOfRawBytes(t *testing.T) {
	d := point.NewDict(0)
	if d.Hash(nil) == mixOf() {
		t.Error("nothing has one sum in both versions")
	}
}

// TestSeriesHaveTheSameHashWhateverStandsBeforeThem: the state kept from the series before saves work and nothing else. References lie in memory that
// is used again, as those of series that do not keep them together do.
func TestSeriesHaveTheSameHashWhateverStandsBeforeThem(t *testing.T) {
	r := rand.New(rand.NewPCG(20061, 1))
	var s symbols
	s.hashes = symbolHashes(300)
	s.spans = make([]span, 300)
	var buf []byte
	refs := []uint64{0, 1}
	for range 100_000 {
		switch r.IntN(6) {
		case 0: // another label at any place
			refs[r.IntN(len(refs))] = r.Uint64N(300)
		case 1: // another metric
			refs[1] = r.Uint64N(300)
		case 2:
			refs = refs[:2+2*r.IntN(len(refs)/2)]
		case 3:
			for range r.IntN(50) {
				refs = append(refs, r.Uint64N(300), r.Uint64N(300))
			}
			refs = refs[:min(len(refs), 100)]
		case 4: // the same once more
		case 5:
			s.before.forget() // the next request
		}
		buf = buf[:0]
		for _, ref := range refs {
			buf = binary.AppendUvarint(buf, ref)
		}
		wrong := r.IntN(20) == 0
		if wrong {
			buf = binary.AppendUvarint(buf, 300)
		}
		got, ok := s.hashRefs(buf)
		want, wantOK := s.hashLongRefs(buf)
		if ok == wrong || ok != wantOK || got != want {
			t.Fatalf("references %v: %x, %v; alone %x, %v", refs, got, ok, want, wantOK)
		}
	}
}
