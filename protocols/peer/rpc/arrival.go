package rpc

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// arrival is a message that arrives, with the memory that it holds. Another goroutine may free that memory while the reader waits for the next piece.
//
//	first piece ─▶ enter: a buffer for all of an insert ─▶ pieces ─▶ whole ─▶ the message, counted until its buffer is freed
//	                └ of another request: its pieces                └ drop: no room any more, the first record's header is left
type arrival struct {
	// Constant.
	of      *arrivals
	room    *sharedRoom // nil: it needs none
	length  int
	inserts bool // read into one buffer: in the transport's own it would be copied once more when it is whole, and be there twice

	mu      sync.Mutex
	data    mem.BufferSlice
	rest    []byte // of the buffer: to be filled
	has     *seat  // nil: it needs no room, or has none yet
	counted int64
	lost    bool
	head    []byte // of one that is lost: as much of a record's header as came
}

// needs is the memory of a message: a pooled buffer may be longer.
func (a *arrival) needs() int64 {
	if a.inserts {
		return int64(pooledBytes(a.length))
	}
	return int64(a.length)
}

// countLocked counts n bytes in all.
func (a *arrival) countLocked(n int64) {
	a.of.held.Add(n - a.counted)
	a.counted = n
}

// enter gives the message its room.
func (a *arrival) enter(has *seat) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.has = has
	a.countLocked(has.bytes)
	if !a.inserts {
		return
	}
	first := a.data
	buf, data := poolBufferOf(a.length, func() {
		a.of.held.Add(-has.bytes)
		a.room.leave(has)
	})
	a.data, a.rest = mem.BufferSlice{buf}, data
	a.rest = a.rest[first.CopyTo(a.rest):]
	first.Free()
}

// keep adds a piece. The error is errNoRoom where the message has lost its room.
func (a *arrival) keep(piece mem.BufferSlice) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.lost:
		a.noteHeadLocked(piece)
		piece.Free()
		return errNoRoom
	case a.rest != nil:
		a.rest = a.rest[piece.CopyTo(a.rest):]
		piece.Free()
		return nil
	case a.has == nil:
		a.countLocked(a.counted + int64(piece.Len()))
	}
	a.data = append(a.data, piece...)
	return nil
}

// whole passes the message to the caller, which frees its buffer. The caller calls release, unless it is nil, when it is done with the message: until then the
// bytes count. With a nil release the bytes of an insert count until its buffer is freed, and the caller counts those of other messages. The error is errNoRoom
// if the message lost its room after its last piece had come.
func (a *arrival) whole() (data mem.BufferSlice, release func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost {
		return nil, nil, errNoRoom
	}
	data, a.data, a.lost = a.data, nil, true
	switch {
	case a.inserts && a.has != nil:
		return data, nil, nil
	case a.inserts:
		n := a.counted
		return data, func() { a.of.held.Add(-n) }, nil
	}
	a.giveLocked() // its reader counts it
	return data, nil, nil
}

// drop frees the pieces, and returns the header of the first record, as far as that came.
func (a *arrival) drop() (head []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost {
		return a.head
	}
	a.lost = true
	a.noteHeadLocked(a.data)
	a.data.Free()
	a.data, a.rest = nil, nil
	if !a.inserts || a.has == nil {
		a.giveLocked()
	}
	return a.head
}

// giveLocked gives back the memory and the room of a message without a buffer of its own.
func (a *arrival) giveLocked() {
	a.of.held.Add(-a.counted)
	if a.has != nil {
		a.room.leave(a.has)
	}
}

func (a *arrival) noteHeadLocked(data mem.BufferSlice) {
	for _, b := range data {
		a.head = append(a.head, b.ReadOnlyData()[:min(b.Len(), recordLen-len(a.head))]...)
	}
}
