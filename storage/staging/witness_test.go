package staging

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// exampleWitness has marks of two files, of which the newer one was synced twice, and the contents of both.
func exampleWitness() (b []byte, contents map[uint64][]byte) {
	contents = map[uint64][]byte{6: []byte(FileMagic + "six"), 7: []byte(FileMagic + "seven")}
	b = make([]byte, 0, WitnessBytes)
	for i, m := range []Mark{markOf(6, contents[6], 5), markOf(7, contents[7][:9], 6), markOf(7, contents[7], 6)} {
		slot, at := AppendMark(nil, uint64(i+1), m)
		b = b[:max(len(b), int(at)+len(slot))]
		copy(b[at:], slot)
	}
	return b, contents
}

func markOf(number uint64, content []byte, first uint64) Mark {
	return Mark{Number: number, Bytes: uint64(len(content)), Sum: sumOf(content), First: first}
}

// TestTheWitnessIsTheDrawnOne compares the marks that it has with a file: servers of later versions read them.
func TestTheWitnessIsTheDrawnOne(t *testing.T) {
	b, _ := exampleWitness()
	var slots []byte
	for at := 0; at < len(b); at += 64 {
		if slot := b[at : at+64]; !bytes.Equal(slot, make([]byte, 64)) {
			slots = append(slots, slot...)
		}
	}
	file := filepath.Join("testdata", "witness.hex")
	if *update {
		if err := os.WriteFile(file, []byte(hex.Dump(slots)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.Dump(slots); got != string(want) {
		t.Errorf("the marks are\n%swant\n%s", got, want)
	}
}

func TestTheWitnessNoticesWhatIsLost(t *testing.T) {
	b, contents := exampleWitness()
	w := ReadWitness(b)
	if m, writes := w.Newest(); m != markOf(7, contents[7], 6) || writes != 3 || w.Damaged != 0 {
		t.Errorf("the newest mark is %+v of %d, %d are damaged", m, writes, w.Damaged)
	}
	lost := func(number uint64, content string) bool {
		err := w.Examine(number, []byte(content))
		if err != nil && !fault.Is(err, fault.Corrupt) {
			t.Error(err)
		}
		return err != nil
	}
	f := func(number uint64, content string, want bool) {
		t.Helper()
		if got := lost(number, content); got != want {
			t.Errorf("file %d of %q: lost is %v", number, content, got)
		}
	}
	six, seven := string(contents[6]), string(contents[7])
	f(6, six, false)
	f(7, seven, false)
	f(7, seven+" and what was written after the last fsync", false)
	f(8, "", false) // it was begun, and nothing of it was durable
	f(7, seven[:len(seven)-1], true)
	f(7, "", true)
	f(7, six+"xx", true) // another one of the same length
	f(6, seven, true)
	g := func(want []uint64, there ...uint64) {
		t.Helper()
		if got := w.Missing(there); !slices.Equal(got, want) {
			t.Errorf("of %d there are missing %d, want %d", there, got, want)
		}
	}
	g(nil, 6, 7)
	g(nil, 5, 6, 7, 8)
	g([]uint64{6}, 7)
	g([]uint64{7}, 6)
	g([]uint64{6, 7})
	slot, at := AppendMark(nil, 4, Mark{Number: 7, Bytes: uint64(len(seven)), Sum: sumOf(contents[7]), First: 7})
	copy(b[at:], slot)
	w = ReadWitness(b)
	g(nil, 7) // 6 was removed
	if none := ReadWitness(nil); none.Damaged != 0 || none.Missing(nil) != nil || none.Examine(7, nil) != nil {
		t.Error("a witness that is not there finds something")
	}
}

// TestADamagedWitnessBlamesNoWholeLog cuts it at every byte and flips every bit: the flip is counted, and whatever is left of it finds the whole log whole.
func TestADamagedWitnessBlamesNoWholeLog(t *testing.T) {
	whole, contents := exampleWitness()
	f := func(what string, at int, b []byte) *Witness {
		t.Helper()
		w := ReadWitness(b)
		for n, content := range contents {
			if err := w.Examine(n, content); err != nil {
				t.Fatalf("%s at %d: file %d: %v", what, at, n, err)
			}
		}
		if lost := w.Missing([]uint64{6, 7}); lost != nil {
			t.Fatalf("%s at %d: %d are missing", what, at, lost)
		}
		return w
	}
	for place := 0; place < len(whole); place += 64 {
		empty := bytes.Equal(whole[place:place+64], make([]byte, 64))
		if empty && place%4096 != 0 {
			continue // empty places are alike
		}
		for at := place; at < place+64; at++ {
			w := f("cut", at, whole[:at])
			if partial := at > place && !empty; (w.Damaged == 1) != partial {
				t.Fatalf("cut at %d: %d places are damaged", at, w.Damaged)
			}
			for bit := range 8 {
				whole[at] ^= 1 << bit
				if w := f("flipped", at, whole); w.Damaged != 1 {
					t.Fatalf("bit %d of byte %d flipped: %d places are damaged", bit, at, w.Damaged)
				}
				whole[at] ^= 1 << bit
			}
		}
	}
	if w := ReadWitness(append(slices.Clone(whole[:cap(whole)]), 0)); w.Damaged != 1 {
		t.Errorf("one that is too long: %d places are damaged", w.Damaged)
	}
}

// FuzzReadWitness: a mark that is read is written as it was, at its place, and nothing panics.
func FuzzReadWitness(f *testing.F) {
	b, _ := exampleWitness()
	f.Add(b[:bytes.IndexByte(b, 'S')+64])
	slot, at := AppendMark(nil, 2, Mark{Number: 1, Bytes: 9, Sum: 5})
	f.Add(append(make([]byte, at), slot...))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := ReadWitness(b)
		if m, writes := w.Newest(); writes > 0 {
			again, at := AppendMark(nil, writes, m)
			if !bytes.Equal(b[at:at+int64(len(again))], again) {
				t.Fatalf("%+v is not at %d", m, at)
			}
		}
		for n, m := range w.marks {
			if n != m.Number || !reflect.DeepEqual(w.marks[n], m) {
				t.Fatalf("file %d has the mark %+v", n, m)
			}
			_ = w.Examine(n, b)
		}
		_ = w.Missing([]uint64{1})
	})
}
