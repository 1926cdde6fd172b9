package brick

import (
	"bytes"
	"encoding/hex"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/record"
	"github.com/google/go-cmp/cmp"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldenRecords are one of each kind.
func goldenRecords() [][]byte {
	file := header{kind: kindFile, synced: at(1, 0x2b), serial: point.Serial{Epoch: 2}}
	frame := header{kind: kindFrame, synced: at(2, 0x43), placement: 0x1122334455667788, serial: point.Serial{Epoch: 3, Seq: 0x0102030405}}
	copied := frame
	copied.flags = flagCopy
	mark := header{kind: kindMark, synced: at(2, 0x1234)}
	return [][]byte{
		append(file.append(nil), "the store's uuid"...),
		append(frame.append(nil), "rows"...),
		append(copied.append(nil), "rows"...),
		mark.append(nil),
	}
}

// TestGoldenFile compares the whole form of a file: headers of records, chunks around them, the trailer.
func TestGoldenFile(t *testing.T) {
	got := writeFile(t, 0x0badcafe, goldenRecords()...)
	path := filepath.Join("testdata", "file.hex")
	if *update {
		if err := os.WriteFile(path, []byte(hex.Dump(got)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(hex.Dump(got), "\n")); d != "" {
		t.Error(d)
	}
	recs, err := readFile(got, 0x0badcafe)
	if err != errTrailer || !cmp.Equal(recs, goldenRecords()) {
		t.Errorf("read back: %v, %v", recs, err)
	}
}

func TestRecordHeaderTruncatedAtEveryByte(t *testing.T) {
	for _, rec := range goldenRecords() {
		h, payload, err := decodeRecord(rec)
		if err != nil {
			t.Fatal(err)
		}
		if again := append(h.append(nil), payload...); !bytes.Equal(again, rec) {
			t.Errorf("%x decodes to %x", rec, again)
		}
		for n := range headerSize {
			if _, _, err := decodeRecord(rec[:n]); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%d of %d bytes: %v", n, len(rec), err)
			}
		}
	}
	for at, b := range map[int]byte{0: 2, 1: 0, 15: 0x80} {
		rec := goldenRecords()[1]
		rec[at] = b
		if _, _, err := decodeRecord(rec); !fault.Is(err, fault.Corrupt) {
			t.Errorf("byte %d = %d: %v", at, b, err)
		}
	}
}

// writeFile returns the file that record.LogWriter makes of records.
func writeFile(t testing.TB, tag uint32, recs ...[]byte) []byte {
	var f memory
	w := newLogWriter(record.NewLogWriter, &f, tag, record.LogWriterConfig{
		WriteWALSyncOffsets:       func() bool { return false },
		ExternalSyncQueueCallback: func(record.PendingSyncIndex, error) {},
	})
	for _, r := range recs {
		from := w.Size()
		if _, err := w.SyncRecordGeneralized(r, &record.PendingSyncIndex{Index: record.NoSyncIndex}); err != nil {
			t.Fatal(err)
		}
		if w.Size() != recordEnd(from, len(r)) {
			t.Fatalf("a record of %d at %d ends at %d, not %d", len(r), from, w.Size(), recordEnd(from, len(r)))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Bytes()
}

// TestAcknowledgedRecordsAtTheEndOfABlockAreSeenByARepair: the header of a record that starts in the last 50 bytes of a block lies in
// two chunks. A repair did not see such a record, and the store counted as one that had lost it.
func TestAcknowledgedRecordsAtTheEndOfABlockAreSeenByARepair(t *testing.T) {
	for left := 0; left <= chunkHeaderSize+headerSize+2; left++ {
		for _, size := range []int{0, 1, 100, 2 * blockSize} {
			record := func(seq uint64, n int) []byte {
				h := header{kind: kindFrame, placement: 7, serial: point.Serial{Epoch: 1, Seq: seq}}
				return append(h.append(nil), make([]byte, n)...)
			}
			first := blockSize - left - chunkHeaderSize - headerSize
			content := writeFile(t, 5, record(1, first), record(2, size), record(3, 10))
			for _, damaged := range []bool{false, true} {
				var want, got []uint64
				r := newReader(bytes.NewReader(content), int64(len(content)), 5, 0, nil)
				for rec, start, err := r.next(); err == nil; rec, start, err = r.next() {
					h, _, err := decodeRecord(rec)
					if err != nil {
						t.Fatal(err)
					}
					if want = append(want, h.serial.Seq<<32|uint64(start)); damaged && h.serial.Seq == 1 {
						want = nil // scanned for behind damage, as it is read where there is none
					}
				}
				content := bytes.Clone(content)
				if damaged {
					content[100] ^= 1
				}
				r = newReader(bytes.NewReader(content), int64(len(content)), 5, 0, nil)
				err := r.scan(0, func(start int64, h header) bool {
					got = append(got, h.serial.Seq<<32|uint64(start))
					return true
				})
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("%d bytes left in the block, %d bytes, damaged %t: found %x (%v), not %x", left, size, damaged, got, err, want)
				}
			}
		}
	}
}

type memory struct{ bytes.Buffer }

func (*memory) Sync() error { return nil }

func readFile(content []byte, tag uint32) (recs [][]byte, err error) {
	r := newReader(bytes.NewReader(content), int64(len(content)), tag, 0, nil)
	for {
		rec, _, err := r.next()
		if err != nil {
			return recs, err
		}
		recs = append(recs, bytes.Clone(rec))
	}
}

// readByPebble is the same by pebble's reader.
func readByPebble(content []byte, tag uint32) (recs [][]byte, err error) {
	r := newPebbleReader(record.NewReader, bytes.NewReader(content), tag)
	for {
		rr, err := r.Next()
		if err != nil {
			return recs, err
		}
		rec, err := io.ReadAll(rr)
		if err != nil {
			return recs, err
		}
		recs = append(recs, rec)
	}
}

func newPebbleReader[N ~uint64](make func(io.Reader, N) *record.Reader, r io.Reader, tag uint32) *record.Reader {
	return make(r, N(tag))
}

func TestReaderAgreesWithPebble(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		var recs [][]byte
		for range rng.IntN(60) {
			n := rng.IntN(200)
			switch rng.IntN(6) {
			case 0:
				n = rng.IntN(100_000)
			case 1: // around the end of a block
				n = max(0, blockSize-chunkHeaderSize*2-rng.IntN(40))
			}
			recs = append(recs, bytes.Repeat([]byte{byte(n)}, n))
		}
		content := writeFile(t, 77, recs...)
		got, err := readFile(content, 77)
		if err != errTrailer {
			t.Fatal(err)
		}
		theirs, err := readByPebble(content, 77)
		if err != io.EOF || len(got) != len(recs) || len(theirs) != len(recs) {
			t.Fatalf("%d records: we read %d, pebble %d, %v", len(recs), len(got), len(theirs), err)
		}
		for i := range recs {
			if !bytes.Equal(got[i], recs[i]) || !bytes.Equal(theirs[i], recs[i]) {
				t.Fatalf("record %d of %d bytes differs", i, len(recs[i]))
			}
		}
	}
}

func TestManifestEntriesTruncatedAtEveryByte(t *testing.T) {
	e := fileEntry{state: fileClosed, end: 12345, skips: []span{{10, 20}, {30, 99}}}
	b := e.append(nil)
	var back fileEntry
	if err := back.decode(b); err != nil || !cmp.Equal(e, back, cmp.AllowUnexported(fileEntry{}, span{})) {
		t.Errorf("%+v, %v", back, err)
	}
	for n := range b {
		if err := back.decode(b[:n]); (n < 10 || (n-10)%16 != 0) != (err != nil) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	ts := tombstones{{at(3, 7), seq(9)}, {at(5, 1), seq(2)}}
	b = ts.append(nil)
	if back, err := decodeTombstones(b); err != nil || !cmp.Equal(back, ts, cmp.AllowUnexported(tombstone{})) {
		t.Errorf("%v, %v", back, err)
	}
	if _, err := decodeTombstones(b[:25]); !fault.Is(err, fault.Corrupt) {
		t.Error(err)
	}
}

func TestTombstones(t *testing.T) {
	var ts tombstones
	ts = ts.add(tombstone{at(1, 100), seq(5)})
	ts = ts.add(tombstone{at(1, 200), seq(9)})
	if len(ts) != 2 || !ts.covers(at(1, 50), seq(6)) || ts.covers(at(1, 50), seq(5)) || ts.covers(at(1, 150), seq(6)) || !ts.covers(at(1, 150), seq(10)) {
		t.Errorf("%v", ts)
	}
	if ts = ts.add(tombstone{at(2, 0), seq(0)}); len(ts) != 1 {
		t.Errorf("what is covered stays: %v", ts)
	}
	if len(ts.since(2)) != 0 || len(ts.since(1)) != 1 {
		t.Errorf("since: %v", ts.since(2))
	}
}
