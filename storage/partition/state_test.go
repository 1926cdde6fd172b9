package partition

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// aState is a catalogue entry in which everything is set.
func aState() *State {
	first := segment.Info{
		Meta: segment.Meta{Table: "t", Partition: 7, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true,
			Ends: []point.EpochEnd{{Epoch: 1, Seq: 90}}},
		FormatVersion: 1, Size: 4096, Checksum: 1<<64 - 1, Rows: 100, Series: 10, Definitions: 12, Exemplars: 3,
		TimeLo: -5, TimeHi: 1<<63 - 1, StampLo: 1, StampHi: 1<<64 - 1,
	}
	second := first
	second.ID, second.Base, second.Major = point.SegmentID{Epoch: 2, Seq: 2}, first.ID, false
	second.Ends = []point.EpochEnd{{Epoch: 2, Seq: 101}}
	return &State{
		Identity: Identity{Table: "t", Partition: 7, Placement: 0xfedcba9876543210, TimeLo: -1 << 63, TimeHi: 1<<63 - 1},
		Flushed:  point.Serial{Epoch: 2, Seq: 101}, Ends: []point.EpochEnd{{Epoch: 1, Seq: 90}, {Epoch: 2, Seq: 101}},
		Segments: []SegmentState{
			{Info: first, Tombstones: []Tombstone{{Matchers: []peer.Matcher{{Type: peer.MatchRegexp, Name: "a", Value: "b|\x00\"é"}}, Lo: -1 << 63, Hi: 1<<63 - 1}}},
			{Info: second, Tombstones: []Tombstone{{Matchers: []peer.Matcher{{Name: "a", Value: "c"}}, Lo: 1, Hi: 2, At: point.Serial{Epoch: 2, Seq: 102}}}},
		},
		Deleted:     []Deleted{{Tombstone{Matchers: []peer.Matcher{{Name: "a", Value: "c"}}, Lo: 1, Hi: 2, At: point.Serial{Epoch: 2, Seq: 102}}, 1<<64 - 1}},
		NextSegment: 3,
		Adopting:    &point.SegmentID{Epoch: 3, Seq: 3},
	}
}

// TestCatalogueEntryIsAsInTheGoldenFile: later builds must read the entries of earlier ones, so the bytes are pinned.
func TestCatalogueEntryIsAsInTheGoldenFile(t *testing.T) {
	const name = "testdata/state.json"
	got := append(aState().encode(), '\n')
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the entry is\n%swant\n%s", got, want)
	}
	st, err := DecodeState(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(aState(), st); diff != "" {
		t.Error(diff)
	}
}

func TestCutCatalogueEntriesAreCorrupt(t *testing.T) {
	whole := aState().encode()
	for n := range whole {
		if _, err := DecodeState(whole[:n]); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("the first %d bytes: %v, want corrupt", n, err)
		}
	}
}

func TestWrongCatalogueEntriesAreCorrupt(t *testing.T) {
	f := func(old, new, want string) {
		t.Helper()
		text := string(aState().encode())
		if !strings.Contains(text, old) {
			t.Fatalf("the entry has no %s", old)
		}
		_, err := DecodeState([]byte(strings.Replace(text, old, new, 1)))
		if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s → %s: %v, want corrupt: %s", old, new, err, want)
		}
	}
	f(`{"v":1`, `{"v":2`, "this build reads version 1")
	f(`{"v":1`, `{"w":1`, "version 0")
	f(`"major":true`, `"major":false`, "the chain must start with its only major")
	f(`"major":false`, `"major":true`, "the chain must start with its only major")
	f(`"placement":18364758544493064720`, `"placement":-1`, "placement")
	f(`"base":{"Epoch":1,"Seq":1}`, `"base":{"Epoch":1,"Seq":9}`, "follows")
	f(`"flushed":{"Epoch":2,"Seq":101}`, `"flushed":{"Epoch":3,"Seq":1}`, "ends")
	f(`"time_hi":9223372036854775807`, `"time_hi":-9223372036854775808`, "empty")
	if _, err := DecodeState([]byte(`null`)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("null: %v, want corrupt", err)
	}
}

// FuzzDecodeState: decoding any bytes gives an error or an entry that encodes and decodes to the same.
func FuzzDecodeState(f *testing.F) {
	f.Add(aState().encode())
	f.Add((&State{Identity: Identity{Table: "t", TimeHi: 1}}).encode())
	f.Add([]byte(`{"v":1,"segments":[{"tombstones":[{}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := DecodeState(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatalf("%v, want corrupt", err)
			}
			return
		}
		again, err := DecodeState(st.encode())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.encode(), st.encode()) {
			t.Fatalf("%s became %s", st.encode(), again.encode())
		}
	})
}

func TestRaiseKeepsEpochsInOrder(t *testing.T) {
	ends := raise(nil, point.EpochEnd{Epoch: 3, Seq: 30})
	ends = raise(ends, point.EpochEnd{Epoch: 1, Seq: 10})
	ends = raise(ends, point.EpochEnd{Epoch: 3, Seq: 20})
	ends = raise(ends, point.EpochEnd{Epoch: 2, Seq: 15})
	want := []point.EpochEnd{{Epoch: 1, Seq: 10}, {Epoch: 2, Seq: 15}, {Epoch: 3, Seq: 30}}
	if diff := cmp.Diff(want, ends); diff != "" {
		t.Error(diff)
	}
}
