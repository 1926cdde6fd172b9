package segment

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A block is the j-th chunk of each series of one group, and the unit of decompression: a read of one series opens all of it. In memory,
// while it is written:
//
//	chunks   ┌ slot 0 ┬ slot 1 ┬ slot 2 ┬ slot 2 ┐      heads: form, rows, reference to times, stamps, parameters
//	         │ delta  │ const  │ level  │ hists  │
//	ints     ├────────┤        ├────────┤        │      residuals of delta and level, a byte string for each significance
//	doubles  │        │        │        │        │      residuals of xor; here there are none
//	hists    │        │        │        ├────────┤      bytes of histograms, as they came
//	page     └ columns of times that no block before had
//
// The planes do not say where a chunk begins: a reader adds up rows and widths from the heads, and cuts chunks off in their order. So the
// heads are read before the planes, and chunks are decoded or skipped in order, each exactly once.

// blockCodec is the first byte of every block: how the rest is encoded.
const blockCodec = 1

// Bounds of a block. A reader refuses blocks that exceed them, so they are part of the format.
const (
	chunkRowsMax   = 512      // rows of one series in a block
	GroupSeriesMax = 128      // series of a group: those that a read finds together
	histChunkBytes = 16 << 10 // a chunk of histograms is cut at this size
	histBlockMax   = 8 << 20  // histograms of a block: those before the last series are below groupHistsMax
	// The writer's largest head is some 60 KB: 128 chunks of floats with 33 exceptions of 10 bytes, and 60 bytes of other fields a chunk.
	headMax = 2 << 20 // head of a block, raw
)

// HistogramBytesMax bounds one histogram in a segment. It is four times what decoders accept (point.HistogramBytesMax): logs of
// earlier versions hold longer ones, which were acked.
const HistogramBytesMax = 4 << 20

// chunk is one series' share of a block: up to chunkRowsMax float rows or histograms.
type chunk struct {
	slot   uint8
	number uint16 // in its block
	rows   int
	times  columnRef
	lo, hi point.Stamp
	floats
	histBytes int // formHist: bytes of all histograms

	ranked bool // only while it is written: ranks of rows lie at
	ranks  columnRef
}

// block collects the chunks of one block of a group. Reused by reset; not for concurrent use.
type block struct {
	// Memory of one block under construction: the slices keep their capacity over reset, so that a writer allocates for its first groups alone.
	chunks   []chunk
	except   []exception // memory of the chunks' except
	ints     planes      // formDelta, formLevel
	doubles  planes      // formXOR
	histLens []byte      // uvarint a histogram
	hists    []byte

	rows   int
	lo, hi point.Nanos // of all rows; only with rows > 0
	page   timesPage   // columns that this block used first
	ranked bool        // some chunk has ranks
	ranks  ranksPage

	headMem []byte // scratch
	stamps  []point.Stamp
	places  []int
}

func (b *block) reset() {
	*b = block{chunks: b.chunks[:0], except: b.except[:0], ints: b.ints, doubles: b.doubles,
		histLens: b.histLens[:0], hists: b.hists[:0], page: b.page, ranks: b.ranks, headMem: b.headMem, stamps: b.stamps, places: b.places}
	b.ints.reset()
	b.doubles.reset()
	b.page.reset()
	b.ranks.reset()
}

// cover widens the block's range of times. A group's record has these ranges: a read opens the blocks that overlap its own.
func (b *block) cover(ts []point.Nanos) {
	first, last := ts[0], ts[len(ts)-1]
	if b.rows == 0 {
		b.lo, b.hi = first, last
	}
	b.lo, b.hi = min(b.lo, first), max(b.hi, last)
	b.rows += len(ts)
}

// addFloats appends a chunk; c has slot, rows, times and stamps already.
func (b *block) addFloats(c chunk, vs []float64, e *valueEncoder) {
	c.floats = e.encode(vs)
	// The encoder's slices are overwritten by its next chunk. If b.except moves to larger memory, chunks before keep the old array, which is
	// complete for them.
	at := len(b.except)
	b.except = append(b.except, c.except...)
	c.except = b.except[at:]
	p := &b.ints
	if c.form == formXOR {
		p = &b.doubles
	}
	p.append(e.res, int(c.width))
	b.chunks = append(b.chunks, c)
}

// addHists appends a chunk of histograms. Their bytes are copied: the caller keeps hs.
func (b *block) addHists(c chunk, hs []peer.Hist) {
	c.form = formHist
	for _, h := range hs {
		b.histLens = binary.AppendUvarint(b.histLens, uint64(len(h.H)))
		b.hists = append(b.hists, h.H...)
		c.histBytes += len(h.H)
	}
	b.chunks = append(b.chunks, c)
}

// pack writes the block. own is the group's number: references to columns are written as distances from it.
func (b *block) pack(dst []byte, own uint32, pk *packer) []byte {
	head := b.head(b.headMem[:0], own)
	b.headMem = head
	dst = append(dst, blockCodec)
	dst = binary.AppendUvarint(dst, uint64(len(head)))
	dst = pk.append(dst, head)
	dst = b.ints.pack(dst, pk)
	dst = b.doubles.pack(dst, pk)
	if len(b.histLens) > 0 {
		dst = binary.AppendUvarint(dst, uint64(len(b.histLens)))
		dst = pk.append(dst, b.histLens)
		dst = pk.append(dst, b.hists)
	}
	return dst
}

// head writes the chunks' heads field by field, so that similar fields lie together.
func (b *block) head(dst []byte, own uint32) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b.chunks)))
	for i := range b.chunks {
		dst = append(dst, b.chunks[i].form)
	}
	prev := -1
	for i := range b.chunks {
		dst = append(dst, byte(int(b.chunks[i].slot)-prev))
		prev = int(b.chunks[i].slot)
	}
	for i := range b.chunks {
		dst = binary.AppendUvarint(dst, uint64(b.chunks[i].rows))
	}
	dst = b.headTimes(dst, own)
	dst = b.headStamps(dst)
	for i := range b.chunks {
		dst = b.chunks[i].appendParams(dst)
	}
	return dst
}

// headTimes writes the references to columns of times. Most are (own group, block, 0): three runs of zeros and equal numbers, which
// zstd shortens to a few bytes for all chunks.
func (b *block) headTimes(dst []byte, own uint32) []byte {
	for i := range b.chunks {
		dst = binary.AppendUvarint(dst, uint64(own-b.chunks[i].times.group))
	}
	var page, index int64
	for i := range b.chunks {
		dst = binary.AppendUvarint(dst, zigzag(int64(b.chunks[i].times.page)-page))
		page = int64(b.chunks[i].times.page)
	}
	for i := range b.chunks {
		dst = binary.AppendUvarint(dst, zigzag(int64(b.chunks[i].times.index)-index))
		index = int64(b.chunks[i].times.index)
	}
	return dst
}

// headStamps writes the distinct stamps in rising order, then per chunk the indices of its lowest and its highest: many
// series come with one request and share its stamp.
func (b *block) headStamps(dst []byte) []byte {
	all := b.stamps[:0]
	add := func(s point.Stamp) {
		if n := len(all); n == 0 || all[n-1] != s { // that of the series before, mostly
			all = append(all, s)
		}
	}
	for i := range b.chunks {
		add(b.chunks[i].lo)
		add(b.chunks[i].hi)
	}
	b.stamps = all
	slices.Sort(all)
	all = slices.Compact(all)
	dst = binary.AppendUvarint(dst, uint64(len(all)))
	prev := point.Stamp(0)
	for _, s := range all {
		dst = binary.AppendUvarint(dst, uint64(s-prev))
		prev = s
	}
	at := 0
	places := b.places[:0]
	for i := range b.chunks {
		at = stampAt(all, b.chunks[i].lo, at)
		places = append(places, at)
		dst = binary.AppendUvarint(dst, uint64(at))
	}
	for i := range b.chunks {
		dst = binary.AppendUvarint(dst, uint64(stampAt(all, b.chunks[i].hi, places[i])))
	}
	b.places = places
	return dst
}

// stampAt finds a stamp, which is there, and first looks at a likely place: neighbours often came with one request, and where there is one row the lowest is the highest.
func stampAt(all []point.Stamp, s point.Stamp, likely int) int {
	if all[likely] == s {
		return likely
	}
	at, _ := slices.BinarySearch(all, s)
	return at
}

// appendParams writes what the form needs. The values 3.25, 3.30, 3.21 as an example: form delta of 325, 330, 321 with scale 2, mean -2
// and residuals +7 and -7.
//
//	02      │ 01    │ 8a 05     │ 03      │ 00             in the planes of integers: 0e 0d
//	scale 2 │ width │ first 325 │ mean -2 │ no exceptions
func (c *chunk) appendParams(dst []byte) []byte {
	switch c.form {
	case formConst, formXOR:
		return binary.LittleEndian.AppendUint64(dst, c.first)
	case formHist:
		return binary.AppendUvarint(dst, uint64(c.histBytes))
	}
	dst = append(dst, c.scale, c.width)
	dst = binary.AppendUvarint(dst, zigzag(int64(c.first)))
	if c.form == formDelta {
		dst = binary.AppendUvarint(dst, zigzag(c.mean))
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.except)))
	return appendExceptions(dst, c.except)
}

// blockReader opens blocks. Its memory is reused by the next open; not for concurrent use.
type blockReader struct {
	chunks []chunk // of an opened one only those that are kept
	all    int     // chunks in the block
	rows   int     // of all of them

	headMem []byte
	except  []exception
	stamps  []point.Stamp
	ints    planeReader
	doubles planeReader

	// hists and histLens are the histograms of the chunks after the current one, and their lengths.
	histMem  [2][]byte
	histLens cursor
	hists    []byte
}

// open reads the head and decompresses the planes. own is the number of the group that holds the block.
func (r *blockReader) open(b []byte, own uint32, d *zstd.Decoder) error {
	c := cursor{b: b}
	if err := r.openHead(&c, own, d); err != nil {
		return err
	}
	// The lengths of all planes follow from the heads, so a length in the file never decides about memory (frame.go).
	var ints, doubles [8]int
	histBytes, histRows := 0, 0
	r.rows = 0
	for i := range r.chunks {
		ch := &r.chunks[i]
		r.rows += ch.rows
		switch ch.form {
		case formHist:
			histBytes, histRows = histBytes+ch.histBytes, histRows+ch.rows
		case formXOR:
			addLens(&doubles, ch.residuals(ch.rows), int(ch.width))
		default:
			addLens(&ints, ch.residuals(ch.rows), int(ch.width))
		}
	}
	r.ints.load(&c, d, &ints)
	r.doubles.load(&c, d, &doubles)
	if histRows > 0 && !c.bad {
		r.openHists(&c, d, histRows, histBytes)
	}
	if !c.end() {
		return errForm("planes of a block")
	}
	return nil
}

// openBlock is a block as open leaves it, in memory of its own. Many may read it: it is only cut.
// It has neither histograms, which are bytes that one read returns and drops, nor positions: a blockReader that uses it has those.
type openBlock struct {
	of            slots // whose chunks it has
	chunks        []chunk
	all, rows     int // of the whole block
	ints, doubles [8][]byte
}

// slots are series of a group.
type slots [GroupSeriesMax / 64]uint64

var everySlot = slots{math.MaxUint64, math.MaxUint64}

func (s *slots) add(slot int)      { s[slot/64] |= 1 << (slot % 64) }
func (s *slots) has(slot int) bool { return s[slot/64]&(1<<(slot%64)) != 0 }

func (s *slots) hasAll(of *slots) bool {
	for i := range s {
		if of[i]&^s[i] != 0 {
			return false
		}
	}
	return true
}

// chunkRowsKept is how many rows the chunks of a block have on average for all of it to be kept. The head of a chunk needs more memory than fewer rows: a
// block of ten rows a series is 20 KiB, with one series alone less than 1. Of longer ones neighbours are kept, too: decompressing is most of the work.
const chunkRowsKept = 64

// keep copies from the block that was just opened the chunks of some series, or of all where chunks are long; nil if it holds histograms. It reads the
// block to its end, unless it holds histograms.
func (r *blockReader) keep(of slots) *openBlock {
	if r.rows >= chunkRowsKept*len(r.chunks) {
		of = everySlot
	}
	n := 0
	var ints, doubles [8]int
	for i := range r.chunks {
		ch := &r.chunks[i]
		switch {
		case ch.form == formHist:
			return nil
		case !of.has(int(ch.slot)):
			continue
		case ch.form == formXOR:
			addLens(&doubles, ch.residuals(ch.rows), int(ch.width))
		default:
			addLens(&ints, ch.residuals(ch.rows), int(ch.width))
		}
		n++
	}
	t := &openBlock{of: of, chunks: make([]chunk, 0, n), all: r.all, rows: r.rows}
	for k := range t.ints {
		t.ints[k], t.doubles[k] = make([]byte, 0, ints[k]), make([]byte, 0, doubles[k])
	}
	for i, ch := range r.chunks {
		cols := r.columns(i)
		if !of.has(int(ch.slot)) {
			continue
		}
		ch.except = slices.Clone(ch.except)
		t.chunks = append(t.chunks, ch)
		to := &t.ints
		if ch.form == formXOR {
			to = &t.doubles
		}
		for k := range to {
			to[k] = append(to[k], cols[k]...)
		}
	}
	return t
}

// openHead reads the chunks of a block without their rows.
func (r *blockReader) openHead(c *cursor, own uint32, d *zstd.Decoder) error {
	if c.byte() != blockCodec {
		return errForm("block: unknown codec")
	}
	var raw []byte
	raw, r.headMem = c.frame(d, c.count(headMax), r.headMem)
	head := cursor{b: raw}
	r.parseHead(&head, own)
	if c.bad || !head.end() {
		return errForm("head of a block")
	}
	return nil
}

// use makes the reader read a block that was opened before, until the next open.
func (r *blockReader) use(b *openBlock) {
	r.chunks, r.all, r.rows, r.ints.open, r.doubles.open = b.chunks, b.all, b.rows, b.ints, b.doubles
}

// bytes is about the block's size in memory.
func (b *openBlock) bytes() int64 {
	n := int(unsafe.Sizeof(*b)) + len(b.chunks)*int(unsafe.Sizeof(chunk{}))
	for k := range b.ints {
		n += len(b.ints[k]) + len(b.doubles[k])
	}
	for i := range b.chunks {
		n += len(b.chunks[i].except) * int(unsafe.Sizeof(exception{}))
	}
	return int64(n)
}

// openHists opens the frames of lengths and of bytes. size is the sum of what chunks announce, each of which was checked.
func (r *blockReader) openHists(c *cursor, d *zstd.Decoder, rows, size int) {
	if size > histBlockMax {
		c.fail()
		return
	}
	var lens []byte
	lens, r.histMem[0] = c.frame(d, c.count(4*rows), r.histMem[0]) // 4 bytes hold HistogramBytesMax
	r.hists, r.histMem[1] = c.frame(d, size, r.histMem[1])
	r.histLens = cursor{b: lens}
}

// parseHead reads what block.head wrote, field by field. On malformed bytes c is bad; the chunks are then of no use.
func (r *blockReader) parseHead(c *cursor, own uint32) {
	// A slot has at most a chunk of floats and one of histograms.
	n := c.count(2 * GroupSeriesMax)
	r.chunks = slices.Grow(r.chunks[:0], n)[:n]
	clear(r.chunks)
	r.all = n
	r.except = r.except[:0]
	for i := range r.chunks {
		if r.chunks[i].form = c.byte(); r.chunks[i].form > formHist {
			c.fail()
		}
	}
	slot := -1
	for i := range r.chunks {
		step := int(c.byte())
		slot += step
		// Two chunks of one slot: floats, then histograms.
		twice := step == 0 && i > 0 && r.chunks[i].form == formHist && r.chunks[i-1].form != formHist
		if slot < 0 || slot >= GroupSeriesMax || step == 0 && !twice {
			c.fail()
		}
		r.chunks[i].slot, r.chunks[i].number = uint8(slot), uint16(i)
	}
	for i := range r.chunks {
		if r.chunks[i].rows = c.count(chunkRowsMax); r.chunks[i].rows == 0 {
			c.fail()
		}
	}
	r.parseTimes(c, own)
	r.parseStamps(c)
	for i := range r.chunks {
		r.parseParams(c, &r.chunks[i])
		if c.bad {
			return
		}
	}
}

// parseTimes reads the references. A column lies in this group or in one before it, as the writer had seen it by then; whether the page
// has it is seen when it is opened.
func (r *blockReader) parseTimes(c *cursor, own uint32) {
	for i := range r.chunks {
		r.chunks[i].times.group = own - uint32(c.count(int(own)))
	}
	var page, index int64
	for i := range r.chunks {
		page += c.varint()
		if page < 0 || page > 1<<31 {
			c.fail()
		}
		r.chunks[i].times.page = uint32(page)
	}
	for i := range r.chunks {
		index += c.varint()
		if index < 0 || index >= columnsPerPageMax {
			c.fail()
		}
		r.chunks[i].times.index = uint8(index)
	}
}

func (r *blockReader) parseStamps(c *cursor) {
	n := c.count(2 * len(r.chunks))
	r.stamps = r.stamps[:0]
	var s point.Stamp
	for range n {
		s += point.Stamp(c.uvarint())
		r.stamps = append(r.stamps, s)
	}
	at := func() point.Stamp {
		if k := c.count(n); k < n {
			return r.stamps[k]
		}
		c.fail()
		return 0
	}
	for i := range r.chunks {
		r.chunks[i].lo = at()
	}
	for i := range r.chunks {
		r.chunks[i].hi = at()
	}
}

// parseParams reads what appendParams wrote. Rows of exceptions are checked here, so that decode need not.
func (r *blockReader) parseParams(c *cursor, ch *chunk) {
	switch ch.form {
	case formConst:
		ch.first = c.uint64()
		return
	case formXOR:
		ch.first, ch.width = c.uint64(), 8
		return
	case formHist:
		ch.histBytes = c.count(max(histChunkBytes, HistogramBytesMax))
		return
	}
	ch.scale, ch.width = c.byte(), c.byte()
	ch.first = uint64(c.varint())
	if ch.form == formDelta {
		ch.mean = c.varint()
	}
	// The bytes of the exceptions are there before any is appended: a head of few bytes cannot announce many.
	n := c.count(ch.rows)
	if ch.scale > scaleMax || ch.width > 8 || len(c.b) < n*exceptSize {
		c.fail()
		return
	}
	at := len(r.except)
	for range n {
		x := exception{row: uint16(c.count(ch.rows - 1)), bits: c.uint64()}
		r.except = append(r.except, x)
	}
	ch.except = r.except[at:]
}

// values decodes the values of chunk i into dst, which has the length of the chunk's rows. Chunks must be decoded in
// order, each by values, skip or histograms.
func (r *blockReader) values(i int, dst []float64) {
	col := r.columns(i)
	r.chunks[i].decode(dst, &col)
}

// skip passes over chunk i.
func (r *blockReader) skip(i int) error {
	if r.chunks[i].form == formHist {
		_, err := r.histograms(i, nil, false)
		return err
	}
	r.columns(i)
	return nil
}

func (r *blockReader) columns(i int) [8][]byte {
	ch := &r.chunks[i]
	if ch.form == formXOR {
		return r.doubles.column(ch.residuals(ch.rows), 8)
	}
	return r.ints.column(ch.residuals(ch.rows), int(ch.width))
}

// histograms gives the histograms of chunk i in memory of their own, one slab; ts are the chunk's times.
func (r *blockReader) histograms(i int, ts []point.Nanos, keep bool) ([]peer.Hist, error) {
	ch := &r.chunks[i]
	if len(r.hists) < ch.histBytes {
		return nil, errForm("histograms of a block")
	}
	raw := r.hists[:ch.histBytes]
	r.hists = r.hists[ch.histBytes:]
	var out []peer.Hist
	if keep {
		raw, out = slices.Clone(raw), make([]peer.Hist, 0, ch.rows)
	}
	for k := range ch.rows {
		n := r.histLens.count(len(raw))
		if r.histLens.bad {
			return nil, errForm("histograms of a block")
		}
		if keep {
			out = append(out, peer.Hist{Time: ts[k], H: raw[:n:n]})
		}
		raw = raw[n:]
	}
	if len(raw) > 0 {
		return nil, errForm("histograms of a block")
	}
	return out, nil
}
