package frame_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	atFlags     = 2
	flagTails   = 4
	flagColumns = 8
)

// older are golden frames as earlier versions wrote them. They lie in logs: the files are never rewritten.
var older = []struct {
	file, golden string
	flags        byte // the flags for the layout of definitions
}{
	{"definitions_whole", "definitions", 0},
	{"definitions_tails", "definitions", flagTails},
	{"tails_beside", "tails", flagTails},
}

func readHex(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOlderLogsStayReadable(t *testing.T) {
	for _, o := range older {
		b := readHex(t, o.file)
		if got := b[atFlags] & (flagTails | flagColumns); got != o.flags {
			t.Fatalf("%s: flags are %#x: this is no frame of an older version", o.file, b[atFlags])
		}
		if d := difference(goldenFrames()[o.golden], mustDecode(t, b)); d != "" {
			t.Error(o.file, d)
		}
	}
}

func TestFramesWithoutDefinitionsAreAsEver(t *testing.T) {
	for name, f := range goldenFrames() {
		want := byte(0)
		if len(f.Defs) > 0 {
			want = flagTails | flagColumns
		}
		if got := encode(f)[atFlags] & (flagTails | flagColumns); got != want {
			t.Errorf("%s of %d definitions: flags %#x, want %#x", name, len(f.Defs), got, want)
		}
	}
}

func TestColumnsWithoutTailsAreCorrupt(t *testing.T) {
	b := encode(goldenFrames()["definitions"])
	b[atFlags] &^= flagTails
	if _, err := frame.Header(resum(b)); !fault.Is(err, fault.Corrupt) {
		t.Error(err)
	}
}

// tailsOf reads the tails from a frame that has definitions alone, by FORMAT.md and not by the decoder.
func tailsOf(t testing.TB, b []byte) (tails []int) {
	t.Helper()
	raw := body(t, b)
	uvarint := func() int {
		v, n := binary.Uvarint(raw)
		if n <= 0 {
			t.Fatal("a number ends early")
		}
		raw = raw[n:]
		return int(v)
	}
	uvarint()
	defs := uvarint()
	uvarint()
	rests := 0
	for range defs {
		tails = append(tails, uvarint())
		rests += uvarint()
	}
	if len(raw) != rests {
		t.Fatalf("%d bytes are behind the lengths, which make %d", len(raw), rests)
	}
	return tails
}

func TestTailsAreWholeAndNoMore(t *testing.T) {
	f := func(what string, want int, a, b point.Labels) {
		t.Helper()
		fr := &frame.Frame{Kind: frame.Rows, Defs: []point.Labels{a, b}}
		bytes := encode(fr)
		if got := tailsOf(t, bytes); got[0] != 0 || got[1] != want {
			t.Errorf("%s: tails %v, want 0 and %d", what, got, want)
		}
		if d := difference(fr, mustDecode(t, bytes)); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	l := point.MakeLabels
	f("equal", len(l("__name__", "up", "a", "x")), l("__name__", "up", "a", "x"), l("__name__", "up", "a", "x"))
	f("nothing", 0, l("__name__", "up", "a", "x"), l("__name__", "up", "a", "y"))
	f("one byte", 1, l("__name__", "up", "a", "xz"), l("__name__", "up", "a", "yz"))
	f("part of the metric name", len("_total"+"\x01a\x01x"), l("__name__", "hit_total", "a", "x"), l("__name__", "mis_total", "a", "x"))
	f("the second is the end of the first", len(l("__name__", "up")), l("A", "x", "__name__", "up"), l("__name__", "up"))
	f("the first is the end of the second", len(l("__name__", "up")), l("__name__", "up"), l("A", "x", "__name__", "up"))
	for n := range 40 { // around the eight bytes that are compared at once
		same := strings.Repeat("s", n)
		f("differs in a byte", n, l("__name__", "up", "a", "x"+same), l("__name__", "up", "a", "y"+same))
		f("differs in length", n, l("__name__", "up", "a", "123"+same), l("__name__", "up", "a", same+"x"+same))
	}
	long := strings.Repeat("l", 60000) // the tail is a number of three bytes
	f("long", 60000, l("__name__", "up", "a", "x"+long), l("__name__", "up", "a", "y"+long))
}

// drawDefs draws label sets that share much, little or nothing with the one before, or are the one before.
func drawDefs(t *rapid.T, most int) []point.Labels {
	text := rapid.StringN(1, 20, 99)
	name, value, rest := "m", "v", "r"
	var defs []point.Labels
	for range rapid.IntRange(0, most).Draw(t, "defs") {
		switch rapid.SampledFrom([]string{"much", "little", "nothing", "equal", "upper", "long"}).Draw(t, "share") {
		case "much":
			name = text.Draw(t, "name")
		case "little":
			name, value = text.Draw(t, "name"), text.Draw(t, "value")
		case "nothing":
			name, value, rest = text.Draw(t, "name"), text.Draw(t, "value"), text.Draw(t, "rest")
		case "upper": // a label in front of the metric name
			defs = append(defs, point.MakeLabels("A", text.Draw(t, "upper"), point.MetricName, name, "x", value, "y", rest))
			continue
		case "long":
			rest = strings.Repeat("0123456789", rapid.IntRange(1, 40).Draw(t, "length"))
		}
		defs = append(defs, point.MakeLabels(point.MetricName, name, "x", value, "y", rest))
	}
	return defs
}

func TestDefinitionsRoundTrip(t *testing.T) {
	var e frame.Encoder
	var d frame.Decoder
	var got frame.Frame
	var b []byte
	rapid.Check(t, func(rt *rapid.T) {
		want := &frame.Frame{Kind: frame.Rows, Defs: drawDefs(rt, 30)}
		b = e.Append(b[:0], want)
		if err := d.Decode(b, &got); err != nil {
			rt.Fatal(err)
		}
		if diff := difference(want, &got); diff != "" {
			rt.Fatal(diff)
		}
		prev := point.Labels("")
		for i, tail := range tailsOf(t, b) {
			l := want.Defs[i]
			if tail > min(len(prev), len(l)) || prev[len(prev)-tail:] != l[len(l)-tail:] {
				rt.Fatalf("%q after %q shares a tail of %d", l, prev, tail)
			}
			if tail < min(len(prev), len(l)) && prev[len(prev)-tail-1] == l[len(l)-tail-1] {
				rt.Fatalf("%q after %q shares more than %d", l, prev, tail)
			}
			prev = l
		}
	})
}

// TestTheBoundOfABodyCountsTails: a frame that Check accepts must fit, also where tails cost and spare nothing.
func TestTheBoundOfABodyCountsTails(t *testing.T) {
	var defs []point.Labels
	for i := range 5000 {
		defs = append(defs, point.MakeLabels("__name__", "m", "z", strings.Repeat("x", 1+i%300)+string(rune('a'+i%2))))
	}
	n := 0
	for _, l := range defs {
		n += len(l)
	}
	if got := len(body(t, encode(&frame.Frame{Kind: frame.Rows, Defs: defs}))); got > n+5*len(defs) {
		t.Errorf("%d bytes of body for %d bytes in %d definitions", got, n, len(defs))
	}
}

// expanding is a frame of so many definitions of 64 KiB each, that stand there as two bytes: nothing, after all of the
// one before. The last, not counted, is longer by `over` bytes.
func expanding(t *testing.T, columns bool, n, over int) []byte {
	t.Helper()
	const size, front = 64 << 10, len("\x08__name__\x01m")
	first := point.MakeLabels("__name__", "m", "x", strings.Repeat("x", size-front-2-3))
	if len(first) != size {
		t.Fatalf("a label set of %d bytes, want %d", len(first), size)
	}
	last := "\x08__name__" + string(rune(1+over)) + strings.Repeat("m", 1+over)
	raw := binary.AppendUvarint([]byte{0}, uint64(n+1))
	raw = append(raw, 0)
	raw = binary.AppendUvarint(append(raw, 0), size)
	if !columns {
		raw = append(raw, first...)
	}
	for range n - 1 {
		raw = append(binary.AppendUvarint(raw, size), 0)
	}
	raw = append(binary.AppendUvarint(raw, uint64(size-front)), byte(len(last)))
	b := encode(&frame.Frame{Kind: frame.Rows})
	b[atFlags] |= flagTails
	if columns {
		b[atFlags] |= flagColumns
		raw = append(raw, first...)
	}
	return reframe(b, append(raw, last...))
}

// TestDefinitionsDoNotExpandWithoutBound: a frame of a few kilobytes must not allocate gigabytes.
func TestDefinitionsDoNotExpandWithoutBound(t *testing.T) {
	for _, columns := range []bool{false, true} {
		definitionsDoNotExpand(t, columns)
	}
}

func definitionsDoNotExpand(t *testing.T, columns bool) {
	const fit = frame.BodyMax / (64 << 10)
	var d frame.Decoder
	var f frame.Frame
	if err := d.Decode(expanding(t, columns, fit-1, 0), &f); err != nil || len(f.Defs) != fit {
		t.Fatalf("%d definitions of 64 KiB: %v", len(f.Defs), err)
	}
	f = frame.Frame{}
	if err := d.Decode(expanding(t, columns, fit-1, 1), &f); !fault.Is(err, fault.Corrupt) {
		t.Errorf("one byte more: %v, want corrupt", err)
	}
	b := expanding(t, columns, frame.RowsMax-1, 0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := d.Decode(b, &f); !fault.Is(err, fault.Corrupt) {
		t.Errorf("64 GiB: %v, want corrupt", err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 3*frame.BodyMax {
		t.Errorf("%d MiB were taken for a frame of %d bytes", got>>20, len(b))
	}
}

// TestInsertsDoNotUnpackDefinitions: a thousand series of 64 KiB that share their labels are 65 KB, and were unpacked before an insert that may have none was refused.
func TestInsertsDoNotUnpackDefinitions(t *testing.T) {
	b := expanding(t, true, 1000, 0)
	d, got := frame.Decoder{NoDefs: true}, frame.Frame{}
	if err := d.Decode(b, &got); !fault.Is(err, fault.Corrupt) || cap(got.Defs) > 0 {
		t.Errorf("%v, room for %d definitions", err, cap(got.Defs))
	}
}

func TestHostileTailsAreCorrupt(t *testing.T) {
	var d frame.Decoder
	var into frame.Frame
	b := encode(&frame.Frame{Kind: frame.Rows})
	b[atFlags] |= flagTails
	up := string(point.MakeLabels("__name__", "up", "a", "x"))
	f := func(what string, ok bool, raw string) {
		t.Helper()
		err := d.Decode(reframe(b, []byte(raw)), &into)
		if ok && err != nil || !ok && !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil && len(into.Defs) > 0 {
			t.Errorf("%s leaves %d definitions", what, len(into.Defs))
		}
	}
	size := string(rune(len(up)))
	first := "\x00" + size + up
	f("none", true, "\x00\x00\x00")
	f("one", true, "\x00\x01\x00"+first)
	f("the first has nothing to share", false, "\x00\x01\x00"+"\x01"+size+up)
	f("the second shares all", true, "\x00\x02\x00"+first+size+"\x00")
	f("and a byte more", false, "\x00\x02\x00"+first+string(rune(len(up)+1))+"\x00")
	f("and 2^64 - 1", false, "\x00\x02\x00"+first+"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00")
	f("and no number", false, "\x00\x02\x00"+first+"\xff\xff")
	f("the rest is longer than the body", false, "\x00\x02\x00"+first+"\x04\x7f\x00")
	f("joined they are out of order", false, "\x00\x02\x00"+first+"\x04\x04\x01b\x01x")
	f("joined they end within a label", false, "\x00\x02\x00"+first+"\x01\x00")
	f("joined they lack a metric name", false, "\x00\x02\x00"+first+"\x04\x00")
	f("no bytes at all", false, "\x00\x02\x00"+first+"\x00\x00")
	f("a million in no bytes", false, "\x00\x80\x80\x40\x00")
}

func TestHostileColumnsAreCorrupt(t *testing.T) {
	var d frame.Decoder
	var into frame.Frame
	b := encode(&frame.Frame{Kind: frame.Rows})
	b[atFlags] |= flagTails | flagColumns
	up := string(point.MakeLabels("__name__", "up", "a", "x"))
	size := string(rune(len(up)))
	f := func(what string, ok bool, raw string) {
		t.Helper()
		err := d.Decode(reframe(b, []byte(raw)), &into)
		if ok && err != nil || !ok && !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil && len(into.Defs) > 0 {
			t.Errorf("%s leaves %d definitions", what, len(into.Defs))
		}
	}
	f("none", true, "\x00\x00\x00")
	f("one", true, "\x00\x01\x00"+"\x00"+size+up)
	f("the first has nothing to share", false, "\x00\x01\x00"+"\x01"+size+up)
	f("the second shares all", true, "\x00\x02\x00"+"\x00"+size+size+"\x00"+up)
	f("and a byte more", false, "\x00\x02\x00"+"\x00"+size+string(rune(len(up)+1))+"\x00"+up)
	f("and 2^64 - 1", false, "\x00\x02\x00"+"\x00"+size+"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"+up)
	f("the lengths end early", false, "\x00\x02\x00"+"\x00"+size)
	f("the rests are shorter than their lengths", false, "\x00\x02\x00"+"\x00"+size+size+"\x01"+up)
	f("and by 2^64 - 1", false, "\x00\x01\x00"+"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"+up)
	f("and longer", false, "\x00\x01\x00"+"\x00"+size+up+"x")
	f("joined they are out of order", false, "\x00\x02\x00"+"\x00"+size+"\x04\x04"+up+"\x01b\x01x")
	f("a million in no bytes", false, "\x00\x80\x80\x40\x00")
}

// TestDefinitionsAreSmall pins the size of a new series in the log.
func TestDefinitionsAreSmall(t *testing.T) {
	f := &frame.Frame{Kind: frame.Rows, Defs: definitions(20)}
	b := encode(f)
	if got := float64(len(b)) / float64(len(f.Defs)); got > 4.3 {
		t.Errorf("%.2f bytes a definition", got)
	}
	if got := float64(len(body(t, b))) / float64(len(f.Defs)); got > 35 {
		t.Errorf("%.1f bytes a definition before compression", got)
	}
}

func TestWritingDefinitionsAllocatesNothing(t *testing.T) {
	var e frame.Encoder
	f := &frame.Frame{Kind: frame.Rows, Defs: definitions(20)}
	b := e.Append(nil, f)
	if n := testing.AllocsPerRun(100, func() { b = e.Append(b[:0], f) }); n > 0 {
		t.Errorf("Append allocates %v times", n)
	}
}
