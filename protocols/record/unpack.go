package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
	"github.com/spillwaydb/spillway/protocols/unzstd"
)

// Packing is how a value is compressed beside Kafka's compression of batches. The zero Packing is detected: gzip and
// zstd by their first bytes, which no format begins with, and snappy for remote write by trying.
type Packing uint8

const (
	Detect Packing = iota
	Plain
	Snappy // block format
	Gzip
	Zstd
)

// ParsePacking reads a content encoding; "" is Detect. The error is Invalid.
func ParsePacking(s string) (Packing, error) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "":
		return Detect, nil
	case "identity", "none":
		return Plain, nil
	case "snappy":
		return Snappy, nil
	case "gzip", "x-gzip":
		return Gzip, nil
	case "zstd":
		return Zstd, nil
	}
	return 0, fault.Errorf(fault.Invalid, "content encoding %q is none of identity, snappy, gzip, zstd", cut(s))
}

// A value that unpacks to more than freeBytes may not be more than expandMax times its packed size: real line protocol
// reaches 29 with zstd, a bomb 1,000 with gzip and 30,000 with zstd.
// An example: a value of 2 KiB may unpack to 512 KiB, one of 300 KiB to 64 MiB (DecodedBytesMax), one of 10 bytes to 256 KiB.
const (
	freeBytes = 256 << 10
	expandMax = 256
)

// bufferKept is the largest buffer a Decoder keeps between records, in bytes.
const bufferKept = 4 << 20

// unpacker unpacks into one buffer that it owns: the result lives until the next call.
// Memory: one buffer of up to DecodedBytesMax while a value is read, and of bufferKept between values.
type unpacker struct {
	max   int // bytes of an unpacked value
	buf   []byte
	grows func(bytes int) // called before the buffer grows

	gzip *gzip.Reader
	src  bytes.Reader
	zstd *unzstd.Decoder
}

// newUnpacker makes one; gzip's reader is made with the first value that needs it.
func newUnpacker(max int) (unpacker, error) {
	z, err := unzstd.New(1)
	if err != nil {
		return unpacker{}, err
	}
	return unpacker{max: max, zstd: z, grows: func(int) {}}, nil
}

// magic reads the first bytes: 1f 8b is gzip, 28 b5 2f fd zstd. Line protocol and JSON are text, and protobuf has no field 3 of wire type 7 (1f) and
// 28 is field 5 with a number, which none of the formats has at its outermost level.
func magic(v []byte) Packing {
	switch {
	case len(v) > 2 && v[0] == 0x1f && v[1] == 0x8b:
		return Gzip
	case len(v) > 4 && v[0] == 0x28 && v[1] == 0xb5 && v[2] == 0x2f && v[3] == 0xfd:
		return Zstd
	}
	return Plain
}

// unpack gives the unpacked value; Detect and Plain give value itself. Errors: TooLarge, Invalid (corrupt).
// Results alias value or the buffer. Both end with the call of Decode.
func (u *unpacker) unpack(value []byte, p Packing) ([]byte, error) {
	if len(value) > u.max {
		return nil, fault.Errorf(fault.TooLarge, "value of %d bytes, at most %d are taken", len(value), u.max)
	}
	switch p {
	case Snappy:
		if n, _ := binary.Uvarint(value); n > uint64(cap(u.buf)) && n <= uint64(u.max) {
			u.grows(cap(u.buf) + int(n))
		}
		out, err := remotewrite.DecompressSnappy(u.buf, value, u.max)
		return u.keep(out), err
	case Gzip:
		return u.gunzip(value)
	case Zstd:
		return u.unzstd(value)
	}
	return value, nil
}

// shrink drops the memory of a large value, once its decoder has read it.
func (u *unpacker) shrink() {
	if cap(u.buf) > bufferKept {
		u.buf = nil
	}
}

// keep remembers memory that a decompressor made.
func (u *unpacker) keep(b []byte) []byte {
	if cap(b) > cap(u.buf) {
		u.buf = b[:0]
	}
	return b
}

// mayExpand bounds the unpacked size of a value.
func (u *unpacker) mayExpand(packed int) int { return min(u.max, max(freeBytes, expandMax*packed)) }

func (u *unpacker) gunzip(value []byte) ([]byte, error) {
	u.src.Reset(value)
	if u.gzip == nil {
		u.gzip = new(gzip.Reader)
	}
	if err := u.gzip.Reset(&u.src); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "corrupt gzip value")
	}
	limit := u.mayExpand(len(value))
	out := u.buf[:0]
	for {
		if len(out) == cap(out) {
			out = u.grown(out, limit+1)
		}
		// One byte more than the limit is read, so that a value at the limit passes and a longer one is noticed.
		n, err := u.gzip.Read(out[len(out):min(cap(out), limit+1)])
		out = out[:len(out)+n]
		switch {
		case len(out) > limit:
			return nil, u.tooLarge()
		case err == io.EOF:
			return u.keep(out), nil
		case err != nil:
			return nil, fault.Wrap(err, fault.Invalid, "corrupt gzip value")
		}
	}
}

// grown doubles the buffer: a value's size is not known, and gzip's own field for it can lie.
func (u *unpacker) grown(b []byte, limit int) []byte {
	size := min(limit, max(4096, 2*cap(b)))
	u.grows(cap(b) + size)
	next := make([]byte, len(b), size)
	copy(next, b)
	return next
}

func (u *unpacker) tooLarge() error {
	return fault.Errorf(fault.TooLarge, "the value unpacks to more than is taken: at most %d bytes, and %d times its size beyond %d bytes", u.max, expandMax, freeBytes)
}

// unzstd unpacks into the buffer: headers of frames and blocks bound the output before memory is allocated (package unzstd).
func (u *unpacker) unzstd(value []byte) ([]byte, error) {
	limits := unzstd.Limits{Max: int64(u.max), Free: freeBytes, Expand: expandMax}
	out, err := u.zstd.Decode(value, limits, func(n int64) ([]byte, error) {
		if int64(cap(u.buf)) < n {
			u.grows(cap(u.buf) + int(n))
			u.buf = make([]byte, 0, n)
		}
		return u.buf[:0], nil
	})
	switch {
	case err == nil:
		return out, nil
	case errors.Is(err, unzstd.ErrTooLarge), errors.Is(err, unzstd.ErrExpands):
		return nil, u.tooLarge()
	}
	return nil, fault.Wrap(err, fault.Invalid, "corrupt zstd value")
}
