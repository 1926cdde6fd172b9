package intake

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zlib"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
	"github.com/spillwaydb/spillway/protocols/unzstd"
)

// A body that unpacks to more than freeBytes may not be more than expandMax times its packed size. Measured on 20,000
// lines: real values 21 with gzip and 29 with zstd, nothing but zeros 47 and 108. A bomb reaches 1032 with gzip and 30,000
// with zstd; it is recognised after it has cost a few times freeBytes.
const (
	freeBytes = 256 << 10
	expandMax = 256
)

// Snappy cannot do better than 64 bytes of output for 3 of input, whatever the header says.
const snappyExpandMax = 22

// unpacker unpacks bodies into pooled buffers. Safe for concurrent use.
type unpacker struct {
	buffers *buffers
	max     int64 // bytes of an unpacked body

	gzips  sync.Pool // *gzip.Reader
	zlibs  sync.Pool // io.ReadCloser, zlib.Resetter
	flates sync.Pool // io.ReadCloser, flate.Resetter
	zstd   *unzstd.Decoder
}

func newUnpacker(b *buffers, max int64) (*unpacker, error) {
	z, err := unzstd.New(0)
	if err != nil {
		return nil, err
	}
	return &unpacker{buffers: b, max: max, zstd: z}, nil
}

// encoding is how a body is packed. Each protocol says which it accepts.
type encoding uint8

const (
	encIdentity encoding = iota
	encGzip
	encDeflate
	encSnappy // block format
	encZstd
	encUnknown
)

func encodingOf(header string) encoding {
	switch strings.ToLower(strings.TrimSpace(header)) {
	case "", "identity":
		return encIdentity
	case "gzip", "x-gzip":
		return encGzip
	case "deflate":
		return encDeflate
	case "snappy":
		return encSnappy
	case "zstd":
		return encZstd
	}
	return encUnknown
}

// unpack gives the body behind enc; packed stays the caller's. Errors: TooLarge, Throttled, Invalid (corrupt).
// It is not called for encIdentity and encUnknown.
func (u *unpacker) unpack(enc encoding, packed buffer, c *charge) (buffer, error) {
	switch enc {
	case encGzip:
		return u.gunzip(packed.b, c)
	case encDeflate:
		return u.inflate(packed.b, c)
	case encSnappy:
		return u.unsnappy(packed.b, c)
	case encZstd:
		return u.unzstd(packed.b, c)
	}
	fault.Bug("unpack: encoding %d", enc)
	return buffer{}, nil
}

func (u *unpacker) gunzip(packed []byte, c *charge) (buffer, error) {
	src := bytes.NewReader(packed)
	zr, _ := u.gzips.Get().(*gzip.Reader)
	if zr == nil {
		zr = new(gzip.Reader)
	}
	defer u.gzips.Put(zr)
	if err := zr.Reset(src); err != nil { // reads on through further members by itself
		return buffer{}, corrupt("gzip", err)
	}
	return u.drain("gzip", zr, src, c)
}

// inflate reads HTTP's deflate: zlib by the standard, raw deflate by some senders' understanding of it.
func (u *unpacker) inflate(packed []byte, c *charge) (buffer, error) {
	src := bytes.NewReader(packed)
	if len(packed) >= 2 && packed[0]&0x0f == 8 && (uint(packed[0])<<8|uint(packed[1]))%31 == 0 {
		zr, _ := u.zlibs.Get().(io.ReadCloser)
		var err error
		if zr == nil {
			zr, err = zlib.NewReader(src)
		} else {
			err = zr.(zlib.Resetter).Reset(src, nil)
		}
		if err != nil {
			return buffer{}, corrupt("deflate", err)
		}
		defer u.zlibs.Put(zr)
		return u.drain("deflate", zr, src, c)
	}
	fr, _ := u.flates.Get().(io.ReadCloser)
	if fr == nil {
		fr = flate.NewReader(src)
	} else if err := fr.(flate.Resetter).Reset(src, nil); err != nil {
		return buffer{}, corrupt("deflate", err)
	}
	defer u.flates.Put(fr)
	return u.drain("deflate", fr, src, c)
}

// drain reads a stream to its end and stops it when it expands too much for the bytes it has read.
func (u *unpacker) drain(name string, stream io.Reader, src *bytes.Reader, c *charge) (buffer, error) {
	mayGrow := func(have int64) error {
		if read := src.Size() - int64(src.Len()); have >= freeBytes && have > expandMax*read {
			return expands(name)
		}
		return nil
	}
	b, err := u.buffers.readAll(stream, u.max, c, mayGrow)
	if err != nil && fault.KindOf(err) == fault.Internal {
		err = corrupt(name, err)
	}
	return b, err
}

func (u *unpacker) unsnappy(packed []byte, c *charge) (buffer, error) {
	n, err := snappy.DecodedLen(packed)
	switch {
	case err != nil:
		return buffer{}, corrupt("snappy", err)
	case int64(n) > u.max:
		return buffer{}, tooLarge(u.max)
	case n > snappyExpandMax*len(packed):
		return buffer{}, fault.Errorf(fault.Invalid, "the body is not valid snappy: %d bytes cannot hold %d", len(packed), n)
	}
	b, err := u.buffers.get(int64(n), c)
	if err != nil {
		return b, err
	}
	out, err := remotewrite.DecompressSnappy(b.b, packed, int(u.max))
	if err != nil {
		u.buffers.free(&b)
		return buffer{}, err
	}
	b.b = out
	return b, nil
}

// unzstd decodes into buffers, which grow when small blocks or a bomb need more than ordinary bodies.
func (u *unpacker) unzstd(packed []byte, c *charge) (buffer, error) {
	var b buffer
	out, err := u.zstd.Decode(packed, unzstd.Limits{Max: u.max, Free: freeBytes, Expand: expandMax}, func(n int64) ([]byte, error) {
		u.buffers.free(&b)
		var err error
		b, err = u.buffers.get(n, c)
		return b.b, err
	})
	if err == nil {
		b.b = out
		return b, nil
	}
	u.buffers.free(&b)
	switch {
	case errors.Is(err, unzstd.ErrTooLarge):
		err = tooLarge(u.max)
	case errors.Is(err, unzstd.ErrExpands):
		err = expands("zstd")
	case !fault.Is(err, fault.Throttled) && !fault.Is(err, fault.TooLarge):
		err = corrupt("zstd", err)
	}
	return buffer{}, err
}

func corrupt(name string, err error) error {
	return fault.Wrap(err, fault.Invalid, "the body is not valid %s", name)
}

func expands(name string) error {
	return fault.Errorf(fault.TooLarge, "the %s body unpacks to more than %d times its size", name, expandMax)
}

// close frees the memory of the zstd decoder.
func (u *unpacker) close() { u.zstd.Close() }
