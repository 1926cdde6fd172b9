package remotewrite

import (
	"encoding/binary"
	"errors"
	"math"
)

// Wire types of protobuf. Groups (3, 4) are refused: no remote-write sender has ever written one.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

var (
	errTruncated = errors.New("protobuf message ends early")
	errVarint    = errors.New("protobuf varint of more than 10 bytes")
	errLength    = errors.New("protobuf length is negative")
	errFieldNum  = errors.New("protobuf field number is not positive")
	errGroup     = errors.New("protobuf group or unknown wire type")
	errWireType  = errors.New("protobuf field has the wrong wire type")
)

// field is one field of a message as it lies on the wire.
type field struct {
	num  int32
	typ  uint8
	bits uint64 // of a varint or a fixed number
	data []byte // of a field of bytes, a part of the message
}

// readField reads the field that begins at b[i]; next is where the one after it begins.
func readField(b []byte, i int) (f field, next int, err error) {
	tag, i, err := uvarint(b, i)
	if err != nil {
		return f, 0, err
	}
	f.num, f.typ = int32(tag>>3), uint8(tag&7)
	if f.num <= 0 {
		return f, 0, errFieldNum
	}
	switch f.typ {
	case wireVarint:
		f.bits, i, err = uvarint(b, i)
		return f, i, err
	case wireBytes:
		var n uint64
		n, i, err = uvarint(b, i)
		switch {
		case err != nil:
			return f, 0, err
		case int64(n) < 0:
			return f, 0, errLength
		case n > uint64(len(b)-i):
			return f, 0, errTruncated
		}
		f.data = b[i : i+int(n)]
		return f, i + int(n), nil
	case wireFixed64:
		if len(b)-i < 8 {
			return f, 0, errTruncated
		}
		f.bits = binary.LittleEndian.Uint64(b[i:])
		return f, i + 8, nil
	case wireFixed32:
		if len(b)-i < 4 {
			return f, 0, errTruncated
		}
		f.bits = uint64(binary.LittleEndian.Uint32(b[i:]))
		return f, i + 4, nil
	}
	return f, 0, errGroup
}

// readMessage is readField for a field of bytes whose tag is one byte and whose length one or two, as nearly all are:
// m is the message in it. ok is false for every other field.
func readMessage(b []byte, i int, tag byte) (m []byte, next int, ok bool) {
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

// uvarint reads a varint at b[i]. Bits beyond the 64th are dropped, as Prometheus' own decoder does.
func uvarint(b []byte, i int) (v uint64, next int, err error) {
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

// The readers below take a value out of a field and complain when its wire type cannot hold one.

func (f *field) varint(err *error) uint64 { return f.expect(wireVarint, err) }

func (f *field) double(err *error) float64 { return math.Float64frombits(f.expect(wireFixed64, err)) }

func (f *field) expect(typ uint8, err *error) uint64 {
	if f.typ != typ {
		*err = errWireType
		return 0
	}
	return f.bits
}

func (f *field) bytes(err *error) []byte {
	if f.typ != wireBytes {
		*err = errWireType
		return nil
	}
	return f.data
}

// zigzag undoes the encoding of sint32 and sint64, in which small negative numbers are short.
func zigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// zigzag32 is zigzag for sint32, whose higher bits do not count.
func zigzag32(u uint64) int32 { return int32(uint32(u)>>1) ^ -int32(u&1) }

// eachVarint calls put for each number of a repeated field, packed or not.
func (f *field) eachVarint(put func(uint64)) error {
	switch f.typ {
	case wireVarint:
		put(f.bits)
		return nil
	case wireBytes:
		for i := 0; i < len(f.data); {
			v, next, err := uvarint(f.data, i)
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

// eachDouble calls put for each number of a repeated field, packed or not.
func (f *field) eachDouble(put func(float64)) error {
	switch f.typ {
	case wireFixed64:
		put(math.Float64frombits(f.bits))
		return nil
	case wireBytes:
		if len(f.data)%8 != 0 {
			return errTruncated
		}
		for i := 0; i < len(f.data); i += 8 {
			put(math.Float64frombits(binary.LittleEndian.Uint64(f.data[i:])))
		}
		return nil
	}
	return errWireType
}
