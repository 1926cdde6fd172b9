package remotewrite_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

const bodyMax = 1 << 20

func zstdOf(t testing.TB, body []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(body, nil)
}

func newDecompressor(t testing.TB) *remotewrite.Decompressor {
	t.Helper()
	d, err := remotewrite.NewDecompressor(bodyMax)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func TestDecompressReturnsTheBody(t *testing.T) {
	d := newDecompressor(t)
	for _, body := range [][]byte{{}, []byte("x"), []byte(strings.Repeat("up and down ", 5000)), make([]byte, bodyMax)} {
		for enc, src := range map[remotewrite.Encoding][]byte{remotewrite.Snappy: snappy.Encode(nil, body), remotewrite.Zstd: zstdOf(t, body)} {
			dst := make([]byte, 0, 100)
			got, err := d.Decompress(dst, src, enc)
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("encoding %d: %d of %d bytes: %v", enc, len(got), len(body), err)
			}
			if len(body) > 0 && len(body) <= cap(dst) && &got[0] != &dst[:1][0] {
				t.Errorf("encoding %d: %d bytes were not put where there was room", enc, len(body))
			}
		}
	}
}

func TestDecompressRefuses(t *testing.T) {
	d := newDecompressor(t)
	large := make([]byte, bodyMax+1)
	f := func(what string, src []byte, enc remotewrite.Encoding, want fault.Kind) {
		t.Helper()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := d.Decompress(nil, src, enc)
		runtime.ReadMemStats(&after)
		if got != nil || !fault.Is(err, want) {
			t.Errorf("%s: %d bytes, %v; want %v", what, len(got), err, want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
			t.Errorf("%s: took %d MiB", what, took>>20)
		}
	}
	f("snappy over the limit", snappy.Encode(nil, large), remotewrite.Snappy, fault.TooLarge)
	f("snappy that declares 4 GiB", binary.AppendUvarint(nil, 1<<32-1), remotewrite.Snappy, fault.TooLarge)
	f("snappy that declares more than it can hold", append(binary.AppendUvarint(nil, bodyMax), "xyz"...), remotewrite.Snappy, fault.Invalid)
	f("snappy that declares 2^40", binary.AppendUvarint(nil, 1<<40), remotewrite.Snappy, fault.Invalid)
	f("nothing", nil, remotewrite.Snappy, fault.Invalid)
	f("snappy frames", snappyFrames(t, []byte("body")), remotewrite.Snappy, fault.Invalid)
	f("half of snappy", snappy.Encode(nil, []byte("hello, hello, hello"))[:8], remotewrite.Snappy, fault.Invalid)
	f("repeat code of s2", append([]byte{12}, 3<<2, 'a', 'b', 'c', 'd', 0x01, 4, 0x01, 0), remotewrite.Snappy, fault.Invalid)
	f("zstd over the limit", zstdOf(t, large), remotewrite.Zstd, fault.TooLarge)
	f("zstd in two frames over the limit", append(zstdOf(t, large[:bodyMax]), zstdOf(t, large[:9])...), remotewrite.Zstd, fault.TooLarge)
	f("no zstd", []byte("plain text"), remotewrite.Zstd, fault.Invalid)
	f("half of zstd", zstdOf(t, []byte("hello, hello, hello"))[:12], remotewrite.Zstd, fault.Invalid)
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

// TestSnappyAtItsDensestIsTaken guards the bound on the ratio: nothing that is snappy may be refused for it.
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
