package local

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestWitnessGolden(t *testing.T) {
	const golden = "testdata/witness.hex"
	file := append(testimony{rev: 6, rows: 3, sum: 0x0102030405060708}.slot(), testimony{rev: 7, rows: 4, sum: 0xfffefdfcfbfaf9f8}.slot()...)
	if *update {
		if err := os.WriteFile(golden, []byte(hex.Dump(file)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.Dump(file); got != string(want) {
		t.Errorf("a witness is\n%s\nwant\n%s", got, want)
	}
	newest, ok := parseWitness(file)
	if !ok || newest.rev != 7 || newest.rows != 4 || newest.sum != 0xfffefdfcfbfaf9f8 {
		t.Errorf("read %+v %v", newest, ok)
	}
}

// Cut or flipped anywhere, it says one of the two things it said, or nothing.
func TestADamagedWitnessIsNotBelieved(t *testing.T) {
	old, last := testimony{rev: 6, rows: 3, sum: 1}, testimony{rev: 7, rows: 4, sum: 2}
	file := append(old.slot(), last.slot()...)
	hold := func(what string, at int, b []byte) {
		t.Helper()
		if got, ok := parseWitness(b); ok && got != old && got != last {
			t.Errorf("%s %d: read %+v", what, at, got)
		}
	}
	for i := range file {
		hold("cut at", i, file[:i])
		for bit := range 8 {
			b := bytes.Clone(file)
			b[i] ^= 1 << bit
			hold("flipped at", i, b)
		}
	}
}

func FuzzParseWitness(f *testing.F) {
	f.Add(append(testimony{rev: 6}.slot(), testimony{rev: 7, rows: 4, sum: 2}.slot()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := parseWitness(b)
		if !ok {
			return
		}
		if again, ok := parseWitness(got.slot()); !ok || again != got {
			t.Errorf("%+v reads back as %+v", got, again)
		}
	})
}
