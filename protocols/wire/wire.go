package wire

import (
	"encoding/binary"
	"errors"
	"math"
)

// Types of a field, as the low bits of its tag have them. Groups (3, 4) are refused: no sender of remote write or OTLP has
// ever written one.
const (
	Varint  = 0
	Fixed64 = 1
	Bytes   = 2
	Fixed32 = 5
)

var (
	errTruncated = errors.New("protobuf message ends early")
	errVarint    = errors.New("protobuf varint of more than 10 bytes")
	errLength    = errors.New("protobuf length is negative")
	errFieldNum  = errors.New("protobuf field number is not positive")
	errGroup     = errors.New("protobuf group or unknown wire type")
	errWireType  = errors.New("protobuf field has the wrong wire type")
)

// Field is one field of a message as it lies on the wire.
type Field struct {
	Num  int32
	Type uint8
	Bits uint64 // of a varint or a fixed number
	Data []byte // of a field of bytes, a part of the message
}

// Read reads the field that begins at b[i], 0 ≤ i ≤ len(b); next is where the one after it begins.
func Read(b []byte, i int) (f Field, next int, err error) {
	tag, i, err := Uvarint(b, i)
	if err != nil {
		return f, 0, err
	}
	f.Num, f.Type = int32(tag>>3), uint8(tag&7)
	if f.Num <= 0 {
		return f, 0, errFieldNum
	}
	switch f.Type {
	case Varint:
		f.Bits, i, err = Uvarint(b, i)
		return f, i, err
	case Bytes:
		var n uint64
		n, i, err = Uvarint(b, i)
		switch {
		case err != nil:
			return f, 0, err
		case int64(n) < 0:
			return f, 0, errLength
		case n > uint64(len(b)-i):
			return f, 0, errTruncated
		}
		f.Data = b[i : i+int(n)]
		return f, i + int(n), nil
	case Fixed64:
		if len(b)-i < 8 {
			return f, 0, errTruncated
		}
		f.Bits = binary.LittleEndian.Uint64(b[i:])
		return f, i + 8, nil
	case Fixed32:
		if len(b)-i < 4 {
			return f, 0, errTruncated
		}
		f.Bits = uint64(binary.LittleEndian.Uint32(b[i:]))
		return f, i + 4, nil
	}
	return f, 0, errGroup
}

// ReadMessage is Read for a field of bytes with a tag of one byte and a length of one or two, as nearly all are: m is the
// message inside. ok is false for every other field.
func ReadMessage(b []byte, i int, tag byte) (m []byte, next int, ok bool) {
	if len(b)-i < 3 || b[i] != tag {
		return nil, 0, false
	}
	n, from := int(b[i+1]), i+2
	if n >= 0x80 {
		if b[i+2] >= 0x80 {
			return nil, 0, false
		}
		n, from = n&0x7f|int(b[i+2])<<7, i+3
	}
	if n > len(b)-from {
		return nil, 0, false
	}
	return b[from : from+n], from + n, true
}

// Uvarint reads a varint at b[i]. Bits beyond the 64th are dropped, as Prometheus' own decoder does.
func Uvarint(b []byte, i int) (v uint64, next int, err error) {
	for shift := uint(0); shift < 64; shift += 7 {
		if uint(i) >= uint(len(b)) {
			return 0, 0, errTruncated
		}
		c := b[i]
		i++
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v, i, nil
		}
	}
	return 0, 0, errVarint
}

// The readers below read the value of a field. When its wire type is another they set *err and give nothing; else they
// leave *err alone.

// Varint reads the number of a field of int32, int64, uint32, uint64, bool or enum.
func (f *Field) Varint(err *error) uint64 { return f.Expect(Varint, err) }

// Double reads the number of a field of double.
func (f *Field) Double(err *error) float64 { return math.Float64frombits(f.Expect(Fixed64, err)) }

// Expect reads the bits of a field of this type, which is not Bytes.
func (f *Field) Expect(typ uint8, err *error) uint64 {
	if f.Type != typ {
		*err = errWireType
		return 0
	}
	return f.Bits
}

// Bytes returns the bytes, which are a part of the message, of a field of bytes, string or message.
func (f *Field) Bytes(err *error) []byte {
	if f.Type != Bytes {
		*err = errWireType
		return nil
	}
	return f.Data
}

// ZigZag undoes the encoding of sint32 and sint64, in which small negative numbers are short.
func ZigZag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// ZigZag32 is ZigZag for sint32, where the higher bits do not count.
func ZigZag32(u uint64) int32 { return int32(uint32(u)>>1) ^ -int32(u&1) }

// EachVarint calls put for each number of a repeated field, packed or not. After an error put has been called for those before it.
func (f *Field) EachVarint(put func(uint64)) error {
	switch f.Type {
	case Varint:
		put(f.Bits)
		return nil
	case Bytes:
		for i := 0; i < len(f.Data); {
			v, next, err := Uvarint(f.Data, i)
			if err != nil {
				return err
			}
			put(v)
			i = next
		}
		return nil
	}
	return errWireType
}

// EachDouble calls put for each number of a repeated field, packed or not; for fixed64 too, which lies on the wire
// as double does.
func (f *Field) EachDouble(put func(float64)) error {
	switch f.Type {
	case Fixed64:
		put(math.Float64frombits(f.Bits))
		return nil
	case Bytes:
		if len(f.Data)%8 != 0 {
			return errTruncated
		}
		for i := 0; i < len(f.Data); i += 8 {
			put(math.Float64frombits(binary.LittleEndian.Uint64(f.Data[i:])))
		}
		return nil
	}
	return errWireType
}
