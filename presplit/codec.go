package presplit

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

const version = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append appends the stored form of a history: FORMAT.md.
func (h *History) Append(b []byte) []byte {
	from := len(b)
	b = append(b, version)
	for _, s := range []*buckets{&h.fine, &h.coarse} {
		b = binary.LittleEndian.AppendUint64(b, uint64(s.first))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.bytes))
		b = binary.LittleEndian.AppendUint64(b, uint64(s.covered))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(s.codes)))
		for _, c := range s.codes {
			b = binary.LittleEndian.AppendUint16(b, c)
		}
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

const bucketsHeader = 8 + 8 + 8 + 2

// DecodeHistory reads what Append wrote, all of b. The history does not refer to b. Errors are Corrupt.
func DecodeHistory(b []byte) (*History, error) {
	corrupt := func(what string) (*History, error) {
		return nil, fault.Errorf(fault.Corrupt, "a history of growth of %d bytes %s", len(b), what)
	}
	if len(b) < 1+2*bucketsHeader+4 {
		return corrupt("is too short")
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return corrupt("does not have its checksum")
	}
	if body[0] != version {
		return nil, fault.Errorf(fault.Corrupt, "a history of growth has version %d, this program reads %d", body[0], version)
	}
	body = body[1:]
	h := &History{}
	for _, s := range []struct {
		*buckets
		width point.Nanos
		most  int
	}{{&h.fine, fineWidth, fineMax}, {&h.coarse, coarseWidth, coarseMax}} {
		if len(body) < bucketsHeader {
			return corrupt("ends within its buckets")
		}
		s.first = int64(binary.LittleEndian.Uint64(body))
		s.bytes = math.Float64frombits(binary.LittleEndian.Uint64(body[8:]))
		s.covered = point.Nanos(binary.LittleEndian.Uint64(body[16:]))
		n := int(binary.LittleEndian.Uint16(body[24:]))
		body = body[bucketsHeader:]
		limit := math.MaxInt64 / s.width / 2
		if n > s.most || len(body) < 2*n || s.first < -limit || s.first > limit || s.covered < 0 || s.covered > s.width || !(s.bytes >= 0) || math.IsInf(s.bytes, 1) {
			return corrupt("has values out of range")
		}
		for i := range n {
			s.codes = append(s.codes, binary.LittleEndian.Uint16(body[2*i:]))
		}
		body = body[2*n:]
	}
	if len(body) != 0 {
		return corrupt("goes on behind its end")
	}
	return h, nil
}
