package staging

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

var update = flag.Bool("update", false, "write the golden files anew")

func exampleFrame() (Frame, []byte) {
	g := frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: 1 << 20, Defs: []point.Labels{point.MakeLabels("__name__", "m", "host", "a")},
		IDs: []point.DenseID{0, 0}, Times: []point.Nanos{5, 7}, Values: []float64{1, 2.5}}
	f := Frame{ID: ID{1 << 20, 77}, Table: "metrics", MapSeq: 9, Holders: []topology.ServerID{"s1", "s2"}, Since: time.Unix(1700000000, 5)}
	body := new(frame.Encoder).Append(nil, &g)
	f.Bytes = int64(len(body))
	return f, body
}

// TestTheLogIsTheDrawnOne compares the bytes with a file: servers of later versions read them.
func TestTheLogIsTheDrawnOne(t *testing.T) {
	f, body := exampleFrame()
	b := AppendForget(AppendFrame([]byte(FileMagic), &f, body), f.ID)
	f.Due = time.Unix(1700000030, 0)
	b = AppendFrame(b, &f, body)
	file := filepath.Join("testdata", "log.hex")
	if *update {
		if err := os.WriteFile(file, []byte(hex.Dump(b)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.Dump(b); got != string(want) {
		t.Errorf("the log is\n%swant\n%s", got, want)
	}
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	f, body := exampleFrame()
	b := AppendForget(AppendFrame(nil, &f, body), ID{3, 4})
	r, rest, err := CutRecord(b)
	if err != nil || r.Forget || string(r.Body) != string(body) || !reflect.DeepEqual(r.Frame, f) {
		t.Fatalf("%+v, %v", r, err)
	}
	f.Due = time.Unix(1700000030, 0)
	if r, _, err := CutRecord(AppendFrame(nil, &f, body)); err != nil || !reflect.DeepEqual(r.Frame, f) {
		t.Fatalf("%+v, %v", r, err)
	}
	r, rest, err = CutRecord(rest)
	if err != nil || !r.Forget || r.Frame.ID != (ID{3, 4}) || len(rest) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
}

// TestADamagedRecordIsFound cuts a record at every byte and flips every bit of it.
func TestADamagedRecordIsFound(t *testing.T) {
	f, body := exampleFrame()
	later := f
	later.Due = time.Unix(1700000030, 0)
	for _, whole := range [][]byte{AppendFrame(nil, &f, body), AppendFrame(nil, &later, body), AppendForget(nil, f.ID)} {
		for n := range whole {
			if r, _, err := CutRecord(whole[:n]); !fault.Is(err, fault.Corrupt) || !EndsEarly(whole[:n]) {
				t.Fatalf("cut at %d: %+v, %v", n, r, err)
			}
		}
		for i := range 8 * len(whole) {
			bad := append([]byte(nil), whole...)
			bad[i/8] ^= 1 << (i % 8)
			if r, _, err := CutRecord(bad); !fault.Is(err, fault.Corrupt) {
				t.Fatalf("bit %d flipped: %+v, %v", i, r, err)
			}
		}
	}
}

// FuzzCutRecord: a record that is read is written as it was, and nothing panics.
func FuzzCutRecord(f *testing.F) {
	x, body := exampleFrame()
	f.Add(AppendFrame(nil, &x, body))
	f.Add(AppendForget(nil, x.ID))
	x.Due = time.Unix(1700000030, 0)
	f.Add(AppendFrame(nil, &x, body))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rest, err := CutRecord(b)
		if Torn(b) && err == nil {
			t.Fatal("a record that is read is called torn")
		}
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		again := AppendForget(nil, r.Frame.ID)
		if !r.Forget {
			again = AppendFrame(nil, &r.Frame, r.Body)
		}
		if string(again) != string(b[:len(b)-len(rest)]) {
			t.Fatalf("%x is written as %x", b, again)
		}
	})
}
