package unzstd

import (
	"errors"

	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Errors that are not corruption.
var (
	ErrTooLarge = errors.New("zstd: larger than is taken")
	ErrExpands  = errors.New("zstd: expands too much for its size")
)

// Limits bound the unpacked size of a body, in bytes.
type Limits struct {
	Max    int64 // of all that comes out
	Free   int64 // so much may come out of anything
	Expand int64 // beyond that, so many bytes for each byte that went in
}

// expandTypical is an expansion that real bodies reach: its room is allocated at once.
const expandTypical = 32

// Decoder unpacks. It is safe for concurrent use.
type Decoder struct{ z *zstd.Decoder }

// New makes a Decoder that works on at most parallel bodies at a time; 0: one a processor. Close frees its memory.
func New(parallel int) (*Decoder, error) {
	// DecodeAll writes into our memory, never past its capacity: the decoder allocates none for windows or declared sizes.
	z, err := zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderConcurrency(parallel),
		zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(windowMax))
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "zstd decoder")
	}
	return &Decoder{z}, nil
}

// windowMax is the largest window a frame may declare. No memory is allocated for that.
const windowMax = 1 << 30

// Decode unpacks packed. room gives an empty slice with a capacity of n at least, and may then use the memory of the one
// it gave before; its error ends Decode. The result lies in the last slice of room.
//
// Errors: ErrTooLarge, ErrExpands, the error of room, and any other: packed is corrupt.
func (d *Decoder) Decode(packed []byte, l Limits, room func(n int64) ([]byte, error)) ([]byte, error) {
	bound, err := l.bound(packed)
	if err != nil {
		return nil, err
	}
	size := int64(len(packed))
	limit := min(l.Max, max(l.Free, l.Expand*size))
	n := min(bound, limit, max(l.Free, expandTypical*size))
	for {
		dst, err := room(n)
		if err != nil {
			return nil, err
		}
		have := int64(cap(dst))
		if have < bound && !d.fits(packed, have/l.Expand, dst) {
			return nil, ErrExpands
		}
		out, err := d.z.DecodeAll(packed, dst[:0])
		switch {
		case err == nil && int64(len(out)) > limit:
			return nil, l.exceeded(limit)
		case err == nil:
			return out, nil
		case have >= bound:
			return nil, err // it was not for lack of room
		case have >= limit:
			return nil, l.exceeded(limit)
		}
		n = min(4*have, limit) // the decoder has several errors for a lack of room, so every error may be one
	}
}

func (l Limits) exceeded(limit int64) error {
	if limit == l.Max {
		return ErrTooLarge
	}
	return ErrExpands
}

// fits reports whether the first n bytes of packed, cut between two blocks, unpack into room.
func (d *Decoder) fits(packed []byte, n int64, room []byte) bool {
	part := head(packed, int(n))
	_, err := d.z.DecodeAll(part, room[:0])
	return err == nil
}

// Close frees the memory of the Decoder.
func (d *Decoder) Close() { d.z.Close() }
