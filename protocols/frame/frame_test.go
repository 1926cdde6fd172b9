package frame_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/s2"
	"github.com/prometheus/prometheus/model/histogram"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// difference compares frames by the bits of their floats; "" means none.
func difference(want, got *frame.Frame) string {
	return cmp.Diff(want, got,
		cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }),
		cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(frame.Frame{}))
}

func encode(f *frame.Frame) []byte {
	var e frame.Encoder
	return e.Append(nil, f)
}

func mustDecode(t testing.TB, b []byte) *frame.Frame {
	t.Helper()
	var d frame.Decoder
	f := new(frame.Frame)
	if err := d.Decode(b, f); err != nil {
		t.Fatal(err)
	}
	sameJoined(t, b, f, nil)
	return f
}

// sameJoined fails unless a decoder that joins definitions finds the same frame, or refuses it too.
func sameJoined(t testing.TB, b []byte, want *frame.Frame, err error) {
	t.Helper()
	d := frame.Decoder{JoinDefs: true}
	var f frame.Frame
	for i := range 3 { // the second uses the memory of the first
		if d.KnownDefs = i == 2; d.KnownDefs && err != nil {
			return // a frame that was refused is not known to be well formed
		}
		got := d.Decode(b, &f)
		switch {
		case (got == nil) != (err == nil):
			t.Fatalf("joined: %v, apart: %v", got, err)
		case got == nil:
			if diff := difference(want, &f); diff != "" {
				t.Fatalf("joined: %s", diff)
			}
		}
	}
}

func goldenFrames() map[string]*frame.Frame {
	h := point.AppendHistogram(nil, &histogram.Histogram{
		Schema: 2, Count: 3, Sum: 4.5, PositiveSpans: []histogram.Span{{Offset: 1, Length: 2}}, PositiveBuckets: []int64{1, 1},
	})
	return map[string]*frame.Frame{
		"empty": {Kind: frame.Rows, FirstDef: 7},
		"rows": {
			Kind: frame.Rows, Serial: point.Serial{Epoch: 5, Seq: 12}, Prev: point.Serial{Epoch: 4, Seq: 11}, Stamp: newYear | 3,
			FirstDef: 100,
			IDs:      []point.DenseID{10, 11, 12, 13, 40, 2, 2, 2, 99},
			Times:    []point.Nanos{newYear, newYear, newYear, newYear, newYear + 15e6, newYear, newYear + interval, newYear + 2*interval, math.MinInt64},
			Values:   []float64{0, 100, -3, 1 << 40, 47.25, 1000, 1001, 1003, math.Float64frombits(point.StaleNaN)},
		},
		"definitions": {
			Kind: frame.Rows, Serial: point.Serial{Epoch: 1, Seq: 1}, Stamp: newYear, Foreign: true,
			Defs: []point.Labels{
				point.MakeLabels("__name__", "up", "job", "node", "instance", "a:9100"),
				point.MakeLabels("__name__", "up", "job", "node", "instance", "b:9100"),
			},
			IDs: []point.DenseID{0, 1}, Times: []point.Nanos{newYear, newYear}, Values: []float64{1, math.Copysign(0, -1)},
			Hists:     []frame.HistRow{{ID: 1, Time: newYear - 1, H: h}, {ID: 0, Time: newYear, H: h}},
			Exemplars: []frame.ExemplarRow{{ID: 1, Time: newYear, Value: 0.1, Labels: point.MakeLabels("__name__", "x", "trace_id", "4bf92f35")}},
		},
		"deletion": {
			Kind: frame.Delete, Serial: point.Serial{Epoch: 2, Seq: 9}, Prev: point.Serial{Epoch: 2, Seq: 8},
			Deletion: frame.Deletion{Lo: math.MinInt64, Hi: newYear, Matchers: []frame.Matcher{{Name: "__name__", Value: "up"}, {Type: 3, Name: "job", Value: "node|.*-canary"}}},
		},
		"freeze": {Kind: frame.Freeze, Serial: point.Serial{Epoch: 2, Seq: 10}, Prev: point.Serial{Epoch: 2, Seq: 9}, Stamp: newYear},
		"tails": {
			Kind: frame.Rows, Serial: point.Serial{Epoch: 1, Seq: 1}, Stamp: newYear,
			Defs: []point.Labels{
				point.MakeLabels("__name__", "cpu_user", "host", "h1", "os", "linux"),
				point.MakeLabels("__name__", "cpu_idle", "host", "h1", "os", "linux"),
				point.MakeLabels("__name__", "up", "host", "h2", "os", "linux"),
				point.MakeLabels("__name__", "up", "host", "h3", "os", "plan9"),
			},
		},
	}
}

// TestFramesAreDecodedWithDefinitionsAtHand as with those in their bytes.
func TestFramesAreDecodedWithDefinitionsAtHand(t *testing.T) {
	var d frame.Decoder
	var g frame.Frame
	for name, f := range goldenFrames() {
		b := encode(f)
		if err := d.DecodeWith(f.Defs, b, &g); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := difference(f, &g); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if len(f.Defs) == 0 {
			continue
		}
		if err := d.DecodeWith(f.Defs[1:], b, &g); !fault.Is(err, fault.Internal) || len(g.IDs)+len(g.Defs) > 0 {
			t.Errorf("%s with a definition less: %v, and %d rows", name, err, len(g.IDs))
		}
		b[len(b)-1] ^= 1
		if err := d.DecodeWith(f.Defs, b, &g); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s with a bit flipped in its definitions: %v", name, err)
		}
	}
}

func TestFrameBytesStayReadable(t *testing.T) {
	for name, f := range goldenFrames() {
		path := filepath.Join("testdata", name+".hex")
		if *update {
			if err := os.WriteFile(path, []byte(hex.EncodeToString(encode(f))+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(string(bytes.TrimSpace(text)))
		if err != nil {
			t.Fatal(err)
		}
		if d := difference(f, mustDecode(t, b)); d != "" {
			t.Errorf("%s is read differently:\n%s", name, d)
		}
		if got := encode(f); !bytes.Equal(body(t, got), body(t, b)) || !bytes.Equal(got[:52], b[:52]) {
			t.Errorf("%s is now written as\n%x, was\n%x", name, got, b)
		}
	}
}

// body gives the body before compression: the compressor may change, its input may not.
func body(t testing.TB, b []byte) []byte {
	t.Helper()
	if b[2]&2 == 0 {
		return b[frame.HeaderLen:]
	}
	raw, err := s2.Decode(nil, b[frame.HeaderLen:])
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// encodings are the golden frames as bytes, among them those of older versions.
func encodings(t testing.TB) map[string][]byte {
	all := map[string][]byte{}
	for _, o := range older {
		all[o.file] = readHex(t, o.file)
	}
	for name, f := range goldenFrames() {
		all[name] = encode(f)
	}
	return all
}

func TestFrameCutAnywhereIsCorrupt(t *testing.T) {
	var d frame.Decoder
	var f frame.Frame
	for name, b := range encodings(t) {
		for n := range b {
			if err := d.Decode(b[:n:n], &f); !fault.Is(err, fault.Corrupt) || f.Samples() > 0 {
				t.Errorf("%s cut to %d of %d bytes: %v, want corrupt", name, n, len(b), err)
			}
		}
		if err := d.Decode(append(b, 0), &f); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s with a byte too many: %v, want corrupt", name, err)
		}
	}
}

// TestBodyCutAnywhereIsCorrupt gives the pieces good checksums, so that the body's own checks must find the cut.
func TestBodyCutAnywhereIsCorrupt(t *testing.T) {
	var d frame.Decoder
	var f frame.Frame
	for name, b := range encodings(t) {
		raw := body(t, b)
		for n := range raw {
			if err := d.Decode(reframe(b, raw[:n]), &f); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s: body cut to %d of %d bytes: %v, want corrupt", name, n, len(raw), err)
			}
		}
		if err := d.Decode(reframe(b, append(raw, 0)), &f); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: body with a byte too many: %v, want corrupt", name, err)
		}
		if err := d.Decode(reframe(b, raw), &f); err != nil {
			t.Errorf("%s: whole body: %v", name, err)
		}
	}
}

// reframe puts a raw body behind the header of b and makes the checksums right.
func reframe(b, raw []byte) []byte {
	out := append(bytes.Clone(b[:frame.HeaderLen]), raw...)
	out[2] &^= 2
	binary.LittleEndian.PutUint32(out[52:], uint32(len(raw)))
	return resum(out)
}

func resum(b []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(b[56:], crc32.Checksum(b[frame.HeaderLen:], table))
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], table))
	return b
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	var d frame.Decoder
	var f frame.Frame
	for name, b := range encodings(t) {
		for i := range 8 * len(b) {
			b[i/8] ^= 1 << (i % 8)
			if err := d.Decode(b, &f); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s: bit %d of byte %d flipped: %v, want corrupt", name, i%8, i/8, err)
			}
			b[i/8] ^= 1 << (i % 8)
		}
	}
}

func TestSetSerialChangesTheSerialsAndTheRankAlone(t *testing.T) {
	want := goldenFrames()["definitions"]
	b := encode(want)
	want.Serial, want.Prev = point.Serial{Epoch: 1 << 60, Seq: 9}, point.Serial{Epoch: 2, Seq: math.MaxUint64}
	want.Stamp = 77
	frame.SetSerial(b, want.Serial, want.Prev, want.Stamp)
	if d := difference(want, mustDecode(t, b)); d != "" {
		t.Error(d)
	}
	h, err := frame.Header(b)
	if err != nil {
		t.Fatal(err)
	}
	if h.Serial != want.Serial || h.Prev != want.Prev || h.Stamp != want.Stamp || h.Kind != frame.Rows || !h.Foreign || h.Rows != 2 || h.Hists != 2 {
		t.Errorf("header reads %+v", h)
	}
}

func TestAppendKeepsWhatStoodBefore(t *testing.T) {
	var e frame.Encoder
	b := e.Append([]byte("before"), goldenFrames()["rows"])
	if string(b[:6]) != "before" {
		t.Errorf("%q stood before", b[:6])
	}
	if d := difference(goldenFrames()["rows"], mustDecode(t, b[6:])); d != "" {
		t.Error(d)
	}
}

// TestDecodeForgetsTheFrameBefore decodes frames of different shape into one Frame.
func TestDecodeForgetsTheFrameBefore(t *testing.T) {
	var d frame.Decoder
	var f frame.Frame
	for range 3 {
		for name, want := range goldenFrames() {
			if err := d.Decode(encode(want), &f); err != nil {
				t.Fatal(err)
			}
			if diff := difference(want, &f); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

func TestCheckSaysWhatToDo(t *testing.T) {
	f := func(what string, want fault.Kind, change func(*frame.Frame)) {
		t.Helper()
		fr := goldenFrames()["rows"]
		change(fr)
		if err := fr.Check(); !fault.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	f("no kind", fault.Invalid, func(f *frame.Frame) { f.Kind = 0 })
	f("a column is short", fault.Invalid, func(f *frame.Frame) { f.Times = f.Times[1:] })
	f("series never defined", fault.Invalid, func(f *frame.Frame) { f.FirstDef = 99 })
	f("histogram of a series never defined", fault.Invalid, func(f *frame.Frame) { f.Hists = []frame.HistRow{{ID: 100}} })
	f("exemplar of a series never defined", fault.Invalid, func(f *frame.Frame) { f.Exemplars = []frame.ExemplarRow{{ID: 100}} })
	f("ids run out", fault.TooLarge, func(f *frame.Frame) { f.FirstDef, f.Defs = math.MaxUint32, make([]point.Labels, 2) })
	f("too many rows", fault.TooLarge, func(f *frame.Frame) {
		n := frame.RowsMax + 1
		f.IDs, f.Times, f.Values = make([]point.DenseID, n), make([]point.Nanos, n), make([]float64, n)
	})
	f("too many bytes", fault.TooLarge, func(f *frame.Frame) { f.Hists = []frame.HistRow{{H: make([]byte, frame.BodyMax)}} })
}

func TestAppendRefusesLoudly(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a frame without a kind was encoded")
		}
	}()
	encode(&frame.Frame{})
}

func TestHostileBodiesAreCorrupt(t *testing.T) {
	var d frame.Decoder
	var into frame.Frame
	empty := encode(goldenFrames()["empty"])
	uv := func(vs ...uint64) (b []byte) {
		for _, v := range vs {
			b = binary.AppendUvarint(b, v)
		}
		return b
	}
	f := func(what string, rows uint32, raw []byte) {
		t.Helper()
		b := reframe(empty, raw)
		binary.LittleEndian.PutUint32(b[4:], rows)
		if err := d.Decode(resum(b), &into); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v, want corrupt", what, err)
		}
	}
	one := uv(0, 1, 0) // one definition
	def := append([]byte{14}, point.MakeLabels("__name__", "up")...)
	f("a million definitions in no bytes", 0, uv(0, frame.RowsMax, 0))
	f("a million exemplars in no bytes", 0, uv(0, 0, frame.RowsMax))
	f("a million rows in one run", frame.RowsMax, append(one, uv(2, frame.RowsMax-2, 2, frame.RowsMax-2)...))
	f("first definition out of range", 0, uv(1<<32, 0, 0))
	f("definitions past the last id", 0, append(uv(1<<32-1, 2, 0), append(def, def...)...))
	f("id not defined", 1, append(one, append(uv(4, 2, 1, 5), def...)...))
	f("id below zero", 1, append(one, append(uv(1<<2, 2, 1, 5), def...)...))
	f("id token unknown", 1, append(one, append(uv(3, 2, 1, 5), def...)...))
	f("run past the last row", 1, append(one, append(uv(2, 0, 2, 1, 5), def...)...))
	f("time out of range", 1, append(one, append(uv(0, math.MaxUint64-1, 1, 5), def...)...))
	f("code behind the last row", 1, append(one, append(uv(0, 2, 0x11, 5, 5), def...)...))
	f("empty labels", 0, append(one, 0))
	f("labels out of order", 0, append(one, append([]byte{8}, "\x01b\x01x\x01a\x01x"...)...))
	if err := d.Decode(reframe(empty, append(one, def...)), &into); err == nil || into.Samples() != 0 {
		t.Logf("one definition alone decodes: %v", err)
	}
}

func drawFrame(t *rapid.T) *frame.Frame {
	f := &frame.Frame{
		Kind:    frame.Rows,
		Serial:  point.Serial{Epoch: point.Epoch(rapid.Uint64().Draw(t, "epoch")), Seq: rapid.Uint64().Draw(t, "seq")},
		Prev:    point.Serial{Epoch: point.Epoch(rapid.Uint64().Draw(t, "prev epoch")), Seq: rapid.Uint64().Draw(t, "prev seq")},
		Stamp:   point.Stamp(rapid.Uint64().Draw(t, "stamp")),
		Foreign: rapid.Bool().Draw(t, "foreign"),
	}
	f.FirstDef = point.DenseID(rapid.SampledFrom([]uint32{1, 2, 1000, math.MaxUint32 - 10}).Draw(t, "first def"))
	f.Defs = drawDefs(t, 3)
	id := rapid.Custom(func(t *rapid.T) point.DenseID {
		return point.DenseID(rapid.Uint32Range(0, uint32(f.FirstDef)+uint32(len(f.Defs))-1).Draw(t, "id"))
	})
	moment := rapid.OneOf(rapid.Int64(), rapid.Map(rapid.Int64Range(-5, 5), func(s int64) int64 { return newYear + s*interval }),
		rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, 0, -1}))
	value := rapid.OneOf(rapid.Map(rapid.Uint64(), math.Float64frombits), rapid.Float64(), rapid.Map(rapid.Int64(), func(n int64) float64 { return float64(n) }),
		rapid.Map(rapid.Int64Range(-1e7, 1e7), func(n int64) float64 { return float64(n) / 100 }),
		rapid.Map(rapid.Int64(), func(n int64) float64 { return float64(n) / 1000 }),
		rapid.SampledFrom([]float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), 1 << 53, 1<<53 + 2, -1 << 53, 1 << 63, -1 << 63, math.Float64frombits(point.StaleNaN), 5e-324}))
	for range rapid.IntRange(0, 12).Draw(t, "runs") {
		first, at, v := id.Draw(t, "id"), moment.Draw(t, "time"), value.Draw(t, "value")
		rise := point.DenseID(rapid.IntRange(0, 1).Draw(t, "rise"))
		step := rapid.SampledFrom([]int64{0, interval, 1, math.MaxInt64}).Draw(t, "step")
		for range rapid.IntRange(1, 6).Draw(t, "run") {
			if uint64(first) >= uint64(f.FirstDef)+uint64(len(f.Defs)) {
				break
			}
			f.IDs, f.Times, f.Values = append(f.IDs, first), append(f.Times, at), append(f.Values, v)
			first, at, v = first+rise, at+step, v+1
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "hists") {
		f.Hists = append(f.Hists, frame.HistRow{ID: id.Draw(t, "id"), Time: moment.Draw(t, "time"), H: rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "h")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "exemplars") {
		f.Exemplars = append(f.Exemplars, frame.ExemplarRow{ID: id.Draw(t, "id"), Time: moment.Draw(t, "time"), Value: value.Draw(t, "value"),
			Labels: point.MakeLabels("__name__", "e", "trace", rapid.StringN(1, 9, 99).Draw(t, "label"))})
	}
	return f
}

func TestFrameRoundTrip(t *testing.T) {
	var e frame.Encoder
	var d frame.Decoder
	var got frame.Frame
	var b []byte
	rapid.Check(t, func(t *rapid.T) {
		want := drawFrame(t)
		b = e.Append(b[:0], want)
		if err := d.Decode(b, &got); err != nil {
			t.Fatal(err)
		}
		if diff := difference(want, &got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestLoadRoundTrip(t *testing.T) {
	for name, f := range loads() {
		if d := difference(f, mustDecode(t, encode(f))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	var e frame.Encoder
	var d frame.Decoder
	var got frame.Frame
	var b []byte
	f := newDevops(20).steady(20)
	f.Hists = []frame.HistRow{{ID: 3, Time: newYear, H: goldenFrames()["definitions"].Hists[0].H}}
	b = e.Append(b, f)
	if n := testing.AllocsPerRun(100, func() { b = e.Append(b[:0], f) }); n > 0 {
		t.Errorf("Append allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() { _ = d.Decode(b, &got) }); n > 0 {
		t.Errorf("Decode allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() { frame.SetSerial(b, f.Serial, f.Prev, f.Stamp) }); n > 0 {
		t.Errorf("SetSerial allocates %v times", n)
	}
}

// TestRowsAreSmall pins the size that the log was designed for; the load is drawn from a fixed seed.
func TestRowsAreSmall(t *testing.T) {
	f := newDevops(20).steady(20)
	if got := float64(len(encode(f))) / float64(len(f.IDs)); got > 2.3 {
		t.Errorf("%.2f bytes a row", got)
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range encodings(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < frame.HeaderLen {
			return
		}
		if n, err := s2.DecodedLen(b[frame.HeaderLen:]); err == nil && n > 1<<20 {
			return // valid as a size, and slow
		}
		var d frame.Decoder
		var first frame.Frame
		b = resum(bytes.Clone(b)) // with good checksums, or nothing is tried
		err := d.Decode(b, &first)
		sameJoined(t, b, &first, err)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatalf("%v is not corrupt", err)
			}
			return
		}
		if diff := difference(&first, mustDecode(t, encode(&first))); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzBody(f *testing.F) {
	for _, b := range encodings(f) {
		h, err := frame.Header(b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(h.Rows), uint8(h.Hists), b[atFlags]&(flagTails|flagColumns), body(f, b))
	}
	empty := encode(goldenFrames()["empty"])
	f.Fuzz(func(t *testing.T, rows uint16, hists, flags uint8, raw []byte) {
		b := reframe(empty, raw)
		b[atFlags] |= flags & (flagTails | flagColumns)
		binary.LittleEndian.PutUint32(b[4:], uint32(rows))
		binary.LittleEndian.PutUint32(b[48:], uint32(hists))
		var d frame.Decoder
		var first frame.Frame
		err := d.Decode(resum(b), &first)
		sameJoined(t, b, &first, err)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatalf("%v is not corrupt", err)
			}
			return
		}
		if diff := difference(&first, mustDecode(t, encode(&first))); diff != "" {
			t.Fatal(diff)
		}
	})
}
