package unzstd

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
)

var limits = Limits{Max: 64 << 20, Free: 256 << 10, Expand: 256}

// rooms gives memory and counts it.
type rooms struct{ bytes, calls int64 }

func (r *rooms) room(n int64) ([]byte, error) {
	r.bytes += n
	r.calls++
	return make([]byte, 0, n), nil
}

func decoder(t testing.TB) *Decoder {
	t.Helper()
	d, err := New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// pack encodes as a whole, with the size declared, or as a stream that is flushed after every so many bytes.
func pack(t testing.TB, plain []byte, flush int, opts ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, append(opts, zstd.WithEncoderConcurrency(1))...)
	if err != nil {
		t.Fatal(err)
	}
	if flush == 0 {
		defer w.Close()
		return w.EncodeAll(plain, nil)
	}
	for len(plain) > 0 {
		n := min(flush, len(plain))
		if _, err := w.Write(plain[:n]); err != nil {
			t.Fatal(err)
		}
		if plain = plain[n:]; len(plain) > 0 {
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func lines(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "cpu,host=h%02d usage=%d,idle=%d 1795279610%09d\n", i%40, i*i%97, i%13, i)
	}
	return b.Bytes()
}

// A sender that streams does not say how large its body is. Such bodies were refused as corrupt.
func TestBodiesOfSendersThatStreamArrive(t *testing.T) {
	d := decoder(t)
	for _, n := range []int{1, 10, 100, 1000, 8000} {
		plain := lines(n)
		for _, flush := range []int{0, len(plain), 64 << 10, 1000} {
			for _, level := range []zstd.EncoderLevel{zstd.SpeedFastest, zstd.SpeedBestCompression} {
				packed := pack(t, plain, flush, zstd.WithEncoderLevel(level))
				var r rooms
				out, err := d.Decode(packed, limits, r.room)
				if err != nil || !bytes.Equal(out, plain) {
					t.Errorf("%d lines flushed every %d, level %v: %d bytes of %d, %v", n, flush, level, len(out), len(plain), err)
				}
				if flush != 1000 && r.calls > 1 {
					t.Errorf("%d lines flushed every %d, level %v: %d rooms", n, flush, level, r.calls)
				}
			}
		}
	}
}

func TestFramesOneAfterTheOther(t *testing.T) {
	d := decoder(t)
	skip := []byte{0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'a', 'b', 'c'}
	a, b := lines(3000), lines(500)
	packed := append(append(append(append([]byte(nil), skip...), pack(t, a, 20_000)...), skip...), pack(t, b, 0)...)
	out, err := d.Decode(packed, limits, new(rooms).room)
	if want := append(a, b...); err != nil || !bytes.Equal(out, want) {
		t.Errorf("%d bytes of %d, %v", len(out), len(want), err)
	}
}

func TestBombsAreRecognisedEarly(t *testing.T) {
	d := decoder(t)
	zeros := make([]byte, 63<<20)
	many := bytes.Repeat(pack(t, zeros[:200<<10], 0), 3000)
	for name, c := range map[string]struct {
		packed []byte
		want   error
	}{
		"declared":                  {pack(t, zeros, 0), ErrExpands},
		"declared, too large":       {pack(t, make([]byte, 65<<20), 0), ErrTooLarge},
		"streamed":                  {pack(t, zeros, len(zeros)), ErrExpands},
		"streamed and flushed":      {pack(t, zeros, 1<<20), ErrExpands},
		"many small frames":         {many, ErrExpands},
		"small":                     {pack(t, zeros[:8<<20], 8<<20), ErrExpands},
		"behind what is in earnest": {append(pack(t, lines(10), 100), pack(t, zeros, len(zeros))...), ErrExpands},
	} {
		var r rooms
		if _, err := d.Decode(c.packed, limits, r.room); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if r.bytes > 640<<10 {
			t.Errorf("%s: %d bytes packed took %d bytes", name, len(c.packed), r.bytes)
		}
	}
}

func TestEveryTruncationIsAnError(t *testing.T) {
	d := decoder(t)
	for _, flush := range []int{0, 700} {
		packed := pack(t, lines(50), flush)
		for i := 1; i < len(packed); i++ {
			if out, err := d.Decode(packed[:i], limits, new(rooms).room); err == nil {
				t.Errorf("%d of %d bytes: %d came out", i, len(packed), len(out))
			}
		}
	}
}

func TestRoomMayBeRefused(t *testing.T) {
	full := errors.New("full")
	_, err := decoder(t).Decode(pack(t, lines(10), 0), limits, func(int64) ([]byte, error) { return nil, full })
	if !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(pack(f, lines(20), 0))
	f.Add(pack(f, lines(20), 100))
	f.Add(pack(f, make([]byte, 3<<20), 1<<20))
	d := decoder(f)
	plain, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20), zstd.WithDecoderMaxWindow(windowMax))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(plain.Close)
	f.Fuzz(func(t *testing.T, packed []byte) {
		before := bytes.Clone(packed)
		out, err := d.Decode(packed, limits, new(rooms).room)
		if !bytes.Equal(packed, before) {
			t.Fatal("the packed bytes were changed")
		}
		switch {
		case errors.Is(err, ErrExpands), errors.Is(err, ErrTooLarge):
			return
		}
		want, wantErr := plain.DecodeAll(packed, nil)
		if errors.Is(wantErr, zstd.ErrWindowSizeExceeded) {
			return // beyond its 64 MiB; this decoder needs room only for the output
		}
		if wantErr == nil && err != nil {
			t.Fatalf("refused: %v", err)
		}
		if err == nil && (wantErr != nil || !bytes.Equal(out, want)) {
			t.Fatalf("%d bytes came out, want %d, %v", len(out), len(want), wantErr)
		}
	})
}

// Bytes changed at random never make more than an error.
func TestDamageIsAnError(t *testing.T) {
	d := decoder(t)
	r := rand.New(rand.NewPCG(1, 2))
	packed := pack(t, lines(2000), 5000)
	for range 500 {
		b := bytes.Clone(packed)
		b[r.IntN(len(b))] ^= byte(1 + r.IntN(255))
		out, err := d.Decode(b, limits, new(rooms).room)
		if err == nil && !bytes.Equal(out, lines(2000)) {
			t.Fatal("damage was not noticed")
		}
	}
}
