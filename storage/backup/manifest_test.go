package backup

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
)

var update = flag.Bool("update", false, "write the golden files anew")

func example() *Manifest {
	return &Manifest{
		Version: formatVersion, Made: time.Date(2026, 11, 22, 7, 5, 52, 335e6, time.UTC), Program: "1.2.3", Store: "0123456789abcdef0123456789abcdef",
		Missing: []string{"partition default/3: damaged"},
		Entries: []Entry{{[]byte("m/family/x"), []byte{0, 255}}, {[]byte("p/fedcba9876543210"), []byte(`{"v":1}`)}},
		Segments: []Segment{
			{Placement: 0xfedcba9876543210, Epoch: 2, Seq: 9, Size: 1229, Checksum: 0xfffffffffffffffe},
			{Placement: 1, Epoch: 1, Seq: 1, Size: 0, Checksum: 1},
		},
	}
}

// encoded is the file of a manifest.
func encoded(m *Manifest) (all []byte, err error) {
	for b, err := range m.pieces() {
		if all = append(all, b...); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func decoded(b []byte) (*Manifest, error) {
	return decode(bytes.NewReader(b), int64(len(b)), new(Settings).Hold)
}

func TestGolden(t *testing.T) {
	b, err := encoded(example())
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/20261122T070552.335Z.backup"
	if *update {
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, golden) {
		t.Errorf("encoded:\n%s\nwant\n%s", b, golden)
	}
	m, err := decoded(golden)
	if err != nil || !reflect.DeepEqual(m, example()) {
		t.Errorf("decoded: %+v %v", m, err)
	}
	if m.name() != "20261122T070552.335Z" || m.Segments[0].name() != "fffffffffffffffe-1229.seg" {
		t.Errorf("names %s %s", m.name(), m.Segments[0].name())
	}
}

// TestTheContentOfABackupIsBookedAsItIsRead: it was in no account, some gigabytes of a large cluster, in a process that serves beside the restore.
func TestTheContentOfABackupIsBookedAsItIsRead(t *testing.T) {
	m := example()
	for i := range 1000 {
		m.Entries = append(m.Entries, Entry{Key: fmt.Appendf(nil, "k%d", i), Value: make([]byte, 1000)})
		m.Segments = append(m.Segments, Segment{Placement: 1, Epoch: 1, Seq: uint64(i)})
	}
	b, err := encoded(m)
	if err != nil {
		t.Fatal(err)
	}
	held, most := int64(0), int64(1<<30)
	set := Settings{Memory: func(n int64) error {
		if held+n > most {
			return fault.Errorf(fault.Throttled, "full")
		}
		held += n
		return nil
	}}
	read := func() error { _, err := decode(bytes.NewReader(b), int64(len(b)), set.Hold); return err }
	if err := read(); err != nil || held < 1000*(1000+56) || held > int64(2*len(b)) {
		t.Errorf("%d bytes are booked for a file of %d: %v", held, len(b), err)
	}
	held, most = 0, 100_000
	if err := read(); !fault.Is(err, fault.Throttled) || held > most {
		t.Errorf("beside %d booked bytes: %v", held, err)
	}
}

// TestDamageIsSeen cuts a manifest everywhere and flips every bit of it.
func TestDamageIsSeen(t *testing.T) {
	b, err := encoded(example())
	if err != nil {
		t.Fatal(err)
	}
	for n := range b {
		if _, err := decoded(b[:n]); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	for bit := range 8 * len(b) {
		c := bytes.Clone(b)
		c[bit/8] ^= 1 << (bit % 8)
		if _, err := decoded(c); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
	}
}

func TestALaterVersionIsNotDamage(t *testing.T) {
	m := example()
	m.Version = clusterVersion + 1
	b, err := encoded(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decoded(b); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
}

func FuzzDecode(f *testing.F) {
	b, err := encoded(example())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:len(b)-sumBytes])
	f.Fuzz(func(t *testing.T, body []byte) {
		// With its checksum, or the parser would never be reached.
		m, err := decoded(append(bytes.Clone(body), []byte(sum(body))...))
		if err != nil {
			if !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.Invalid) {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := encoded(m)
		if err != nil {
			t.Skip("a time that JSON cannot hold")
		}
		if n, err := decoded(again); err != nil || !reflect.DeepEqual(n, m) {
			t.Fatalf("%+v, encoded and decoded: %+v %v", m, n, err)
		}
	})
}

func sum(body []byte) string { return string(sumLine(xxhash.Sum64(body))) }
