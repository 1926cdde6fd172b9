package wire_test

import (
	"bytes"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spillwaydb/spillway/protocols/wire"
)

// FuzzRead looks for a message that the reader of Google's own library reads otherwise. Two differences are intended: a
// varint may have bits beyond the 64th, and a field number may have bits beyond the 32nd.
func FuzzRead(f *testing.F) {
	f.Add([]byte{1 << 3, 0x96, 0x01, 2<<3 | wire.Bytes, 2, 'u', 'p'})
	f.Add(protowire.AppendFixed64([]byte{2<<3 | wire.Fixed64}, math.MaxUint64))
	f.Add(protowire.AppendFixed32([]byte{3<<3 | wire.Fixed32}, math.MaxUint32))
	f.Add(protowire.AppendBytes([]byte{1<<3 | wire.Bytes}, make([]byte, 300)))
	f.Add([]byte{1<<3 | 3, 2 << 3, 7, 1<<3 | 4})
	f.Add(append(bytes.Repeat([]byte{0xff}, 10), 1))
	f.Fuzz(func(t *testing.T, m []byte) {
		for i := 0; i < len(m); {
			got, next, err := wire.Read(m, i)
			want, size := reference(m[i:])
			if size > 0 && (err != nil || !same(got, want) || next != i+size) {
				t.Fatalf("at %d: %+v to %d, %v; want %+v to %d", i, got, next, err, want, i+size)
			}
			if size < 0 && err == nil && !beyond(m[i:next]) {
				t.Fatalf("at %d: %+v to %d; it should be refused", i, got, next)
			}
			if data, after, ok := wire.ReadMessage(m, i, m[i]); ok && m[i]&7 == wire.Bytes && m[i] >= 8 && m[i] < 0x80 &&
				(err != nil || after != next || !bytes.Equal(data, got.Data)) {
				t.Fatalf("at %d: the short way gives %x to %d, Read %+v to %d, %v", i, data, after, got, next, err)
			}
			if err != nil {
				return
			}
			if next <= i || next > len(m) {
				t.Fatalf("at %d: next is %d of %d", i, next, len(m))
			}
			packed(t, got.Data)
			i = next
		}
	})
}

// reference reads the first field of b; a negative size refuses it. Groups are refused here, as in the reader.
func reference(b []byte) (f wire.Field, size int) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 {
		return f, n
	}
	f.Num, f.Type = int32(num), uint8(typ)
	switch typ {
	case protowire.VarintType:
		f.Bits, size = protowire.ConsumeVarint(b[n:])
	case protowire.Fixed64Type:
		f.Bits, size = protowire.ConsumeFixed64(b[n:])
	case protowire.Fixed32Type:
		var v uint32
		v, size = protowire.ConsumeFixed32(b[n:])
		f.Bits = uint64(v)
	case protowire.BytesType:
		f.Data, size = protowire.ConsumeBytes(b[n:])
	default:
		return f, -1
	}
	if size < 0 {
		return f, size
	}
	return f, n + size
}

// beyond reports whether a varint at the head of a field has bits that do not count.
func beyond(field []byte) bool {
	tag, n := protowire.ConsumeVarint(field)
	if n < 0 || tag>>3 > math.MaxInt32 {
		return true
	}
	_, value := protowire.ConsumeVarint(field[n:])
	return value < 0
}

// packed reads data as packed varints, as the reference does as far as it goes.
func packed(t *testing.T, data []byte) {
	f := wire.Field{Type: wire.Bytes, Data: data}
	rest, follows := data, true
	err := f.EachVarint(func(u uint64) {
		want, n := protowire.ConsumeVarint(rest)
		if follows = follows && n > 0; !follows {
			return // bits beyond the 64th
		}
		if u != want {
			t.Fatalf("%d in %x, want %d", u, data, want)
		}
		rest = rest[n:]
	})
	if follows && err == nil && len(rest) > 0 {
		t.Fatalf("%d bytes of %x were left without a word", len(rest), data)
	}
	if _, n := protowire.ConsumeVarint(rest); follows && err != nil && n > 0 {
		t.Fatalf("%v at %x", err, rest)
	}
}
