package head

import (
	"encoding/binary"
	"unsafe"
)

// A block is one cache line: rows from byte 4 on, and in the first four bytes the index of the block that follows
// (little endian, written once, when that block is taken).
const (
	blockBytes  = 64
	blockHeader = 4
	chunkShift  = 14 // blocks a chunk, as a power of two: 1 MiB
	chunkBlocks = 1 << chunkShift
	chunkBytes  = chunkBlocks * blockBytes
)

type block [blockBytes]byte

// arena hands out zeroed memory that holds no Go pointers and is given back all at once. It is mapped, not allocated:
// a gigabyte of rows would otherwise make the collector wait for another gigabyte of garbage before it runs.
// Memory that is mapped and not touched costs nothing.
type arena struct {
	onHeap bool // for systems without mmap, and for the race detector, which does not see mapped memory

	chunks []*[chunkBlocks]block
	next   uint32 // block to hand out next; block 0 is never handed out, so that 0 means none
	maps   [][]byte
	used   int  // bytes handed out
	warmth byte // of no use but to keep the reads that made it
}

// block finds a block by its index.
func (a *arena) block(i uint32) *block {
	return &a.chunks[i>>chunkShift][i&(chunkBlocks-1)]
}

// load reads eight bytes from byte off of a block on, little endian. They may lie beyond its end, in the block after it.
func (a *arena) load(b *block, off int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(unsafe.Pointer(b), off&127))[:])
}

// take hands out a block.
func (a *arena) take() uint32 {
	if a.next == 0 {
		a.next = 1
	}
	if a.next&(chunkBlocks-1) == chunkBlocks-1 {
		a.next++ // the last block of a chunk stays empty: load may read beyond the one before
	}
	if int(a.next>>chunkShift) == len(a.chunks) {
		a.chunks = append(a.chunks, (*[chunkBlocks]block)(a.memory(chunkBytes)))
	}
	i := a.next
	a.next++
	a.used += blockBytes
	return i
}

// memory hands out size zeroed bytes, aligned to a page. A system that gives no mapping is asked for heap instead:
// rows that are already logged cannot be refused here.
func (a *arena) memory(size int) unsafe.Pointer {
	if !a.onHeap {
		if m := mapMemory(size); m != nil {
			a.maps = append(a.maps, m)
			return unsafe.Pointer(unsafe.SliceData(m))
		}
	}
	// uint64s, so that the memory is aligned for every type that is put into it.
	return unsafe.Pointer(unsafe.SliceData(make([]uint64, size/8)))
}

// free gives all memory back. Nothing that was handed out may be touched afterwards.
func (a *arena) free() {
	for _, m := range a.maps {
		unmapMemory(m)
	}
	*a = arena{onHeap: a.onHeap}
}
