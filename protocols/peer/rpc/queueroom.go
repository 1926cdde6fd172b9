package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// queueRoom is a link's part of the memory for frames that wait to be sent, or for pieces of segments. A sender may queue what the other
// side has room for, and all other sides together may have more than this process has memory, where the network is slow. So each link has
// its first bytes, and frames beyond these have room in that of all links (Links.queues), by the rule of sendRoom.
//
//	frame ─▶ room at the other side ─▶ room here ─▶ queue ─▶ network
//
// Queues empty as the other sides read, which they always do: room here waits for none there, or the link ends. A frame that the first
// bytes can hold waits for them as well as for the room of all, so that it goes on as its own link does, whatever others hold.
//
// Locks: mu and that of all are never held together.
type queueRoom struct {
	// Constant.
	all     *sharedSendRoom
	server  string
	own     int64         // the first bytes of the link
	waitMax time.Duration // 0: what waits is not refused

	mu    sync.Mutex
	first int64      // bytes in use of the first ones
	waits []*outWait // for some of these, in their order
}

// queueWaitMax is how long frames wait for room in queues until they are refused, and tried again by their partition.
const queueWaitMax = 5 * time.Second

// pieceFirstBytes are the first bytes of a link for pieces: one is sent while the next is read from its file. Pieces are never refused:
// each is in memory once however long it waits, and its transfer sends no other meanwhile.
const pieceFirstBytes = 2 * (peer.LinkPieceBytesMax + bodyCost)

// errQueuesFull refuses frames that waited that long.
var errQueuesFull = fault.Errorf(fault.Throttled, "frames that wait to be sent have all the room there is for %v; the network to other servers is slow", queueWaitMax)

// queued is where the room of a frame is from.
type queued uint8

const (
	nowhere   queued = iota // it has none
	fromFirst               // of the first bytes of its link
	fromAll                 // of the shared part
	fromLane                // likewise, of its lane
)

// try has room for bytes, if there is some at once.
func (q *queueRoom) try(bytes int64) (queued, bool) {
	if q.tryFirst(bytes) {
		return fromFirst, true
	}
	from := q.all.try(q.server, bytes)
	return from, from != nowhere
}

func (q *queueRoom) tryFirst(bytes int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waits) > 0 || q.first+bytes > q.own {
		return false
	}
	q.first += bytes
	return true
}

// enter waits for room. Errors are errQueuesFull and that of ctx.
func (q *queueRoom) enter(ctx context.Context, bytes int64) (queued, error) {
	w, s := q.join(bytes), q.all.join(q.server, bytes)
	var limit <-chan time.Time
	if q.waitMax > 0 {
		t := time.NewTimer(q.waitMax)
		defer t.Stop()
		limit = t.C
	}
	select {
	case <-s.got:
	case <-w.ready:
	case <-limit:
	case <-ctx.Done():
	}
	if q.leave(w) { // it may have both
		q.all.leave(s)
		return fromFirst, nil
	}
	switch from := q.all.settle(s); {
	case from != nowhere:
		return from, nil
	case ctx.Err() != nil:
		return nowhere, ctx.Err()
	}
	return nowhere, errQueuesFull
}

// join waits for some of the first bytes, unless they are too few.
func (q *queueRoom) join(bytes int64) *outWait {
	w := &outWait{bytes: bytes, ready: make(chan struct{})}
	if bytes > q.own {
		return w
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits = append(q.waits, w)
	q.serveLocked()
	return w
}

// leave ends a wait, and reports whether it has its bytes.
func (q *queueRoom) leave(w *outWait) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, other := range q.waits {
		if other == w {
			q.waits = append(q.waits[:i:i], q.waits[i+1:]...)
			q.serveLocked() // those behind may be shorter
			return false
		}
	}
	return w.bytes <= q.own
}

func (q *queueRoom) serveLocked() {
	for len(q.waits) > 0 && q.first+q.waits[0].bytes <= q.own {
		q.first += q.waits[0].bytes
		close(q.waits[0].ready)
		q.waits = q.waits[1:]
	}
}

// firstInUse is the first bytes that frames have.
func (q *queueRoom) firstInUse() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.first
}

// give returns room.
func (q *queueRoom) give(from queued, bytes int64) {
	switch {
	case bytes == 0:
	case from == fromFirst:
		q.mu.Lock()
		defer q.mu.Unlock()
		q.first -= bytes
		q.serveLocked()
	case from != nowhere:
		q.all.give(q.server, from, bytes)
	}
}

// Frames implements peer.Link. Frames are booked twice while they are sent: as they are read, and queued.
func (l *link) Frames(ctx context.Context, n, bytes int, send func(peer.QueueFrame) error) error {
	left := int64(bytes) + int64(n)*bodyCost
	if left > peer.LinkFrameBytesMax+bodyCost {
		return tooLong(bytes)
	}
	if err := l.await(ctx, &l.frameRoom, left); err != nil {
		return err
	}
	from, err := l.enterQueue(ctx, &l.queueRoom, left)
	if err != nil {
		if err == errQueuesFull {
			l.ls.metrics.linkRefused.Add(float64(n))
		}
		l.frameRoom.credit(uint64(left))
		return err
	}
	most := left
	l.ls.held.Add(most)
	defer l.ls.held.Add(-most)
	defer func() {
		l.frameRoom.credit(uint64(left))
		l.queueRoom.give(from, left)
	}()
	return send(func(r *peer.Route, rec []byte, done func()) error {
		return l.frame(r, rec, done, func(n int64) (queued, error) {
			if n > left {
				return nowhere, errLinkFull
			}
			left -= n
			return from, nil
		})
	})
}

// enterQueue has room in the queue, unless ctx or the link ends before.
func (l *link) enterQueue(ctx context.Context, q *queueRoom, bytes int64) (queued, error) {
	// Mostly there is room. A frame of 10 kB alone costs 40 % more where a wait is prepared first (BenchmarkLinkFrames, 2026-12-01).
	if from, ok := q.try(bytes); ok {
		return from, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	from, err := q.enter(ctx, bytes)
	switch {
	case err == nil || err == errQueuesFull:
		return from, err
	case l.why() != nil:
		return from, l.why()
	}
	return from, fault.Wrap(err, fault.Canceled, "wait for room in the queue of the link to %s", l.other.Server)
}

func tooLong(bytes int) error {
	return fault.Errorf(fault.TooLarge, "frames of %d bytes, at most %d travel", bytes, peer.LinkFrameBytesMax)
}
