package brick

import (
	"bytes"
	"testing"
)

// FuzzFile feeds any bytes to the reader of a log file: no panic, no more records than bytes, and a file that this reader reads to
// a proper end is read the same by pebble's. (At a bad checksum pebble looks for the flipped bit for up to a second.)
func FuzzFile(f *testing.F) {
	whole := writeFile(f, 9, append(goldenRecords(), bytes.Repeat([]byte("long"), blockSize/4+5))...)
	f.Add(whole)
	f.Add(whole[:blockSize+5])
	f.Add(writeFile(f, 9))
	f.Fuzz(func(t *testing.T, content []byte) {
		ours, end := readFile(content, 9)
		total := 0
		for _, r := range ours {
			total += len(r)
			_, _, _ = decodeRecord(r)
		}
		if total > len(content) {
			t.Fatalf("%d bytes of records in a file of %d", total, len(content))
		}
		if end == errTrailer || end == errShort {
			theirs, _ := readByPebble(content, 9)
			for i, r := range ours {
				if i >= len(theirs) || !bytes.Equal(r, theirs[i]) {
					t.Fatalf("record %d is not what pebble reads", i)
				}
			}
		}
		r := newReader(bytes.NewReader(content), int64(len(content)), 9, 0, nil)
		if err := r.scan(0, func(start int64, h header) bool { return start >= 0 && start < int64(len(content)) }); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzRecord feeds any bytes to the decoder of a record: a record that it accepts encodes to the same bytes.
func FuzzRecord(f *testing.F) {
	for _, r := range goldenRecords() {
		f.Add(r)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, payload, err := decodeRecord(b)
		if err != nil {
			return
		}
		again := append(h.append(nil), payload...)
		copy(again[3:8], b[3:8]) // reserved: written as zero, not looked at
		if !bytes.Equal(again, b) {
			t.Fatalf("%x becomes %x", b, again)
		}
	})
}

// FuzzManifest feeds any bytes to the decoders of the brick's catalogue values.
func FuzzManifest(f *testing.F) {
	f.Add((&fileEntry{state: fileClosed, end: 5, skips: []span{{1, 2}}}).append(nil))
	f.Add(tombstones{{at(1, 2), seq(3)}}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e fileEntry
		if err := e.decode(b); err == nil && !bytes.Equal(e.append(nil), b) {
			t.Fatalf("%x becomes %x", b, e.append(nil))
		}
		if ts, err := decodeTombstones(b); err == nil && !bytes.Equal(ts.append(nil), b) {
			t.Fatalf("%x becomes %x", b, ts.append(nil))
		}
	})
}
