package remotewrite_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/s2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

const bodyMax = 1 << 20

func TestSnappyReturnsTheBody(t *testing.T) {
	for _, body := range [][]byte{{}, []byte("x"), []byte(strings.Repeat("up and down ", 5000)), make([]byte, bodyMax)} {
		dst := make([]byte, 0, 100)
		got, err := remotewrite.DecompressSnappy(dst, snappy.Encode(nil, body), bodyMax)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d of %d bytes: %v", len(got), len(body), err)
		}
		if len(body) > 0 && len(body) <= cap(dst) && &got[0] != &dst[:1][0] {
			t.Errorf("%d bytes were not put where there was room", len(body))
		}
	}
}

func TestSnappyRefuses(t *testing.T) {
	f := func(what string, src []byte, want fault.Kind) {
		t.Helper()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := remotewrite.DecompressSnappy(nil, src, bodyMax)
		runtime.ReadMemStats(&after)
		if got != nil || !fault.Is(err, want) {
			t.Errorf("%s: %d bytes, %v; want %v", what, len(got), err, want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
			t.Errorf("%s: took %d MiB", what, took>>20)
		}
	}
	f("over the limit", snappy.Encode(nil, make([]byte, bodyMax+1)), fault.TooLarge)
	f("declares 4 GiB", binary.AppendUvarint(nil, 1<<32-1), fault.TooLarge)
	f("declares more than it can hold", append(binary.AppendUvarint(nil, bodyMax), "xyz"...), fault.Invalid)
	f("declares 2^40", binary.AppendUvarint(nil, 1<<40), fault.Invalid)
	f("nothing", nil, fault.Invalid)
	f("frames", snappyFrames(t, []byte("body")), fault.Invalid)
	f("half", snappy.Encode(nil, []byte("hello, hello, hello"))[:8], fault.Invalid)
	f("repeat code of s2", append([]byte{12}, 3<<2, 'a', 'b', 'c', 'd', 0x01, 4, 0x01, 0), fault.Invalid)
}

func snappyFrames(t testing.TB, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := snappy.NewBufferedWriter(&b)
	_, err := w.Write(body)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSnappyAtItsDensestIsTaken guards the bound on the ratio: no valid snappy block may be refused for it.
func TestSnappyAtItsDensestIsTaken(t *testing.T) {
	// One literal byte, then copies of 64 bytes in three: the densest that the format allows.
	const copies = 10_000
	src := binary.AppendUvarint(nil, 1+64*copies)
	src = append(src, 0, 'x')
	for range copies {
		src = append(src, 63<<2|2, 1, 0)
	}
	got, err := remotewrite.DecompressSnappy(nil, src, bodyMax)
	if err != nil || len(got) != 1+64*copies {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func FuzzDecompressSnappy(f *testing.F) {
	f.Add(snappy.Encode(nil, []byte("hello, hello, hello")))
	f.Add(s2.Encode(nil, []byte(strings.Repeat("hello, ", 50))))
	f.Fuzz(func(t *testing.T, src []byte) {
		got, err := remotewrite.DecompressSnappy(nil, src, bodyMax)
		if _, head := binary.Uvarint(src); head > 5 {
			// 32 bits fit five bytes. The C++ reference refuses longer spellings as we do, the Go one reads them.
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("a length of %d bytes: %v", head, err)
			}
			return
		}
		n, lenErr := snappy.DecodedLen(src)
		if lenErr == nil && n > bodyMax {
			if !fault.Is(err, fault.TooLarge) {
				t.Fatalf("declares %d bytes: %v", n, err)
			}
			return
		}
		want, wantErr := snappy.Decode(nil, src)
		if (err == nil) != (wantErr == nil) || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v; reference %d bytes, %v", len(got), err, len(want), wantErr)
		}
	})
}
