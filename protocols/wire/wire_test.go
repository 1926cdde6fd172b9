package wire_test

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spillwaydb/spillway/protocols/wire"
)

func TestRead(t *testing.T) {
	long := bytes.Repeat([]byte{'x'}, 300)
	for _, tc := range []struct {
		name    string
		message []byte
		want    wire.Field
	}{
		{"varint", []byte{1 << 3, 0x96, 0x01}, wire.Field{Num: 1, Type: wire.Varint, Bits: 150}},
		{"largest varint", protowire.AppendVarint([]byte{1 << 3}, math.MaxUint64), wire.Field{Num: 1, Bits: math.MaxUint64}},
		{"varint with bits beyond the 64th", append(append([]byte{1 << 3}, bytes.Repeat([]byte{0xff}, 9)...), 0x7f), wire.Field{Num: 1, Bits: math.MaxUint64}},
		{"tag of two bytes", []byte{0x88, 0x00, 7}, wire.Field{Num: 1, Bits: 7}},
		{"fixed64", protowire.AppendFixed64([]byte{2<<3 | wire.Fixed64}, 1<<63|5), wire.Field{Num: 2, Type: wire.Fixed64, Bits: 1<<63 | 5}},
		{"fixed32", protowire.AppendFixed32([]byte{3<<3 | wire.Fixed32}, 1<<31|5), wire.Field{Num: 3, Type: wire.Fixed32, Bits: 1<<31 | 5}},
		{"bytes", []byte{4<<3 | wire.Bytes, 2, 'u', 'p'}, wire.Field{Num: 4, Type: wire.Bytes, Data: []byte("up")}},
		{"no bytes", []byte{4<<3 | wire.Bytes, 0}, wire.Field{Num: 4, Type: wire.Bytes}},
		{"bytes with a length of two", protowire.AppendBytes([]byte{4<<3 | wire.Bytes}, long), wire.Field{Num: 4, Type: wire.Bytes, Data: long}},
		{"largest field number", append(protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.VarintType), 7), wire.Field{Num: 1<<29 - 1, Bits: 7}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before, after := []byte{1 << 3, 9}, []byte{1 << 3, 9}
			f, next, err := wire.Read(slices.Concat(before, tc.message, after), len(before))
			if err != nil || !same(f, tc.want) || next != len(before)+len(tc.message) {
				t.Errorf("%+v to %d, %v; want %+v to %d", f, next, err, tc.want, len(before)+len(tc.message))
			}
			for n := range tc.message {
				if _, _, err := wire.Read(tc.message[:n:n], 0); err == nil || err.Error() != "protobuf message ends early" {
					t.Errorf("cut to %d bytes: %v", n, err)
				}
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	for _, tc := range []struct {
		name    string
		message []byte
		want    string
	}{
		{"nothing", nil, "protobuf message ends early"},
		{"varint of 11 bytes", append(bytes.Repeat([]byte{0x80}, 10), 1), "protobuf varint of more than 10 bytes"},
		{"value of 11 bytes", append(append([]byte{1 << 3}, bytes.Repeat([]byte{0x80}, 10)...), 1), "protobuf varint of more than 10 bytes"},
		{"field 0", []byte{0, 1}, "protobuf field number is not positive"},
		{"field -1", protowire.AppendVarint(nil, 0xffffffff<<3), "protobuf field number is not positive"},
		{"group", []byte{1<<3 | 3, 1<<3 | 4}, "protobuf group or unknown wire type"},
		{"type 7", []byte{1<<3 | 7, 1}, "protobuf group or unknown wire type"},
		{"length -1", protowire.AppendVarint([]byte{1<<3 | wire.Bytes}, math.MaxUint64), "protobuf length is negative"},
		{"length of all memory", protowire.AppendVarint([]byte{1<<3 | wire.Bytes}, math.MaxInt64), "protobuf message ends early"},
	} {
		if _, _, err := wire.Read(tc.message, 0); err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v, want %s", tc.name, err, tc.want)
		}
	}
}

// TestReadMessage: the short way reads lengths of one and two bytes, in as few bytes as possible or not, and leaves all else.
func TestReadMessage(t *testing.T) {
	const tag = 1<<3 | wire.Bytes
	for _, n := range []int{1, 2, 127, 128, 300, 1<<14 - 1} {
		m := protowire.AppendBytes([]byte{0, tag}, bytes.Repeat([]byte{'x'}, n))
		got, next, ok := wire.ReadMessage(m, 1, tag)
		if !ok || len(got) != n || next != len(m) {
			t.Errorf("%d bytes: %d bytes to %d of %d, %v", n, len(got), next, len(m), ok)
		}
		for cut := range m {
			if _, _, ok := wire.ReadMessage(m[:cut:cut], min(1, cut), tag); ok {
				t.Errorf("%d bytes: taken although cut to %d", n, cut)
			}
		}
	}
	if m, next, ok := wire.ReadMessage([]byte{tag, 0x81, 0x00, 'x'}, 0, tag); !ok || string(m) != "x" || next != 4 {
		t.Errorf("1 in two bytes: %q to %d, %v", m, next, ok)
	}
	for name, m := range map[string][]byte{
		"another tag":            {2<<3 | wire.Bytes, 1, 'x'},
		"length of three bytes":  protowire.AppendBytes([]byte{tag}, make([]byte, 1<<14)),
		"empty, at the very end": {tag, 0},
	} {
		if _, _, ok := wire.ReadMessage(m, 0, tag); ok {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestWrongType: a reader accepts the one type that can hold its value, and packed numbers besides.
func TestWrongType(t *testing.T) {
	readers := map[string]func(f *wire.Field) error{
		"varint":      func(f *wire.Field) (err error) { f.Varint(&err); return },
		"double":      func(f *wire.Field) (err error) { f.Double(&err); return },
		"fixed32":     func(f *wire.Field) (err error) { f.Expect(wire.Fixed32, &err); return },
		"bytes":       func(f *wire.Field) (err error) { f.Bytes(&err); return },
		"each varint": func(f *wire.Field) error { return f.EachVarint(func(uint64) {}) },
		"each double": func(f *wire.Field) error { return f.EachDouble(func(float64) {}) },
	}
	takes := map[uint8]string{wire.Varint: "varint, each varint", wire.Fixed64: "double, each double", wire.Fixed32: "fixed32", wire.Bytes: "bytes, each varint, each double"}
	for typ, names := range takes {
		for name, read := range readers {
			err := read(&wire.Field{Num: 1, Type: typ})
			if takes := slices.Contains(strings.Split(names, ", "), name); takes != (err == nil) {
				t.Errorf("%s from type %d: %v", name, typ, err)
			}
			if err != nil && err.Error() != "protobuf field has the wrong wire type" {
				t.Errorf("%s from type %d: %v", name, typ, err)
			}
		}
	}
	earlier := wire.Field{Type: wire.Bytes}
	err := earlier.EachDouble(nil)
	if f := (wire.Field{Type: wire.Varint, Bits: 7}); f.Varint(&err) != 7 || err != nil {
		t.Errorf("a value without a fault left %v", err)
	}
}

func TestEach(t *testing.T) {
	numbers := []uint64{0, 1, 127, 128, math.MaxUint64}
	var packed []byte
	for _, u := range numbers {
		packed = protowire.AppendVarint(packed, u)
	}
	var got []uint64
	f := wire.Field{Type: wire.Bytes, Data: packed}
	if err := f.EachVarint(func(u uint64) { got = append(got, u) }); err != nil || !slices.Equal(got, numbers) {
		t.Errorf("packed: %d, %v", got, err)
	}
	f, got = wire.Field{Type: wire.Varint, Bits: 300}, nil
	if err := f.EachVarint(func(u uint64) { got = append(got, u) }); err != nil || !slices.Equal(got, []uint64{300}) {
		t.Errorf("alone: %d, %v", got, err)
	}
	f, got = wire.Field{Type: wire.Bytes, Data: []byte{1, 2, 0x80}}, nil
	if err := f.EachVarint(func(u uint64) { got = append(got, u) }); err == nil || !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("cut in the third: %d, %v", got, err)
	}

	doubles := []float64{0, -1.5, math.Inf(1)}
	packed = nil
	for _, v := range doubles {
		packed = protowire.AppendFixed64(packed, math.Float64bits(v))
	}
	var values []float64
	f = wire.Field{Type: wire.Bytes, Data: packed}
	if err := f.EachDouble(func(v float64) { values = append(values, v) }); err != nil || !slices.Equal(values, doubles) {
		t.Errorf("packed: %g, %v", values, err)
	}
	f, values = wire.Field{Type: wire.Fixed64, Bits: math.Float64bits(2.5)}, nil
	if err := f.EachDouble(func(v float64) { values = append(values, v) }); err != nil || !slices.Equal(values, []float64{2.5}) {
		t.Errorf("alone: %g, %v", values, err)
	}
	f, values = wire.Field{Type: wire.Bytes, Data: packed[:12]}, nil
	if err := f.EachDouble(func(v float64) { values = append(values, v) }); err == nil || len(values) > 0 {
		t.Errorf("12 bytes: %g, %v", values, err)
	}
}

func TestZigZag(t *testing.T) {
	for _, v := range []int64{0, 1, -1, 2, -2, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64} {
		if got := wire.ZigZag(protowire.EncodeZigZag(v)); got != v {
			t.Errorf("%d came back as %d", v, got)
		}
		if got := wire.ZigZag32(protowire.EncodeZigZag(v)); int64(int32(v)) == v && int64(got) != v {
			t.Errorf("%d came back as %d of 32 bits", v, got)
		}
	}
	if got := wire.ZigZag32(1<<32 | 3); got != -2 {
		t.Errorf("a bit above the 32nd made -2 %d", got)
	}
}

// TestReadingCostsNoMemory: results are not copied out of the message.
func TestReadingCostsNoMemory(t *testing.T) {
	m := protowire.AppendBytes([]byte{1<<3 | wire.Bytes}, bytes.Repeat([]byte{0x81, 0x01}, 100))
	var sum uint64
	if n := testing.AllocsPerRun(20, func() {
		f, _, err := wire.Read(m, 0)
		if err == nil {
			err = f.EachVarint(func(u uint64) { sum += u })
		}
		if err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
	if sum%129 != 0 || sum == 0 {
		t.Errorf("sum %d of numbers that are 129 each", sum)
	}
}

func same(a, b wire.Field) bool {
	return a.Num == b.Num && a.Type == b.Type && a.Bits == b.Bits && bytes.Equal(a.Data, b.Data)
}
