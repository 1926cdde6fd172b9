package lease

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var rewrite = flag.Bool("golden", false, "write golden files anew")

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

var goldenLease = Lease{
	State: Held, Holder: "s1", Boot: "b7", Store: "4f1c", Epoch: 42,
	InSync:  []Member{{1, "s1", "4f1c"}, {0xffffffffffffffff, "s2", "90aa"}},
	Ends:    []point.EpochEnd{{Epoch: 7, Seq: 1000}},
	Offline: &Note{"ann", noon, "crashes on load"}, Bump: &Note{"ben", noon, "reload"}, Nonce: "b7-01",
}

// goldenEmpty is the row of a partition without any row written yet.
var goldenEmpty = Lease{State: Held, Holder: "s1", Boot: "b7", Store: "4f1c", Epoch: 42, InSync: []Member{{1, "s1", "4f1c"}}, Empty: true, Nonce: "b7-01"}

var goldenBeat = Beat{Server: "s1", Boot: "b7", Store: "4f1c", N: 900, Load: 0.25, Held: 12, Draining: true, Time: noon}

// goldenHanded is the row of a partition that is to be handed over.
var goldenHanded = Lease{State: Held, Holder: "s1", Boot: "b7", Store: "4f1c", Epoch: 42, InSync: []Member{{1, "s1", "4f1c"}, {2, "s2", "90aa"}},
	Next: &Next{"s2", Note{"master", noon, "s1 accepts 9000 rows/s, s2 100"}}, Nonce: "b7-01"}

// goldenWrites is the row of a server that reports the rows it accepts.
var goldenWrites = Beat{Server: "s1", Boot: "b7", Store: "4f1c", N: 900, Load: 0.25, Held: 12, Guards: true, Time: noon,
	Writes: &Writes{Hot: []Hot{{"cpu/7", 8000, 310}, {"mem/1", 250, 5}}, Rest: 40}}

// goldenSlow is the row of a server with a slow disk.
var goldenSlow = Beat{Server: "s1", Boot: "b7", Store: "4f1c", N: 900, Load: 0.25, Held: 12, Draining: true, Fsync: 1300 * time.Millisecond, SlowDisk: true, Guards: true, Time: noon}

func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", "rows", name)
	if *rewrite {
		if err := os.WriteFile(path, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want = bytes.TrimSuffix(want, []byte("\n"))
	if !bytes.Equal(got, want) {
		t.Errorf("%s is now\n%s\nand was\n%s\nrows of running clusters have the old form", name, got, want)
	}
	return want
}

func TestRowsKeepTheirForm(t *testing.T) {
	l, err := DecodeLease(golden(t, "lease.json", goldenLease.Encode()))
	if diff := cmp.Diff(goldenLease, l); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if l.Empty {
		t.Error("a row from before there was such a mark is said to be empty")
	}
	for name, want := range map[string]Lease{"lease_empty.json": goldenEmpty, "lease_vacant.json": goldenEmpty.Vacated(), "lease_handed.json": goldenHanded} {
		l, err := DecodeLease(golden(t, name, want.Encode()))
		if diff := cmp.Diff(want, l); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	if vacant := goldenEmpty.Vacated(); !vacant.Vacant() || goldenEmpty.Vacant() || goldenLease.Vacant() || vacant.Holder != "s1" || vacant.Epoch != 42 {
		t.Errorf("vacated: %+v", vacant)
	}
	b, err := DecodeBeat(golden(t, "beat.json", goldenBeat.Encode()))
	if diff := cmp.Diff(goldenBeat, b); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	b, err = DecodeBeat(golden(t, "beat_slow.json", goldenSlow.Encode()))
	if diff := cmp.Diff(goldenSlow, b); diff != "" || err != nil {
		t.Errorf("beat of a slow disk: %v\n%s", err, diff)
	}
	b, err = DecodeBeat(golden(t, "beat_writes.json", goldenWrites.Encode()))
	if diff := cmp.Diff(goldenWrites, b); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	missing := Beat{Server: "s1", Boot: "b9-01", Missing: true, Guards: true, Time: noon}
	b, err = DecodeBeat(golden(t, "beat_missing.json", missing.Encode()))
	if diff := cmp.Diff(missing, b); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	golden(t, "prohibit.json", Prohibit(Partition{"cpu", 7}, "s2", Note{"ann", noon, "bad disk"}).Value)
}

func TestCutRowsAreCorrupt(t *testing.T) {
	beat := goldenBeat.Encode()
	for _, lease := range [][]byte{goldenLease.Encode(), goldenEmpty.Encode(), goldenEmpty.Vacated().Encode(), goldenHanded.Encode()} {
		for i := range lease {
			if _, err := DecodeLease(lease[:i]); !fault.Is(err, fault.Corrupt) {
				t.Fatalf("lease row cut at %d: %v", i, err)
			}
		}
	}
	for i := range beat {
		if _, err := DecodeBeat(beat[:i]); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("heartbeat row cut at %d: %v", i, err)
		}
	}
}

func TestStrangeRowsAreCorrupt(t *testing.T) {
	for _, row := range []string{
		`{"v":2,"state":"free","epoch":1}`, `{"state":"free"}`, `{"v":1,"state":"burning"}`,
		`{"v":1,"state":"held","holder":"s1","boot":"b1"}`, `{"v":1,"state":"held","epoch":3}`, strings.Repeat(" ", RowMax+1),
	} {
		if _, err := DecodeLease([]byte(row)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%.60s: %v", row, err)
		}
	}
	if _, err := DecodeBeat([]byte(`{"v":1,"server":"s1"}`)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a heartbeat of no boot: %v", err)
	}
}

func FuzzDecodeLease(f *testing.F) {
	f.Add(goldenLease.Encode())
	f.Add(goldenEmpty.Encode())
	f.Add([]byte(`{"v":1,"state":"free","epoch":0}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := DecodeLease(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		again, err := DecodeLease(l.Encode())
		if err != nil || !bytes.Equal(again.Encode(), l.Encode()) {
			t.Fatalf("%+v became %+v: %v", l, again, err)
		}
	})
}

func TestKeys(t *testing.T) {
	p := Partition{"a/b", 7}
	if key := RowKey(p); key != "leases/p/a/b/00000000000000000007" {
		t.Error(key)
	}
	if got, ok := parsePath(RowKey(p)[len(rowPrefix):]); !ok || got != p {
		t.Error(got, ok)
	}
	for _, bad := range []string{"", "x", "cpu/7", "cpu/0000000000000000000x", "cpu/99999999999999999999"} {
		if p, ok := parsePath(bad); ok {
			t.Errorf("%q is %v", bad, p)
		}
	}
}

func TestSettingsThatLetTwoActAreRefused(t *testing.T) {
	f := func(s Settings, want string) {
		t.Helper()
		s.setDefaults()
		err := s.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(Settings{}, "")
	f(Settings{TakeAfter: 3600 * time.Millisecond}, "would let two servers act")
	f(Settings{TakeAfter: 3700 * time.Millisecond}, "")
	f(Settings{RenewEvery: 2 * time.Second}, "no second attempt")
	f(Settings{RetryAfter: -1}, "must be positive")
	f(Settings{AcquireMax: -1}, "at least one request")
}
