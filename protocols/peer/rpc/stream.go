package rpc

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/trace"
)

// stream is the gateway's end of a stream of inserts.
//
//	Insert ─encode─▶ number, queue ─▶ send: all queued in one message ──▶ peer
//	   ◀──── waiting[number] ◀─────── receive: acks, in any order ◀──────────┘
//
// Records get their numbers in the order in which they are queued, so that a definition precedes every insert that began
// after it was acked. When anything breaks, all waiting and later calls fail: the peer's dictionary is gone with its end of
// the stream.
type stream struct {
	// Constant.
	p      *Peer
	l      *line
	cs     grpc.ClientStream
	cancel context.CancelCauseFunc
	limits welcome
	wake   chan struct{} // 1 when there is something to send
	ended  chan struct{} // closed with broken
	loops  sync.WaitGroup

	mu struct {
		sync.Mutex
		next    uint64
		waiting map[uint64]waiter
		bytes   int64        // of records not acked; at most limits.windowBytes
		queue   []mem.Buffer // to be sent, in the order of their numbers
		broken  error        // why the stream has ended
	}
}

// waiter is a record that is not acked. Its channel is nil when no caller waits any more.
type waiter struct {
	ack   chan error
	bytes int64
}

// acks are channels of one ack, empty whenever they are in the pool.
var acks = sync.Pool{New: func() any { return make(chan error, 1) }}

// OpenStream implements peer.Storage. ctx bounds the opening only.
func (p *Peer) OpenStream(ctx context.Context, table string) (_ peer.Stream, err error) {
	if len(table) > tableBytesMax {
		return nil, fault.Errorf(fault.Invalid, "a table's name of %d bytes", len(table))
	}
	l, err := p.enter()
	if err != nil {
		return nil, err
	}
	st, err := p.openStream(ctx, l, table)
	if err != nil {
		l.leave()
		err = p.fault(ctx, l, methodInserts, err)
		p.settings.Metrics.calls.WithLabelValues(methodInserts, kindLabel(err)).Inc()
		return nil, err
	}
	p.settings.Metrics.streams.Inc()
	st.loops.Go(st.send)
	st.loops.Go(st.receive)
	return st, nil
}

// openStream opens a stream that outlives ctx; ctx only ends the wait for its opening.
func (p *Peer) openStream(ctx context.Context, l *line, table string) (*stream, error) {
	own, abandon := context.WithCancelCause(context.Background())
	stop := context.AfterFunc(ctx, func() { abandon(ctx.Err()) })
	cs, cancel, err := p.open(own, l, methodInserts)
	if err != nil {
		stop()
		abandon(nil)
		return nil, err
	}
	st := &stream{p: p, l: l, cs: cs, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	st.cancel = func(cause error) {
		cancel(cause)
		abandon(cause)
	}
	st.mu.waiting = map[uint64]waiter{}
	err = st.greet(table)
	if !stop() && err == nil { // ctx ended meanwhile: abandon has ended the stream, or is about to
		err = ctx.Err()
	}
	if err != nil {
		st.cancel(nil)
		return nil, err
	}
	return st, nil
}

// greet says hello and waits for the welcome.
func (st *stream) greet(table string) error {
	h := hello{versionMin: streamOldest, versionMax: streamVersion, table: table}
	buf, _ := pooled(h.append(nil))
	if err := sendBuffer(st.cs, buf); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var m message
	if err := st.cs.RecvMsg(&m); err != nil {
		return err
	}
	answer := m.whole()
	defer answer.Free()
	r, _, err := cutRecord(answer.ReadOnlyData())
	if err != nil {
		return err
	}
	if r.kind != recordWelcome {
		return fault.Errorf(fault.Corrupt, "a stream is answered by a record of type %d, not by a welcome", r.kind)
	}
	st.limits, err = decodeWelcome(r.payload)
	return err
}

var (
	_ peer.Offerer  = (*stream)(nil)
	_ peer.Together = (*stream)(nil)
)

// Define implements peer.Stream. It sends in parts and returns when the peer has accepted all.
func (st *stream) Define(ctx context.Context, defs []peer.Def) error {
	_, err := st.define(ctx, recordDefine, defs)
	return err
}

// Offer implements peer.Offerer. A server of an older version refuses nothing.
func (st *stream) Offer(ctx context.Context, defs []peer.Def) (peer.Refused, error) {
	if st.limits.version < streamOffers {
		return peer.Refused{}, st.Define(ctx, defs)
	}
	return st.define(ctx, recordOffer, defs)
}

func (st *stream) define(ctx context.Context, kind recordType, defs []peer.Def) (all peer.Refused, err error) {
	e := defineEncoders.Get().(*defineEncoder)
	defer defineEncoders.Put(e)
	for len(defs) > 0 {
		b, n := e.encode(kind, defs)
		err := st.ask(ctx, b)
		if some, refused := peer.RefusedOf(err); refused {
			all.IDs, all.Reason, err = append(all.IDs, some.IDs...), some.Reason, nil
		}
		if err != nil {
			return all, err
		}
		st.p.settings.Metrics.defs.Add(float64(n))
		defs = defs[n:]
	}
	return all, nil
}

var defineEncoders = sync.Pool{New: func() any { return new(defineEncoder) }}

// Insert implements peer.Stream.
func (st *stream) Insert(ctx context.Context, in *peer.Insert) error {
	err := st.insert(ctx, in)
	m := st.p.settings.Metrics
	m.inserts.WithLabelValues(kindLabel(err)).Inc()
	if err == nil {
		m.rows.Add(float64(len(in.IDs) + len(in.Hists)))
	}
	return err
}

// InsertTogether implements peer.Together. A server of an older version gets the inserts one by one.
func (st *stream) InsertTogether(ctx context.Context, all []*peer.Insert) error {
	if st.limits.version < streamTogether {
		return peer.InsertEach(ctx, st, all)
	}
	if st.limits.version < streamSlices {
		older := make([]*peer.Insert, len(all))
		for i, in := range all {
			older[i] = withoutSlice(in)
		}
		all = older
	}
	err := st.encoded(ctx, func(e *insertEncoder) ([]byte, error) { return e.encodeGroup(all) })
	m := st.p.settings.Metrics
	m.inserts.WithLabelValues(kindLabel(err)).Inc()
	if err == nil {
		m.rows.Add(float64(peer.RowsOf(all)))
	}
	return err
}

// insert refuses what the agreed version of the stream has no record for, before it is encoded: Unavailable ends this insert alone, where a record that the
// server cannot read would end the stream with all inserts on it.
func (st *stream) insert(ctx context.Context, in *peer.Insert) error {
	if in.Staging != nil && st.limits.version < streamStaging {
		return fault.Errorf(fault.Unavailable, "%s speaks version %d of streams, and staging begins with %d: upgrade it", st.p.addr, st.limits.version, streamStaging)
	}
	if in.Staging != nil && in.Staging.Do == peer.Inherit && st.limits.version < streamInherit {
		return fault.Errorf(fault.Unavailable, "%s speaks version %d of streams, and rows of partitions that others take over from begin with %d: upgrade it", st.p.addr, st.limits.version, streamInherit)
	}
	if in.Staging != nil && in.Staging.Due != 0 && st.limits.version < streamDue {
		return fault.Errorf(fault.Unavailable, "%s speaks version %d of streams, and smearing begins with %d: upgrade it", st.p.addr, st.limits.version, streamDue)
	}
	if st.limits.version < streamSlices {
		in = withoutSlice(in)
	}
	return st.encoded(ctx, func(e *insertEncoder) ([]byte, error) { return e.encode(in) })
}

// withoutSlice is an insert as a server of a version before slices reads it: a leader there accepts slices of any epoch, and does not know how to end them.
func withoutSlice(in *peer.Insert) *peer.Insert {
	if in.Staging == nil || in.Staging.From == nil {
		return in
	}
	older, s := *in, *in.Staging
	s.From, older.Staging = nil, &s
	return &older
}

// encoded sends the record that encode makes, and waits for its ack.
func (st *stream) encoded(ctx context.Context, encode func(*insertEncoder) ([]byte, error)) error {
	e := insertEncoders.Get().(*insertEncoder)
	if st.limits.version >= streamTraced {
		e.parent = trace.ParentOf(ctx)
	}
	b, err := encode(e)
	if err != nil {
		insertEncoders.Put(e)
		return err
	}
	buf, data := pooled(b)
	if cap(e.out) <= encoderBytesKept {
		insertEncoders.Put(e)
	}
	return st.askBuffer(ctx, buf, data)
}

// encoderBytesKept bounds the memory that an encoder in the pool keeps.
const encoderBytesKept = 4 << 20

var insertEncoders = sync.Pool{New: func() any { return new(insertEncoder) }}

// ask sends a record and waits for its ack.
func (st *stream) ask(ctx context.Context, b []byte) error {
	buf, data := pooled(b)
	return st.askBuffer(ctx, buf, data)
}

// askBuffer is ask for a record in a buffer, which it passes on; data are its bytes.
func (st *stream) askBuffer(ctx context.Context, buf mem.Buffer, data []byte) error {
	if ctx.Err() != nil {
		buf.Free()
		return ended(ctx, "insert at "+st.p.addr)
	}
	ack := acks.Get().(chan error)
	seq, err := st.queue(buf, data, ack)
	if err != nil {
		buf.Free()
		acks.Put(ack)
		return err
	}
	select {
	case st.wake <- struct{}{}:
	default:
	}
	select {
	case err = <-ack:
	case <-ctx.Done():
		if st.abandon(seq) {
			err = ended(ctx, "insert at "+st.p.addr)
		} else {
			err = <-ack // it arrived at the same time
		}
	}
	acks.Put(ack)
	return err
}

// queue gives a record its number and its place in the queue under one lock, so that the order of the queue is that of the numbers. The windows are those that the peer
// named in its welcome: it refuses what exceeds them, so they are kept here, where no bytes have been sent yet.
func (st *stream) queue(buf mem.Buffer, data []byte, ack chan error) (seq uint64, err error) {
	n := int64(len(data))
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.mu.broken != nil:
		return 0, st.mu.broken
	case len(st.mu.waiting) >= int(st.limits.insertsMax):
		return 0, fault.Errorf(fault.Throttled, "%d inserts wait for %s, the most it allows", len(st.mu.waiting), st.p.addr)
	case st.mu.bytes+n > int64(st.limits.windowBytes):
		return 0, fault.Errorf(fault.Throttled, "inserts of %d bytes wait for %s, at most %d may", st.mu.bytes, st.p.addr, st.limits.windowBytes)
	}
	st.mu.next++
	seq = st.mu.next
	setSeq(data, seq)
	st.mu.waiting[seq] = waiter{ack, n}
	st.mu.bytes += n
	st.mu.queue = append(st.mu.queue, buf)
	return seq, nil
}

// abandon ends the wait for a record; false when its ack, or the error of a broken stream, is in the channel or about to be. The caller must read it then, or the channel would
// come to the next asker from the pool with the ack of another record. The bytes of the record count until it is acked, since the peer still holds them.
func (st *stream) abandon(seq uint64) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	w, ok := st.mu.waiting[seq]
	if ok {
		st.mu.waiting[seq] = waiter{nil, w.bytes}
	}
	return ok
}

// sendBytesMax is about the size of a message when much is queued.
const sendBytesMax = 256 << 10

// send sends the queue until the stream is broken.
func (st *stream) send() {
	var free []mem.Buffer
	sent := st.p.settings.Metrics.sent.WithLabelValues(methodInserts)
	for {
		select {
		case <-st.ended:
			return
		case <-st.wake:
		}
		st.mu.Lock()
		all := st.mu.queue
		st.mu.queue = free[:0]
		st.mu.Unlock()
		for rest := all; len(rest) > 0; {
			n, bytes := 0, 0
			for n < len(rest) && (n == 0 || bytes+rest[n].Len() <= sendBytesMax) {
				bytes += rest[n].Len()
				n++
			}
			// gRPC keeps the slice for a while.
			if err := st.cs.SendMsg(&message{data: append(mem.BufferSlice(nil), rest[:n]...)}); err != nil {
				if !errors.Is(err, io.EOF) { // else receive has the reason
					st.fail(err)
				}
				return
			}
			sent.Add(float64(bytes))
			rest = rest[n:]
		}
		clear(all)
		free = all
	}
}

// receive delivers acks until the stream is broken.
func (st *stream) receive() {
	bytes := st.p.settings.Metrics.received.WithLabelValues(methodInserts)
	for {
		var m message
		if err := st.cs.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				err = fault.Errorf(fault.Unavailable, "the peer ended the stream")
			}
			st.fail(err)
			return
		}
		buf := m.whole()
		bytes.Add(float64(buf.Len()))
		err := st.takeAcks(buf.ReadOnlyData())
		buf.Free()
		if err != nil {
			st.fail(err)
			return
		}
	}
}

// takeAcks reads the records of a message.
func (st *stream) takeAcks(b []byte) error {
	for len(b) > 0 {
		r, rest, err := cutRecord(b)
		if err != nil {
			return err
		}
		if r.kind != recordAcks {
			return fault.Errorf(fault.Corrupt, "a record of type %d among acks", r.kind)
		}
		for acks := r.payload; len(acks) > 0; {
			var seq uint64
			var ack error
			if seq, ack, acks, err = cutAck(acks); err != nil {
				return err
			}
			if err := st.done(seq, ack); err != nil {
				return err
			}
		}
		b = rest
	}
	return nil
}

// done ends the wait for a record.
func (st *stream) done(seq uint64, ack error) error {
	st.mu.Lock()
	w, ok := st.mu.waiting[seq]
	delete(st.mu.waiting, seq)
	st.mu.bytes -= w.bytes
	st.mu.Unlock()
	if !ok {
		return fault.Errorf(fault.Corrupt, "an ack of record %d, which waits for none", seq)
	}
	if w.ack != nil {
		w.ack <- ack
	}
	return nil
}

// fail ends the stream: all waiting and later calls fail with the reason.
func (st *stream) fail(err error) {
	// No asker's context matters here: the line, the peer or Close ended the stream.
	reason := st.p.fault(context.Background(), st.l, methodInserts, err)
	st.mu.Lock()
	if st.mu.broken != nil {
		st.mu.Unlock()
		return
	}
	st.mu.broken = fault.Errorf(fault.Unavailable, "%w (%v)", peer.ErrStreamBroken, reason)
	broken := st.mu.broken
	waiting := st.mu.waiting
	st.mu.waiting = nil
	st.mu.bytes = 0
	for _, b := range st.mu.queue {
		b.Free()
	}
	st.mu.queue = nil
	st.mu.Unlock()
	close(st.ended)
	st.cancel(reason)
	for _, w := range waiting {
		if w.ack != nil {
			w.ack <- broken
		}
	}
	if !errors.Is(reason, errClosed) {
		st.p.settings.Metrics.broken.Inc()
		st.p.settings.Log.Debug("stream broken", "peer", st.p.addr, "error", reason)
	}
	st.p.settings.Metrics.streams.Dec()
	st.p.settings.Metrics.calls.WithLabelValues(methodInserts, kindLabel(reason)).Inc()
	st.l.leave()
}

var errClosed = fault.Errorf(fault.Unavailable, "the stream is closed")

// Close implements peer.Stream. Inserts under way fail as on a broken stream.
func (st *stream) Close() error {
	st.fail(errClosed)
	st.loops.Wait()
	return nil
}
