package remotewrite

import (
	"encoding/binary"
	"math"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/wire"
)

// Tags of a sample in its series and of the fields that every sample has, as one byte each.
const (
	tagSample      = 2<<3 | wire.Bytes
	tagSampleValue = 1<<3 | wire.Fixed64
	tagSampleTime  = 2<<3 | wire.Varint
	tagSampleStart = 3<<3 | wire.Varint
)

// sample is the message Sample of both versions. Times are in milliseconds; start exists in 2.0 alone, 0 is "not given".
type sample struct {
	value       float64
	time, start int64
}

// plainSampleLen is the length of a sample with a usual time: 9 bytes of value, a tag, 6 bytes of time (1971 to 2109).
const plainSampleLen = 16

// plainSample reads a sample of the common form without a loop. Its time fits in nanoseconds.
func plainSample(m []byte) (v float64, ms int64, ok bool) {
	if len(m) != plainSampleLen || m[0] != tagSampleValue || m[9] != tagSampleTime {
		return 0, 0, false
	}
	x := binary.LittleEndian.Uint64(m[8:]) >> 16
	if x&0x808080808080 != 0x008080808080 {
		return 0, 0, false
	}
	t := x&0x7f | x>>1&(0x7f<<7) | x>>2&(0x7f<<14) | x>>3&(0x7f<<21) | x>>4&(0x7f<<28) | x>>5&(0x7f<<35)
	return math.Float64frombits(binary.LittleEndian.Uint64(m[1:])), int64(t), true
}

// readSample reads the usual spelling of senders in a few steps: 9 bytes of value, absent when it is zero, then the
// time. Every other spelling goes the general way.
func readSample(m []byte, v Version) (s sample, err error) {
	i := 0
	if len(m) > 9 && m[0] == tagSampleValue {
		s.value = math.Float64frombits(binary.LittleEndian.Uint64(m[1:]))
		i = 9
	}
	if len(m) > i && m[i] == tagSampleTime {
		t, next, err := wire.Uvarint(m, i+1)
		if err == nil && next == len(m) {
			s.time = int64(t)
			return s, nil
		}
	}
	return readSampleFields(m, v)
}

func readSampleFields(m []byte, v Version) (s sample, err error) {
	for i := 0; i < len(m) && err == nil; {
		var f wire.Field
		if f, i, err = wire.Read(m, i); err != nil {
			break
		}
		switch {
		case f.Num == 1:
			s.value = f.Double(&err)
		case f.Num == 2:
			s.time = int64(f.Varint(&err))
		case f.Num == 3 && v == V2:
			s.start = int64(f.Varint(&err))
		}
	}
	return s, err
}

// millisMax bounds the milliseconds that a point.Nanos can hold, either side of 1970: about 292 years.
const millisMax = math.MaxInt64 / 1_000_000

func millisFit(ms int64) bool { return ms >= -millisMax && ms <= millisMax }

// nanos converts milliseconds that fit.
func nanos(ms int64) point.Nanos { return ms * 1_000_000 }
