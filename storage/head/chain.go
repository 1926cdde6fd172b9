package head

import (
	"encoding/binary"
	"math"
	mathbits "math/bits"
	"unsafe"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A row in a block is a tag byte and the fields that the tag announces:
//
//	bit 7      0: as many frames of the group passed as before the row before   1: a uvarint says how many
//	bits 6-5   time step minus the step before: 0 none · 1 in ms · 2 in µs · 3 in ns, a zigzag varint
//	bits 4-0   value: 0…20 the integer before plus (code-10)   21…27 plus a zigzag number of (code-20) bytes
//	           29 eight bytes   30 the same bits as before   31 no row: the block ends here
//
// Numbers are little endian. A regular series with small integer steps needs one byte a row. A row never crosses a block.
// Integers have one way through the decoder, whatever the size of their steps: a step's code picks a mask and a length
// from a table, because a branch on the size would be guessed wrong at every other row.
const (
	tagSkip   = 1 << 7
	timeShift = 5
	valueMask = 1<<timeShift - 1

	timeSame  = 0
	timeMilli = 1
	timeMicro = 2
	timeNano  = 3

	valueBias  = 10
	valueNear  = 20 // the last code of a small step
	valueRaw   = 29
	valueSame  = 30
	blockEnded = 31

	rowBytesMax = 1 + binary.MaxVarintLen32 + binary.MaxVarintLen64 + 8
)

// valueCode describes the bytes that follow a value's code: their number size, mask for the low ones, and the number to add to them.
type valueCode struct {
	mask uint64
	near int8
	size uint8
}

var valueCodes = func() (cs [valueMask + 1]valueCode) {
	for c := range cs {
		switch {
		case c <= valueNear:
			cs[c].near = int8(c - valueBias)
		case c < 28:
			cs[c].size = uint8(c - valueNear)
			cs[c].mask = 1<<(8*cs[c].size) - 1
		case c == valueRaw:
			cs[c] = valueCode{mask: math.MaxUint64, size: 8}
		}
	}
	return cs
}()

// series is the state of one chain: 64 bytes, one cache line. The zero series has no rows.
type series struct {
	lastTime  int64
	lastStep  int64  // lastTime minus the time before, wrapping
	lastValue uint64 // bits
	lastStamp uint64 // of the newest row in the chain; rows below it go aside

	firstStamp uint64
	first      uint32 // block of the oldest rows; 0 while the chain holds one row, which is lastTime and lastValue
	tail       uint32
	rows       uint32 // in the chain
	seen       uint32 // frames of the group up to and including the last row's
	firstSeen  uint32 // the same for the first row
	lastSkip   uint16 // seen minus the row's before; skipWide if it does not fit
	off        uint8  // first free byte of the tail
	flags      uint8
}

const (
	hasAside   = 1 << iota // rows in Head.aside
	hasHists               // rows in Head.hists
	isUnsorted             // a row in the chain went back in time
	isDoubled              // a row in the chain has the time of the one before it
	isPassed               // another float row may be later than the last one in the chain: Head.passed
)

const skipWide = math.MaxUint16

// group remembers which frames touched any of 32 neighbouring series: a chain of uvarints, each the frame's number
// minus the one before. Neighbours mostly come in the same frame, so this costs a few hundredths of a byte a row,
// where a frame number in each row would cost one or two.
type group struct {
	first, tail uint32
	lastFrame   uint32 // number of the newest frame, from 1
	count       uint32
	off         uint8
}

const (
	pageShift  = 10
	pageSeries = 1 << pageShift
	groupShift = 5
	pageGroups = pageSeries >> groupShift
)

// page is the state of 1024 neighbouring series. It holds no Go pointers.
type page struct {
	groups [pageGroups]group // in front, so that the first series share a page of the system's with them
	series [pageSeries]series
}

const pageBytes = int(unsafe.Sizeof(page{}))

// touch notes that the frame holds a row of the group.
func (g *group) touch(a *arena, frame uint32) {
	var buf [binary.MaxVarintLen32]byte
	n := binary.PutUvarint(buf[:], uint64(frame-g.lastFrame))
	if g.count == 0 {
		g.first = a.take()
		g.tail, g.off = g.first, blockHeader
	}
	if int(g.off)+n > blockBytes {
		g.tail = a.follow(g.tail)
		g.off = blockHeader
	}
	copy(a.block(g.tail)[g.off:], buf[:n])
	g.off += uint8(n)
	g.lastFrame = frame
	g.count++
}

// frames appends the numbers of the frames that touched the group, oldest first, to dst.
func (g *group) frames(a *arena, dst []uint32) []uint32 {
	at, off, frame := g.first, blockHeader, uint32(0)
	for range g.count {
		b := a.block(at)
		if off == blockBytes || b[off] == 0 { // 0 is no difference between frames: the rest of the block is empty
			at, off = binary.LittleEndian.Uint32(b[:]), blockHeader
			b = a.block(at)
		}
		d, n := binary.Uvarint(b[off:])
		frame += uint32(d)
		off += n
		dst = append(dst, frame)
	}
	return dst
}

// follow takes a block to come after the one at tail.
func (a *arena) follow(tail uint32) uint32 {
	next := a.take()
	binary.LittleEndian.PutUint32(a.block(tail)[:], next)
	return next
}

// integer gives the integer a value's bits stand for; ok is false for fractions, -0, NaNs and values beyond ±2^52.
// Within that bound the difference of two is exact as a float64, and so is its sum with either.
func integer(bits uint64) (i int64, ok bool) {
	i = int64(math.Float64frombits(bits))
	return i, math.Float64bits(float64(i)) == bits && uint64(i+1<<52) <= 1<<53
}

// push appends a row that is not the chain's first.
func (s *series) push(a *arena, seen uint32, t int64, bits uint64) {
	if s.first == 0 {
		s.open(a)
	}
	s.pushRow(a, seen, t, bits)
	s.rows++
}

// open writes the first row, which until now was only in the state, to a block: a series that never sees a second row
// needs none.
func (s *series) open(a *arena) {
	t, bits := s.lastTime, s.lastValue
	s.first = a.take()
	s.tail, s.off = s.first, blockHeader
	s.lastTime, s.lastStep, s.lastValue, s.lastSkip = 0, 0, 0, 0
	s.pushRow(a, s.seen, t, bits)
	s.lastStep = 0 // the first time is no step
}

func (s *series) pushRow(a *arena, seen uint32, t int64, bits uint64) {
	skip := seen - s.seen
	step := t - s.lastTime
	dod := step - s.lastStep
	was := s.lastValue
	s.lastTime, s.lastStep, s.lastValue, s.seen = t, step, bits, seen

	code, payload := encodeValue(bits, was)
	b := a.block(s.tail)
	if dod == 0 && skip == uint32(s.lastSkip) && skip != skipWide {
		size := valueCodes[code].size
		if s.off <= blockBytes-9 {
			b[s.off&(blockBytes-1)] = code
			binary.LittleEndian.PutUint64(b[s.off+1:], payload) // the next row overwrites its unused bytes
			s.off += 1 + size
			return
		}
		if size <= 1 && s.off+size < blockBytes {
			b[(s.off+size)&(blockBytes-1)] = uint8(payload)
			b[s.off&(blockBytes-1)] = code
			s.off += 1 + size
			return
		}
	}
	if s.off <= blockBytes-rowBytesMax {
		s.off += uint8(s.encode(b[s.off:], code, payload, skip, dod))
		return
	}
	s.pushNearEnd(a, b, code, payload, skip, dod)
}

// pushNearEnd writes a row where the block may be too short for it.
func (s *series) pushNearEnd(a *arena, b *block, code uint8, payload uint64, skip uint32, dod int64) {
	var buf [rowBytesMax]byte
	n := s.encode(buf[:], code, payload, skip, dod)
	if int(s.off)+n > blockBytes {
		if s.off < blockBytes {
			b[s.off] = blockEnded
		}
		s.tail = a.follow(s.tail)
		s.off = blockHeader
		b = a.block(s.tail)
	}
	copy(b[s.off:], buf[:n])
	s.off += uint8(n)
}

// encodeValue chooses how a value is written; payload holds the bytes that follow the code.
func encodeValue(bits, was uint64) (code uint8, payload uint64) {
	i, ok := integer(bits)
	w, wok := integer(was)
	if !ok || !wok {
		if bits == was {
			return valueSame, 0
		}
		return valueRaw, bits
	}
	diff := i - w
	if near := uint64(diff + valueBias); near <= valueNear {
		return uint8(near), 0
	}
	payload = uint64(diff<<1) ^ uint64(diff>>63)
	return uint8(valueNear + (mathbits.Len64(payload)+7)/8), payload
}

// encode writes a row to b, which has rowBytesMax bytes, and gives its length.
func (s *series) encode(b []byte, code uint8, payload uint64, skip uint32, dod int64) int {
	n, tag := 1, code
	if skip != uint32(s.lastSkip) || skip == skipWide {
		s.lastSkip = uint16(min(skip, skipWide))
		n += binary.PutUvarint(b[n:], uint64(skip))
		tag |= tagSkip
	}
	switch {
	case dod == 0:
	case dod%1e6 == 0:
		tag |= timeMilli << timeShift
		n += binary.PutVarint(b[n:], dod/1e6)
	case dod%1e3 == 0:
		tag |= timeMicro << timeShift
		n += binary.PutVarint(b[n:], dod/1e3)
	default:
		tag |= timeNano << timeShift
		n += binary.PutVarint(b[n:], dod)
	}
	b[0] = tag
	binary.LittleEndian.PutUint64(b[n:], payload)
	return n + int(valueCodes[code].size)
}

// columns are decoded rows: in chain order as walk leaves them.
type columns struct {
	times  []point.Nanos
	values []float64
	seen   []uint32 // which of the group's frames, from 1; only if withSeen

	withSeen bool
	warmth   byte // only there so that the compiler keeps the reads that made it
}

// walk appends the rows of the chain with times in [lo, hi] to c. It stops at the first later time if the chain is in
// order.
func (s *series) walk(a *arena, lo, hi point.Nanos, c *columns) {
	if s.rows == 0 {
		return
	}
	if s.first == 0 {
		c.add(lo, hi, s.lastTime, s.lastValue, s.firstSeen)
		return
	}
	ordered := s.flags&isUnsorted == 0
	b, off := a.block(s.first), blockHeader
	var t, step int64
	var bits uint64
	seen, lastSkip := s.firstSeen, uint32(0)
	times, values := c.times, c.values
	warmth := byte(0)
	for row := uint32(0); row < s.rows; row++ {
		if off >= blockBytes || b[off]&valueMask == blockEnded {
			b, off = a.block(binary.LittleEndian.Uint32(b[:])), blockHeader
			warmth += a.block(binary.LittleEndian.Uint32(b[:]))[0] // the next block comes while this one is decoded
		}
		tag := b[off&(blockBytes-1)]
		off++
		if tag&tagSkip != 0 {
			skip, n := binary.Uvarint(b[off:])
			off += n
			lastSkip = uint32(skip)
		}
		seen += lastSkip
		if kind := tag >> timeShift & 3; kind != timeSame {
			d, n := varint(b[off:])
			off += n
			step += d * timeUnits[kind]
		}
		t += step
		code := tag & valueMask
		vc := valueCodes[code]
		payload := a.load(b, off) & vc.mask
		off += int(vc.size)
		if code < valueRaw {
			d := int64(vc.near) + (int64(payload>>1) ^ -int64(payload&1))
			bits = math.Float64bits(math.Float64frombits(bits) + float64(d))
		} else if code == valueRaw {
			bits = payload
		}
		if row == 0 {
			step = 0
		}
		if t > hi && ordered {
			break
		}
		if t < lo || t > hi {
			continue
		}
		times, values = append(times, t), append(values, math.Float64frombits(bits))
		if c.withSeen {
			c.seen = append(c.seen, seen)
		}
	}
	c.times, c.values, c.warmth = times, values, warmth
}

var timeUnits = [4]int64{timeMilli: 1e6, timeMicro: 1e3, timeNano: 1}

// varint reads a zigzag varint of the arena's own making.
func varint(b []byte) (int64, int) {
	if c := b[0]; c < 0x80 {
		return int64(c>>1) ^ -int64(c&1), 1
	}
	d, n := binary.Varint(b)
	if n <= 0 {
		fault.Bug("a row in memory ends within a number: the head is damaged")
	}
	return d, n
}

func (c *columns) add(lo, hi, t point.Nanos, bits uint64, seen uint32) {
	if t < lo || t > hi {
		return
	}
	c.times, c.values = append(c.times, t), append(c.values, math.Float64frombits(bits))
	if c.withSeen {
		c.seen = append(c.seen, seen)
	}
}
