package head

import (
	"encoding/binary"
	"unsafe"

	"github.com/spillwaydb/spillway/protocols/memory"
)

// A block is one cache line: rows from byte 4 on, and in the first four bytes the index of the block that follows
// (little endian, written once, when that block is allocated).
const (
	blockBytes  = 64
	blockHeader = 4
	chunkShift  = 14 // blocks a chunk, as a power of two: 1 MiB
	chunkBlocks = 1 << chunkShift
	chunkBytes  = chunkBlocks * blockBytes
)

type block [blockBytes]byte

// arena hands out zeroed memory that holds no Go pointers and is released all at once. It is mapped, not allocated:
// a gigabyte of rows would otherwise make the collector wait for another gigabyte of garbage before it runs.
// Memory that is mapped and not touched costs nothing.
type arena struct {
	onHeap bool // for systems without mmap, and for the race detector, which does not see mapped memory

	chunks []unsafe.Pointer // to chunkBlocks blocks each; the first to fewer while there are few
	next   uint32           // block to hand out next; block 0 is never handed out, so that 0 means none
	limit  uint32           // blocks from here on have no memory yet
	maps   [][]byte
	used   int  // bytes handed out, and whole slabs
	whole  bool // the last chunk's blocks are counted already: it is small, or of a slab
	warmth byte // only there so that the compiler keeps the reads that made it

	region   []byte // rest of the last region, whole slabs
	ofPages  []byte // rest of the slab that pages are cut from
	ofChunks []byte // rest of the slab that chunks are cut from

	cells []*[pageSeries]uint64 // released: see thin.go
	lent  [][]uint64            // slabs on the collector's heap, if checked
}

// A slab is one huge page. Getting fresh memory from the system page by page costs 1.5 to 2 µs for each 4 KiB in a virtual
// machine, and for a series' first rows more than all other work here; by huge pages it costs 0.2 to 0.3 µs (DESIGN.md).
// A head begins without them: up to slabsFrom it uses only the memory that it touches.
const (
	slabBytes   = 2 << 20
	slabsFrom   = slabBytes
	regionBytes = 8 * slabBytes // mapped at once; untouched parts cost nothing
)

// cut allocates size bytes of the slab of which rest is left, or off a new one; nil if the system gives none.
func (a *arena) cut(rest *[]byte, size int) unsafe.Pointer {
	if len(*rest) < size {
		slab := a.slab()
		if slab == nil {
			return nil
		}
		a.used += slabBytes // a slab is resident as soon as any of its bytes is
		slab[0] = 0         // to write it first spares a fault: see memory.Touch
		*rest = slab
	}
	p := unsafe.Pointer(unsafe.SliceData(*rest))
	*rest = (*rest)[size:]
	return p
}

func (a *arena) slab() []byte {
	if len(a.region) == 0 {
		m := mapMemory(regionBytes + slabBytes)
		if m == nil {
			return nil
		}
		a.maps = append(a.maps, m)
		aligned := -uintptr(unsafe.Pointer(unsafe.SliceData(m))) & (slabBytes - 1)
		a.region = m[aligned : aligned+regionBytes]
		memory.Huge(a.region)
	}
	slab := a.region[:slabBytes]
	a.region = a.region[slabBytes:]
	return slab
}

// block finds a block by its index.
func (a *arena) block(i uint32) *block {
	return (*block)(unsafe.Add(a.chunks[i>>chunkShift], int(i&(chunkBlocks-1))*blockBytes))
}

// load reads eight bytes from byte off of a block on, little endian. They may lie beyond its end, in the block after it.
func (a *arena) load(b *block, off int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(unsafe.Pointer(b), off&127))[:])
}

// take allocates a block.
func (a *arena) take() uint32 {
	if a.next == 0 {
		a.next = 1
	}
	if a.next&(chunkBlocks-1) == chunkBlocks-1 {
		a.next++ // the last block of a chunk stays empty: load may read beyond the one before
	}
	if a.next >= a.limit {
		a.grow()
	}
	i := a.next
	a.next++
	if !a.whole {
		a.used += blockBytes
		a.block(i)[0] = 0 // to write it first spares a fault: see memory.Touch
	}
	return i
}

// The first chunk begins with few blocks, on the collector's heap, and is moved twice as it grows: a partition that is
// touched by a single row costs a kilobyte. Its last block stays empty like that of any chunk.
const (
	blocksFirst  = 16
	blocksSecond = 128
)

// grow makes room for one more block at least. Blocks may move: no caller holds a pointer into a block across take.
func (a *arena) grow() {
	switch {
	case a.limit == 0:
		a.chunks, a.limit, a.whole = append(a.chunks, a.smallBlocks(blocksFirst)), blocksFirst-1, true
		a.used += blocksFirst * blockBytes
	case a.limit == blocksFirst-1:
		a.move(a.smallBlocks(blocksSecond))
		a.limit = blocksSecond - 1
		a.used += (blocksSecond - blocksFirst) * blockBytes
	case a.limit == blocksSecond-1:
		a.used -= blocksSecond * blockBytes
		a.move(a.chunk())
		a.limit = chunkBlocks
		if !a.whole {
			a.used += int(a.next) * blockBytes
		}
	default:
		a.chunks = append(a.chunks, a.chunk())
		a.limit += chunkBlocks
	}
}

func (a *arena) smallBlocks(n int) unsafe.Pointer { return a.heap(n * blockBytes) }

// move copies the first chunk to larger memory.
func (a *arena) move(to unsafe.Pointer) {
	n := int(a.next)
	copy(unsafe.Slice((*block)(to), n), unsafe.Slice((*block)(a.chunks[0]), n))
	a.chunks[0] = to
}

func (a *arena) chunk() unsafe.Pointer {
	var m unsafe.Pointer
	if a.whole = false; a.used >= slabsFrom && !a.onHeap {
		m = a.cut(&a.ofChunks, chunkBytes)
		a.whole = m != nil
	}
	if m == nil {
		m = a.memory(chunkBytes)
	}
	return m
}

// page gives the state of 1024 series without rows.
func (a *arena) page() *page {
	if a.used >= slabsFrom && !a.onHeap {
		if m := a.cut(&a.ofPages, pageBytes); m != nil {
			return (*page)(m)
		}
	}
	m := a.memory(pageBytes)
	if a.used > 0 { // the first page may stay almost empty
		memory.Touch(unsafe.Slice((*byte)(m), pageBytes))
	}
	a.used += pageBytes
	return (*page)(m)
}

// memory gives size zeroed bytes, aligned to a page. If the system gives no mapping, it comes from the heap: rows that
// are already logged cannot be refused here.
func (a *arena) memory(size int) unsafe.Pointer {
	if !a.onHeap {
		if m := mapMemory(size); m != nil {
			a.maps = append(a.maps, m)
			return unsafe.Pointer(unsafe.SliceData(m))
		}
	}
	return a.heap(size)
}

// heap gives size zeroed bytes of the collector's heap.
func (a *arena) heap(size int) unsafe.Pointer {
	m := make([]uint64, size/8) // aligned for every type that is put into it
	if checked {
		a.lent = append(a.lent, m)
	}
	return unsafe.Pointer(unsafe.SliceData(m))
}

// released overwrites memory on the collector's heap: as little is left in it as in memory that is unmapped, and a read without order to the
// release is a race.
const released = 0xdbdb_dbdb_dbdb_dbdb

// free gives all memory back. Nothing that was handed out may be touched afterwards.
func (a *arena) free() {
	for _, m := range a.maps {
		unmapMemory(m)
	}
	for _, m := range a.lent {
		for i := range m {
			m[i] = released
		}
	}
	*a = arena{onHeap: a.onHeap}
}
