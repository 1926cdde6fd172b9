package intake_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/point"
)

// packings are all encodings that line protocol may come in.
func packings(body []byte) map[string][]byte {
	var z, raw bytes.Buffer
	zw := zlib.NewWriter(&z)
	zw.Write(body)
	zw.Close()
	fw, _ := flate.NewWriter(&raw, 5)
	fw.Write(body)
	fw.Close()
	enc, _ := zstd.NewWriter(nil)
	defer enc.Close()
	half := len(body) / 2
	var streamed bytes.Buffer // without its size, as collectors send it
	sw, _ := zstd.NewWriter(&streamed)
	sw.Write(body[:half])
	sw.Flush()
	sw.Write(body[half:])
	sw.Close()
	return map[string][]byte{
		"identity":        body,
		"gzip":            gzipped(string(body)),
		"gzip members":    gzipped(string(body[:half]), string(body[half:])),
		"deflate zlib":    z.Bytes(),
		"deflate raw":     raw.Bytes(),
		"snappy":          snappy.Encode(nil, body),
		"zstd":            enc.EncodeAll(body, nil),
		"zstd streamed":   streamed.Bytes(),
		"zstd two frames": append(enc.EncodeAll(body[:half], nil), enc.EncodeAll(body[half:], nil)...),
	}
}

// TestBodiesOfEverySizeArriveWhole crosses the sizes of buffers, packed in every way. One line fills the body exactly.
func TestBodiesOfEverySizeArriveWhole(t *testing.T) {
	f := start(t)
	for _, size := range []int{20, 4095, 4096, 4097, 16383, 16384, 16385, 65536, 65537, 262_144, 1 << 20, 1<<20 + 1} {
		var b strings.Builder
		n := 0
		for ; b.Len()+40 < size; n++ {
			fmt.Fprintf(&b, "m,k=%d v=%d 1\n", n%7, n*7919)
		}
		last := fmt.Sprintf("end v=%d %d\n", n, n)
		fmt.Fprintf(&b, "#%s\n%s", strings.Repeat("-", max(0, size-b.Len()-len(last)-2)), last)
		for name, packed := range packings([]byte(b.String())) {
			enc, _, _ := strings.Cut(name, " ")
			f.do(t, "POST /write?db=x", packed, "Content-Encoding", enc).want(t, 204)
			want := fmt.Sprintf("{__name__=\"end_v\"} %d @%d\n", n, n)
			if got := f.memory.table("x").dump(); !strings.Contains(got, want) {
				t.Fatalf("%d bytes, %s: the last line is missing", size, name)
			}
			f.memory.table("x").forget()
		}
	}
	wantMetric(t, f, "spillway_intake_in_flight_bytes", 0)
}

func (t *memoryTable) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.rows)
}

func TestBodyOfExactlyTheBoundIsTaken(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.BodyBytesMax, s.DecodedBytesMax = 5000, 6000 })
	line := func(n int) string { return "m v=1 1\n#" + strings.Repeat("-", n-9) }
	f.do(t, "POST /write?db=x", []byte(line(5000))).want(t, 204)
	f.do(t, "POST /write?db=x", []byte(line(5001))).want(t, 413)
	for name, packed := range packings([]byte(line(6000))) {
		if enc, _, _ := strings.Cut(name, " "); enc != "identity" {
			f.do(t, "POST /write?db=x", packed, "Content-Encoding", enc).want(t, 204)
		}
	}
	for name, packed := range packings([]byte(line(6001))) {
		if enc, _, _ := strings.Cut(name, " "); enc != "identity" {
			f.do(t, "POST /write?db=x", packed, "Content-Encoding", enc).want(t, 413)
		}
	}
}

func TestCutBodiesAreRefused(t *testing.T) {
	f := start(t)
	for name, packed := range packings([]byte(strings.Repeat("m v=1 1\n", 1000))) {
		enc, _, _ := strings.Cut(name, " ")
		if enc == "identity" {
			continue
		}
		for i := range len(packed) {
			a := f.do(t, "POST /write?db=x", packed[:i], "Content-Encoding", enc)
			// Between members or frames a cut body is a whole one of fewer lines; an empty body has none.
			if a.status != 400 && !(a.status == 204 && (i == 0 || strings.Contains(name, "members") || strings.Contains(name, "frames"))) {
				t.Errorf("%s cut to %d of %d bytes: %d %s", name, i, len(packed), a.status, a.body)
			}
		}
	}
}

// noDict is a writer that makes every decoder fail, as a defect would.
type noDict struct{ *memory }

func (w noDict) Table(ctx context.Context, name string) (intake.Table, error) {
	return noDictTable{w.table(name)}, nil
}

type noDictTable struct{ *memoryTable }

func (noDictTable) Dict() *point.Dict { return nil }

func TestADefectThatASenderFindsDoesNotEndTheProcess(t *testing.T) {
	f := startWith(t, noDict{newMemory()})
	for range 3 {
		f.do(t, "POST /write?db=x", []byte("m v=1")).want(t, 500)
		f.do(t, "POST /api/v1/write", rw1(t, series("m", now, 1)), rw1Header...).want(t, 500)
	}
	f.do(t, "GET /ping", nil).want(t, 204)
	wantMetric(t, f, "spillway_intake_decode_panics_total", 6)
}
