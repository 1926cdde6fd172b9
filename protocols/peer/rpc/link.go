package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// link is one side of a link, whichever side dialled.
//
//	Send ─────────▶ urgent ─┐
//	Frame ─(room)─▶ frames ─┼─ send: urgent first, 1 message in 16 of pieces if frames never end ─▶ pipe
//	Piece ─(room)─▶ pieces ─┘
//	   room ◀──────────────── receive: handler, at once, in one goroutine ◀───────────────────────── pipe
//
// Nothing waits in receive: bodies that a handler has not released count against the sender's room, so memory is bounded by the
// windows and the stream is always read. An urgent message therefore waits for no more than the message being sent, of linkMessageBytes.
type link struct {
	// Constant.
	ls     *Links
	self   linkGreeting
	other  linkGreeting
	dialed bool
	pipe   pipe
	ctx    context.Context // ends with the link
	// Ends the pipe too, so that receive, which waits in RecvMsg, returns.
	cancel context.CancelCauseFunc
	wake   chan struct{} // 1 when there is something to send
	done   chan struct{} // closed when no goroutine of the link is left, and the handler was notified
	began  time.Time

	// Bytes that the other side has room for, with bodyCost for each body; its credits return them once its handler has
	// released the bodies.
	frameRoom outRoom
	pieceRoom outRoom
	// Room for those that wait to be sent.
	queueRoom  queueRoom
	pieceQueue queueRoom
	part       *linkPart // of the room of all links, for received frames; nil: the other side does not ask for room

	mu struct {
		sync.Mutex
		// mu guards the queues and is held while a record is appended, never while one is sent. urgent holds encoded
		// records: one message carries all that wait.
		urgent []byte // records
		booked int64  // of its capacity
		grants bool   // a grant is among them
		frames []*outgoing
		pieces []*outgoing
		err    error
	}

	frames, pieces flow // of received bodies

	received atomic.Int64 // when something was last received or handled, since began
	handling atomic.Bool  // the handler is at work: later messages wait for it
	sent     atomic.Int64 // when something was last sent, since began
	silent   atomic.Bool
	writes   atomic.Uint64 // how often a message began to be sent, and was: odd while one is

	// Owned by send.
	framesLeft int   // messages of frames before one of pieces
	sending    int64 // booked for the urgent message that is being sent

	// Owned by receive.
	tables tableNames
	partly *arriving
}

// pipe is the transport of a link: a gRPC stream, or memory.
type pipe interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

// flow counts received bodies that are not released.
type flow struct {
	window int64
	held   *budget.Held // of all links
	inUse  atomic.Int64
	owed   atomic.Int64 // released, but not yet reported to the sender
	kept   atomic.Int64 // likewise, and their room is not returned
}

// outgoing is a frame or a piece on its way.
type outgoing struct {
	head []byte // the record's header and head
	data []byte
	sent int
	cost int64 // while it is queued
	from queued
	// piece: from is of pieceQueue.
	piece bool
	done  func()
	// gRPC may read a message after SendMsg has returned, so the owner gets its memory back only with the last
	// reference.
	refs atomic.Int32 // the queue's, and one for each part that gRPC may be reading
}

func newOutgoing(data []byte, cost int64, done func()) *outgoing {
	o := &outgoing{data: data, cost: cost, done: done}
	o.refs.Store(1)
	return o
}

// release drops a reference; the last one returns the bytes to their owner.
func (o *outgoing) release() {
	if o.refs.Add(-1) == 0 && o.done != nil {
		o.done()
	}
}

// arriving is a frame of which parts are missing.
type arriving struct {
	route peer.Route
	buf   mem.Buffer
	data  []byte
	spare int64 // of the buffer behind the frame: booked, and no part of the window
	have  int
}

func (a *arriving) cost() int64 { return int64(len(a.data)) + bodyCost }

const (
	// linkMessageBytes is about the size of one message.
	// At 1 Gbit/s one lasts a millisecond, which an urgent message behind it waits.
	linkMessageBytes = 128 << 10
	// linkReferenced is the length from which a frame is sent from its own memory; a shorter one is cheaper to copy.
	linkReferenced = 4 << 10
	// urgentBytesMax bounds the urgent messages that wait to be sent.
	urgentBytesMax = 8 << 20
	// linkMessageMax bounds a received message: urgent messages that waited, and one more.
	linkMessageMax = urgentBytesMax + linkHeadMax + 1<<20
	// pieceTurns is how many messages of frames are sent for one of pieces where both wait.
	pieceTurns = 16
	// bodyCost is the cost of a frame or a piece beside its bytes.
	// So that a million empty bodies do not count as nothing.
	bodyCost = 256
	// partBytes is the longest part of a frame in one message.
	partBytes = linkMessageBytes
)

var errLinkFull = fault.Errorf(fault.Throttled, "the link has no room: its other side has not done with what was sent")

// newLink makes a link of two sides that have greeted each other. ctx is the pipe's, and cancel ends it.
func newLink(ctx context.Context, cancel context.CancelCauseFunc, ls *Links, p pipe, self, other linkGreeting, dialed bool) *link {
	l := &link{ls: ls, self: self, other: other, dialed: dialed, pipe: p, ctx: ctx, cancel: cancel,
		wake: make(chan struct{}, 1), done: make(chan struct{}), began: time.Now()}
	// A capability counts only if both sides have it: callers then ask one place.
	l.other.Capabilities &= l.self.Capabilities
	l.frames.window, l.pieces.window = int64(l.self.frameWindow), int64(l.self.pieceWindow)
	l.frames.held, l.pieces.held = &ls.held, &ls.held
	l.queueRoom.all, l.queueRoom.server, l.queueRoom.own, l.queueRoom.waitMax = ls.queues, other.Server, linkFirstBytes, queueWaitMax
	l.pieceQueue.all, l.pieceQueue.server, l.pieceQueue.own = ls.pieces, other.Server, pieceFirstBytes
	l.frameRoom.room, l.pieceRoom.room = int64(other.frameWindow), int64(other.pieceWindow)
	if l.other.Capabilities.Has(peer.CanAskRoom) {
		l.frameRoom.room, l.frameRoom.asks = linkFirstBytes, true
		l.frameRoom.ask = func(give, want uint64) { l.sendOwn(linkAsk, give, want) }
		l.part = &linkPart{all: ls.room, server: other.Server, window: l.frames.window, inUse: &l.frames.inUse, grant: func(n uint64) { l.sendOwn(linkGrant, n) }}
	}
	return l
}

// run carries the link until it ends.
// The order of the end: receive returns (the pipe ended, or Close cancelled it), fail has send and watch end, and only
// when both have does the handler get Unlinked: it is called once, after the last message.
func (l *link) run() {
	defer close(l.done)
	defer l.ls.gone(l)
	h := l.ls.handler
	h.Linked(l)
	l.received.Store(int64(l.now())) // it may have waited for the end of the one that it replaces, and Linked may last
	var loops sync.WaitGroup
	loops.Go(l.send)
	loops.Go(l.watch)
	l.fail(l.receive())
	if p := l.partly; p != nil {
		l.frames.inUse.Add(-p.cost())
		l.frames.held.Add(-p.cost() - p.spare)
		p.buf.Free()
		if l.part != nil {
			l.part.came(p.cost(), -1)
		}
	}
	if l.part != nil {
		l.part.end()
	}
	loops.Wait()
	h.Unlinked(l, l.why())
}

// Peer implements peer.Link.
func (l *link) Peer() peer.LinkHello { return l.other.LinkHello }

// TryFrame implements peer.Link.
func (l *link) TryFrame(r *peer.Route, rec []byte, done func()) error {
	return l.frame(r, rec, done, func(n int64) (queued, error) {
		from, ok := l.queueRoom.try(n)
		if !ok {
			return nowhere, errLinkFull
		}
		if !l.frameRoom.tryAcquire(n) {
			l.queueRoom.give(from, n)
			return nowhere, errLinkFull
		}
		return from, nil
	})
}

func (l *link) frame(r *peer.Route, rec []byte, done func(), take func(int64) (queued, error)) error {
	err := l.tryQueueFrame(r, rec, done, take)
	if err != nil && done != nil {
		done()
	}
	return err
}

func (l *link) tryQueueFrame(r *peer.Route, rec []byte, done func(), take func(int64) (queued, error)) error {
	if len(rec) > peer.LinkFrameBytesMax || len(r.Table) > peer.LinkTableBytesMax {
		return tooLong(len(rec))
	}
	n := int64(len(rec)) + bodyCost
	from, err := take(n)
	if err != nil {
		return err
	}
	o := newOutgoing(rec, n, done)
	o.from = from
	o.head = appendRoute(beginLinkRecord(make([]byte, 0, linkRecordLen+48+len(r.Table)), linkFrame), r)
	o.head = binary.AppendUvarint(o.head, uint64(len(rec)))
	o.head = endLinkRecord(o.head, 0, min(len(rec), partBytes))
	return l.queue(&l.mu.frames, o)
}

// Piece implements peer.Link.
func (l *link) Piece(ctx context.Context, r *peer.Route, at peer.SegmentPiece, data []byte) error {
	if len(data) > peer.LinkPieceBytesMax || len(r.Table) > peer.LinkTableBytesMax {
		return fault.Errorf(fault.TooLarge, "a piece of %d bytes, at most %d travel", len(data), peer.LinkPieceBytesMax)
	}
	n := int64(len(data)) + bodyCost
	if err := l.await(ctx, &l.pieceRoom, n); err != nil {
		return err
	}
	from, err := l.enterQueue(ctx, &l.pieceQueue, n)
	if err != nil {
		l.pieceRoom.credit(uint64(n))
		return err
	}
	o := newOutgoing(append([]byte(nil), data...), n, nil)
	o.from, o.piece = from, true
	o.head = appendRoute(beginLinkRecord(nil, linkPiece), r)
	o.head = binary.AppendUvarint(binary.AppendUvarint(o.head, at.Slot), at.Offset)
	o.head = endLinkRecord(o.head, 0, len(data))
	// data is copied above: the caller reads the next piece of the file into the same buffer.
	return l.queue(&l.mu.pieces, o)
}

// queue appends to a queue. The bytes in queues are counted: gRPC has hardly more than the message being sent.
func (l *link) queue(to *[]*outgoing, o *outgoing) error {
	l.ls.held.Add(o.cost)
	err := l.tryQueue(to, o)
	if err != nil {
		l.giveRoom(o)
	}
	return err
}

// giveRoom returns the room that is booked for one that is not queued any more.
func (l *link) giveRoom(o *outgoing) {
	l.ls.held.Add(-o.cost)
	if o.piece {
		l.pieceQueue.give(o.from, o.cost)
		return
	}
	l.queueRoom.give(o.from, o.cost)
}

func (l *link) tryQueue(to *[]*outgoing, o *outgoing) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.err != nil {
		return l.mu.err
	}
	*to = append(*to, o)
	l.poke()
	return nil
}

// unqueued is called for each that has left its queue.
func (l *link) unqueued(o *outgoing) {
	l.giveRoom(o)
	o.release()
}

// Close implements peer.Link.
func (l *link) Close(why string) {
	l.fail(fault.Errorf(fault.Unavailable, "the link to %s is closed: %s", l.other.Server, why))
}

// fail ends the link. Queued messages are dropped.
func (l *link) fail(err error) {
	if errors.Is(err, io.EOF) {
		err = fault.Errorf(fault.Unavailable, "%s ended the link", l.other.Server)
	}
	if fault.KindOf(err) != fault.Corrupt && fault.KindOf(err) != fault.Unavailable {
		err = fault.Wrap(err, fault.Unavailable, "the link to %s", l.other.Server)
	}
	l.mu.Lock()
	if l.mu.err != nil {
		l.mu.Unlock()
		return
	}
	l.mu.err = err
	// Released after the lock: done is the caller's code. err is set before, so nothing is queued any more.
	given := append(l.mu.frames, l.mu.pieces...)
	l.mu.frames, l.mu.pieces, l.mu.urgent = nil, nil, nil
	l.ls.held.Add(-l.mu.booked)
	l.mu.booked = 0
	l.mu.Unlock()
	l.cancel(err)
	for _, o := range given {
		l.unqueued(o)
	}
}

// why is the reason why the link ended; nil: it has not.
func (l *link) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.err
}

func (l *link) now() time.Duration { return time.Since(l.began) }

// send sends the queued messages until the link ends.
func (l *link) send() {
	m := l.ls.metrics
	var copied []*outgoing
	for {
		var data mem.BufferSlice
		var class string
		data, copied, class = l.next(copied[:0])
		for _, o := range copied {
			l.unqueued(o)
		}
		if data == nil {
			select {
			case <-l.ctx.Done():
				l.fail(context.Cause(l.ctx))
				return
			case <-l.wake:
				continue
			}
		}
		n := data.Len()
		l.writes.Add(1)
		err := l.pipe.SendMsg(&message{data: data})
		l.writes.Add(1)
		if l.sending > 0 {
			l.ls.held.Add(-l.sending)
			l.sending = 0
		}
		if err != nil {
			if !errors.Is(err, io.EOF) { // else receive has the reason
				l.fail(ofStatus(err))
			}
			<-l.ctx.Done()
			return
		}
		l.sent.Store(int64(l.now()))
		m.linkSent.WithLabelValues(class).Add(float64(n))
	}
}

// next returns the message to be sent next, nil if there is none, and the queue entries that it finished.
// framesLeft falls with each message of frames, and one of pieces sets it back to pieceTurns: so pieces get at least a
// message in 17, and all the room where no frame waits.
func (l *link) next(copied []*outgoing) (mem.BufferSlice, []*outgoing, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.mu.urgent) > 0:
		buf, _ := pooled(l.mu.urgent)
		l.mu.grants = false
		if l.mu.urgent = l.mu.urgent[:0]; cap(l.mu.urgent) > linkMessageBytes {
			l.mu.urgent = nil
		}
		l.sending, l.mu.booked = l.mu.booked, 0 // for the copy
		return mem.BufferSlice{buf}, copied, "urgent"
	case len(l.mu.pieces) > 0 && (len(l.mu.frames) == 0 || l.framesLeft <= 0):
		l.framesLeft = pieceTurns
		data, copied := cutMessage(&l.mu.pieces, copied)
		return data, copied, "pieces"
	case len(l.mu.frames) > 0:
		l.framesLeft--
		data, copied := cutMessage(&l.mu.frames, copied)
		return data, copied, "frames"
	}
	return nil, copied, ""
}

// cutMessage removes about one message's worth from a queue. Short frames are copied together; long ones are sent from their own
// memory, those longer than a message in parts. The caller releases the entries that are off the queue.
//
//	frame of 300 KiB   linkFrame: head, total, the first 128 KiB │ linkFramePart: 128 KiB │ linkFramePart: 44 KiB, with what follows in the queue
//
// A message is at most a quarter longer than linkMessageBytes, beside its first record. A frame in parts stays at the
// front of its queue until its last part, so no other frame comes between; urgent messages and pieces may, and the
// receiver keeps the parts apart (partly).
func cutMessage(queue *[]*outgoing, off []*outgoing) (data mem.BufferSlice, _ []*outgoing) {
	var short []byte
	flush := func() {
		if len(short) > 0 {
			data = append(data, mem.SliceBuffer(short))
			short = nil
		}
	}
	n := 0
	for len(*queue) > 0 && n < linkMessageBytes {
		o := (*queue)[0]
		part := min(len(o.data)-o.sent, partBytes)
		if n > 0 && n+len(o.head)+part > linkMessageBytes+linkMessageBytes/4 {
			break
		}
		if o.sent > 0 {
			o.head = endLinkRecord(beginLinkRecord(nil, linkFramePart), 0, part)
		}
		body := o.data[o.sent : o.sent+part]
		o.sent += part
		last := o.sent == len(o.data)
		n += len(o.head) + part
		short = append(short, o.head...)
		if part < linkReferenced {
			short = append(short, body...)
		} else {
			flush()
			o.refs.Add(1)
			data = append(data, mem.NewBuffer(&body, (*freeing)(o)))
		}
		if last {
			off = append(off, o)
			(*queue)[0] = nil
			*queue = (*queue)[1:]
		}
	}
	flush()
	return data, off
}

// freeing drops a reference to a frame when gRPC no longer uses a part of it.
type freeing outgoing

// Get implements mem.BufferPool; this one never returns a buffer.
func (f *freeing) Get(int) *[]byte { panic("a frame's memory is its owner's") }

// Put implements mem.BufferPool.
func (f *freeing) Put(*[]byte) { (*outgoing)(f).release() }

// receive passes messages to the handler until the link ends.
func (l *link) receive() error {
	received := l.ls.metrics.linkReceived
	for {
		var m message
		if err := l.pipe.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return err
			}
			return ofStatus(err)
		}
		l.received.Store(int64(l.now()))
		buf := m.whole()
		received.Add(float64(buf.Len()))
		l.handling.Store(true)
		err := l.takeMessage(buf)
		l.received.Store(int64(l.now())) // before the next line: a look between the two must not see an old time
		l.handling.Store(false)
		buf.Free()
		if err != nil {
			return err
		}
	}
}

// Heads are decoded into memory of their own. A large body shares the message's memory: each holds a reference (Ref), and the
// message goes back to the pool when the last one is released. Small ones are copied (held).
func (l *link) takeMessage(buf mem.Buffer) error {
	for b := buf.ReadOnlyData(); len(b) > 0; {
		r, rest, err := cutLinkRecord(b)
		if err != nil {
			return err
		}
		if err := l.take(r, buf); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func (l *link) take(r linkRecord, buf mem.Buffer) error {
	switch {
	case r.kind == linkFrame:
		return l.takeFrame(r, buf)
	case r.kind == linkFramePart:
		return l.takePart(r)
	case r.kind == linkPiece:
		return l.takePiece(r, buf)
	case len(r.body) > 0:
		return fault.Errorf(fault.Corrupt, "a link's record of type %d with a body", r.kind)
	case r.kind < linkBegin:
		return l.takeOwn(r)
	}
	var route peer.Route
	m, err := decodeLinkMessage(r.kind, r.head, &route, &l.tables)
	if err != nil {
		return err
	}
	l.ls.handler.Message(l, &route, m)
	return nil
}

// willGrant reports whether a grant waits to be sent.
func (l *link) willGrant() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.grants
}

// takeOwn handles a record of the link itself.
func (l *link) takeOwn(r linkRecord) error {
	h := headReader{b: r.head}
	switch r.kind {
	case linkCredit:
		frames, pieces := h.u64(), h.u64()
		if h.bad || !l.frameRoom.credit(frames) || !l.pieceRoom.credit(pieces) {
			return fault.Errorf(fault.Corrupt, "a link's other side has done with %d and %d bytes, more than it was sent", frames, pieces)
		}
	case linkKept:
		if n := h.u64(); h.bad || !l.frameRoom.kept(n) {
			return fault.Errorf(fault.Corrupt, "a link's other side has done with %d bytes, more than it was sent", n)
		}
	case linkGrant:
		if n := h.u64(); h.bad || !l.frameRoom.granted(n) {
			return fault.Errorf(fault.Corrupt, "a link's other side gives room for %d bytes, which was not asked for", n)
		}
	case linkAsk:
		give, want := h.u64(), h.u64()
		if h.bad || l.part == nil {
			return errLinkHead(r.kind)
		}
		if want > 0 && l.willGrant() { // else a side that asks and reads nothing has grants pile up
			return fault.Errorf(fault.Corrupt, "a link's other side asks for %d bytes of room before it has its last grant", want)
		}
		if err := l.part.ask(give, want); err != nil {
			return err
		}
		l.sendCredit() // less than a step, and the other side waits
	case linkPing:
		if sent := h.u64(); !h.bad {
			l.sendOwn(linkPong, sent)
		}
	case linkPong:
		if trip := l.now() - time.Duration(h.u64()); trip >= 0 {
			l.ls.metrics.linkTrips.Observe(trip.Seconds())
		}
	default:
		return fault.Errorf(fault.Corrupt, "a link's record of type %d, which this build does not know", r.kind)
	}
	if h.bad || len(h.b) > 0 {
		return errLinkHead(r.kind)
	}
	return nil
}

// The whole frame counts against the window from its first part on, before memory for it is reserved: a side that
// announces frames and sends none can use no more than the window.
func (l *link) takeFrame(r linkRecord, buf mem.Buffer) error {
	var route peer.Route
	h := headReader{b: r.head}
	h.route(&route, &l.tables)
	total := h.uvarint()
	switch {
	case h.bad || len(h.b) > 0 || total > peer.LinkFrameBytesMax || uint64(len(r.body)) > total:
		return errLinkHead(r.kind)
	case l.partly != nil:
		return fault.Errorf(fault.Corrupt, "a frame within a frame of which parts are missing")
	}
	cost := int64(total) + bodyCost
	most := l.frames.window
	if l.part != nil {
		most = l.part.most()
	}
	if err := l.frames.begin(cost, most); err != nil {
		return err
	}
	if l.part != nil {
		l.part.came(cost, 1)
	}
	if uint64(len(r.body)) == total {
		l.ls.handler.Frame(l, &route, l.held(&l.frames, buf, r.body, cost))
		return nil
	}
	spare := int64(pooledBytes(int(total))) - int64(total)
	l.frames.held.Add(spare)
	whole, data := poolBuffer(int(total)) // within the window
	l.partly = &arriving{route: route, buf: whole, data: data, spare: spare, have: copy(data, r.body)}
	return nil
}

func (l *link) takePart(r linkRecord) error {
	p := l.partly
	if p == nil || len(r.head) > 0 || len(r.body) == 0 || len(r.body) > len(p.data)-p.have {
		return fault.Errorf(fault.Corrupt, "%d bytes of a frame that misses none or fewer", len(r.body))
	}
	p.have += copy(p.data[p.have:], r.body)
	if p.have < len(p.data) {
		return nil
	}
	l.partly = nil
	l.ls.handler.Frame(l, &p.route, &heldBody{l, &l.frames, p.buf, p.data, p.cost(), p.spare})
	return nil
}

func (l *link) takePiece(r linkRecord, buf mem.Buffer) error {
	var route peer.Route
	h := headReader{b: r.head}
	h.route(&route, &l.tables)
	at := peer.SegmentPiece{Slot: h.uvarint(), Offset: h.uvarint()}
	if h.bad || len(h.b) > 0 || len(r.body) > peer.LinkPieceBytesMax {
		return errLinkHead(r.kind)
	}
	cost := int64(len(r.body)) + bodyCost
	if err := l.pieces.begin(cost, l.pieces.window); err != nil {
		return err
	}
	l.ls.handler.Piece(l, &route, at, l.held(&l.pieces, buf, r.body, cost))
	return nil
}

// copiedPart is the part of a message below which a body is copied out of it: the whole message stays in memory with a body that waits, and windows count its own bytes alone.
const copiedPart = 4

// held is a body that lies in a message, with a reference to it or, where it is a small part, to a copy.
func (l *link) held(of *flow, buf mem.Buffer, body []byte, cost int64) *heldBody {
	if len(body)+bodyCost < buf.Len()/copiedPart {
		body = bytes.Clone(body)
		buf = mem.SliceBuffer(body)
	} else {
		buf.Ref()
	}
	return &heldBody{l, of, buf, body, cost, 0}
}

// begin counts a received body against the room that there was before: bodies are released meanwhile, and their room may go to another link, but what this
// one was given later cannot have been used yet.
func (f *flow) begin(cost, most int64) error {
	if n := f.inUse.Add(cost); n > most {
		f.inUse.Add(-cost)
		return fault.Errorf(fault.Corrupt, "a link's other side sent %d bytes where there was room for %d", n, most)
	}
	f.held.Add(cost)
	return nil
}

// heldBody implements peer.Body.
type heldBody struct {
	l    *link
	of   *flow
	buf  mem.Buffer
	data []byte
	cost int64
	// spare is booked beside the cost.
	spare int64
}

// Bytes implements peer.Body.
func (b *heldBody) Bytes() []byte { return b.data }

// Done implements peer.Body.
// The handler calls it exactly once, from any goroutine, and does not use Bytes afterwards.
func (b *heldBody) Done() {
	b.data = nil
	b.buf.Free()
	b.of.held.Add(-b.cost - b.spare)
	back, step := b.cost, b.of.window/creditShare
	if p := b.l.part; p != nil && b.of == &b.l.frames {
		kept := p.release(b.cost)
		b.of.kept.Add(kept)
		back, step = back-kept, p.step()
	} else {
		b.of.inUse.Add(-b.cost)
	}
	if b.of.owed.Add(back)+b.of.kept.Load() >= step {
		b.l.sendCredit()
	}
}

// creditShare is the part of a window that is returned at once. A frame is never longer than half a window, so that it gets
// room although some is not returned yet; where room is asked for, it gets all that it needs by asking.
const creditShare = 16

func (l *link) sendCredit() {
	frames, pieces := l.frames.owed.Swap(0), l.pieces.owed.Swap(0)
	if frames+pieces > 0 {
		l.sendOwn(linkCredit, uint64(frames), uint64(pieces))
	}
	if kept := l.frames.kept.Swap(0); kept > 0 {
		l.sendOwn(linkKept, uint64(kept))
	}
}

// watch sends signs of life, and checks for those of the other side.
func (l *link) watch() {
	every := l.ls.settings.SilenceAfter / 4
	t := time.NewTicker(every)
	defer t.Stop()
	last := l.now()
	pinged := last - tripEvery
	unread, writes := time.Duration(0), uint64(0)
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-t.C:
		}
		now := l.now()
		l.frameRoom.idle(time.Now())
		if l.part != nil {
			l.sendCredit() // of a link that is quiet since: others may need it
		}
		late := now-last > 2*every // this process was stopped and has not read its input yet
		last = now
		if pingDue(now, time.Duration(l.sent.Load()), pinged, every) {
			pinged = now
			l.sendOwn(linkPing, uint64(now))
		}
		if n := l.writes.Load(); n != writes || n%2 == 0 {
			unread, writes = 0, n
		} else if unread += every; unread >= unreadMax {
			l.fail(fault.Errorf(fault.Unavailable, "%s read nothing for %v; the link is given up", l.other.Server, unread.Round(time.Second)))
			return
		}
		if late {
			continue
		}
		since := l.silence(now)
		switch silent := since > l.ls.settings.SilenceAfter; {
		case since > l.ls.settings.GiveUpAfter:
			l.fail(fault.Errorf(fault.Unavailable, "%s sent nothing for %v; the link is given up", l.other.Server, since.Round(time.Millisecond)))
			return
		case silent != l.silent.Load():
			l.silent.Store(silent)
			if silent {
				l.ls.metrics.linkSilences.Inc()
			}
			l.ls.handler.Silent(l, silent)
		}
	}
}

// Silence implements peer.Link.
func (l *link) Silence() time.Duration { return l.silence(l.now()) }

// silence is how long nothing was received. A handler that is late is this process's own trouble.
func (l *link) silence(now time.Duration) time.Duration {
	if l.handling.Load() {
		return 0
	}
	return max(0, now-time.Duration(l.received.Load()))
}

// unreadMax is how long one message may be on its way into the network while the other side gives signs of life: what waits behind it has
// room that others wait for. It is counted in looks: a pause of this process is one of them.
const unreadMax = 30 * time.Second

// tripEvery is after how long a ping is due although other messages pass: each measures the trip to the other side and back.
const tripEvery = time.Second

// pingDue reports whether a side pings at its look of now; it looks once in every. All messages are signs of life, so a ping is due only if
// nothing was sent for half of every, or no trip was measured for a second. Nothing is sent for one and a half times every at most; the other
// side calls this one silent after four times every. Where nothing else passes, one side pings and the other has sent something by its answer:
//
//	a looks at   0 ping          1 ping          2 ping
//	b looks at      0.3 (pong 0)    1.3 (pong 1)    2.3 (pong 2)     none of b's pings is due, but the one each second that measures its trip
func pingDue(now, sent, pinged, every time.Duration) bool {
	return now-sent > every/2 || now-pinged >= tripEvery
}
