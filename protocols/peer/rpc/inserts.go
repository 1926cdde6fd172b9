package rpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/protocols/trace"
)

// inserts serves one stream of inserts.
//
//	receive ──define──▶ Storage stream ──▶ ack ┐
//	   │                                      ├─▶ pending ──▶ send: all pending acks in one message
//	   └────insert──▶ worker: decode, Insert ─┘
//
// Definitions are applied in the receiving goroutine, so that every later insert can use them. Inserts wait for their fsync
// in workers, side by side; acks are sent in any order.
type inserts struct {
	// Constant.
	s       *Server
	ss      grpc.ServerStream
	table   string
	stream  peer.Stream
	version uint8
	role    Role // of the caller; "": any, where peers speak in the clear
	jobs    chan job
	wake    chan struct{} // 1 when there are acks to send

	// Owned by receive.
	define  defineDecoder
	workers int

	mu struct {
		sync.Mutex
		acks    []byte // encoded, to be sent
		inserts int    // under way
		bytes   int64
		ended   bool
	}
	running sync.WaitGroup // workers, and the record that is being received
}

// job is an insert to be done. Its bytes lie in buf, which the worker frees.
type job struct {
	seq     uint64
	payload []byte
	buf     mem.Buffer
	group   bool // several inserts that go together
}

func (s *Server) inserts(ss grpc.ServerStream) error {
	table, version, err := greet(s.awaited(ss))
	if err != nil {
		return received(ss.Context(), err)
	}
	stream, err := s.deps.Storage.OpenStream(ss.Context(), table)
	if err != nil {
		return err
	}
	in := &inserts{s: s, ss: ss, table: table, stream: stream, version: version, role: s.roleOf(ss.Context()), jobs: make(chan job), wake: make(chan struct{}, 1)}
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	err = in.run()
	return errors.Join(err, stream.Close())
}

// greet receives the hello. The welcome is sent by run, once the table's stream is open.
func greet(from receiver) (table string, version uint8, err error) {
	var m message
	if err := from.RecvMsg(&m); err != nil {
		return "", 0, err
	}
	defer m.done()
	buf := m.whole()
	defer buf.Free()
	r, rest, err := cutRecord(buf.ReadOnlyData())
	if err != nil {
		return "", 0, err
	}
	if r.kind != recordHello || len(rest) > 0 {
		return "", 0, fault.Errorf(fault.Corrupt, "a stream that begins with a record of type %d, not with a hello", r.kind)
	}
	h, err := decodeHello(r.payload)
	if err != nil {
		return "", 0, err
	}
	version, err = negotiate(h)
	return h.table, version, err
}

// run ends when the gateway has ended the stream and every insert is acked, when the gateway is gone, or when the server
// stops and the inserts under way are acked. No worker is left then.
func (in *inserts) run() error {
	w := welcome{version: in.version, insertsMax: uint32(in.s.settings.InsertsMax), windowBytes: uint64(in.s.settings.WindowBytes)}
	buf, _ := pooled(w.append(nil))
	if err := sendBuffer(in.ss, buf); err != nil {
		return received(in.ss.Context(), err)
	}
	ended := make(chan error, 1)
	in.s.running.Go(func() { ended <- in.receive() }) // until this handler returns, at the latest
	for {
		select {
		case <-in.wake:
			if err := in.sendAcks(); err != nil {
				in.end()
				return received(in.ss.Context(), err)
			}
		case err := <-ended:
			in.end()
			if errors.Is(err, io.EOF) {
				return received(in.ss.Context(), in.sendAcks())
			}
			if errors.Is(err, errNoRoom) { // the inserts before it are acked, and need not come again
				return errors.Join(err, in.sendAcks())
			}
			return received(in.ss.Context(), err)
		case <-in.s.stopping:
			in.end()
			return errors.Join(errStopping, in.sendAcks())
		}
	}
}

// end accepts no more records and waits for those that were accepted.
func (in *inserts) end() {
	in.mu.Lock()
	in.mu.ended = true
	in.mu.Unlock()
	in.running.Wait()
	close(in.jobs) // the idle workers end; no goroutine hands over jobs any more
}

// enter keeps end waiting until running.Done; false when the stream has ended. Add is called under the lock that end sets ended under: a WaitGroup at zero must not be added
// to while another goroutine waits for it.
func (in *inserts) enter() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.ended {
		return false
	}
	in.running.Add(1)
	return true
}

func (in *inserts) receive() error {
	bytes := in.s.metrics.received.WithLabelValues(methodInserts)
	for {
		var m message
		if err := in.ss.RecvMsg(&m); err != nil {
			return err
		}
		if !in.enter() {
			m.data.Free()
			m.done()
			return errStopping
		}
		buf := m.whole()
		bytes.Add(float64(buf.Len()))
		var err error
		if m.refused != nil {
			err = in.refuse(buf.ReadOnlyData(), &m)
		} else {
			err = in.take(buf)
		}
		buf.Free()
		m.done() // its inserts are admitted, and counted there
		in.running.Done()
		if err != nil {
			return err
		}
	}
}

// take reads the records of a message.
func (in *inserts) take(buf mem.Buffer) error {
	for b := buf.ReadOnlyData(); len(b) > 0; {
		if in.unread() {
			return fault.Errorf(fault.Throttled, "the gateway does not read its acks")
		}
		r, rest, err := cutRecord(b)
		if err != nil {
			return err
		}
		switch b = rest; r.kind {
		case recordDefine, recordOffer:
			in.ack(r.seq, in.defineSeries(r.kind, r.payload))
		case recordInsert, recordGroup:
			in.start(job{r.seq, r.payload, buf, r.kind == recordGroup})
		default:
			return fault.Errorf(fault.Corrupt, "a record of type %d within a stream", r.kind)
		}
	}
	return nil
}

// refuse answers a message that was not kept, of which head is there. The records of one that has several are not known: the stream ends.
func (in *inserts) refuse(head []byte, m *message) error {
	in.s.metrics.throttled.Inc()
	r, n, err := recordHead(head)
	if err != nil {
		return err
	}
	switch r.kind {
	case recordDefine, recordOffer, recordInsert, recordGroup:
		if recordLen+n == int64(m.length) && !in.unread() {
			in.ack(r.seq, m.refused)
			return nil
		}
	}
	return m.refused
}

// defineSeries defines series. Of an offer the error may be that some are refused.
func (in *inserts) defineSeries(kind recordType, payload []byte) error {
	defs, err := in.define.decode(payload)
	if err != nil {
		return err
	}
	for _, d := range defs {
		if d.Labels.Get(point.MetricName) == "" {
			return fault.Errorf(fault.Invalid, "a series without a metric name: %v", d.Labels)
		}
	}
	var refused peer.Refused
	if to, offers := in.stream.(peer.Offerer); offers && kind == recordOffer {
		refused, err = to.Offer(in.ss.Context(), defs)
	} else {
		err = in.stream.Define(in.ss.Context(), defs)
	}
	if err != nil {
		return err
	}
	in.s.metrics.defs.Add(float64(len(defs) - len(refused.IDs)))
	return refused.AsError()
}

// start hands an insert to a worker, or refuses it because there are too many. A new worker is started only while none is idle.
func (in *inserts) start(j job) {
	n := int64(len(j.payload))
	if err := in.admit(n); err != nil {
		in.s.metrics.throttled.Inc()
		in.ack(j.seq, err)
		return
	}
	j.buf.Ref()
	in.running.Add(1)
	select {
	case in.jobs <- j:
		return
	default:
	}
	if in.workers < in.s.settings.InsertsMax {
		in.workers++
		in.s.running.Go(func() { in.work(j) })
		return
	}
	in.jobs <- j // some worker is about to be free: there are no more inserts under way than workers
}

func (in *inserts) admit(n int64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	set := &in.s.settings
	switch {
	case in.mu.inserts >= set.InsertsMax:
		return fault.Errorf(fault.Throttled, "%d inserts are under way on the stream, the most there may be", set.InsertsMax)
	case in.mu.bytes+n > set.WindowBytes:
		return fault.Errorf(fault.Throttled, "inserts of %d bytes are under way on the stream, at most %d may be", in.mu.bytes, set.WindowBytes)
	case in.s.insertBytes.Add(n) > set.InsertBytesMax:
		in.s.insertBytes.Add(-n)
		return fault.Errorf(fault.Throttled, "inserts of %d bytes are under way on the server, the most there may be", set.InsertBytesMax)
	}
	in.mu.inserts++
	in.mu.bytes += n
	in.s.insertsHeld.Add(n)
	return nil
}

func (in *inserts) work(j job) {
	ok := true
	for ok {
		err := in.do(j)
		n := int64(len(j.payload))
		in.s.insertBytes.Add(-n)
		in.s.insertsHeld.Add(-n)
		in.mu.Lock()
		in.mu.inserts--
		in.mu.bytes -= n // with the ack, not after it: the sender fills its window again at once, and would be Throttled
		in.mu.acks = appendAck(in.mu.acks, j.seq, err)
		in.mu.Unlock()
		in.rouse()
		in.s.metrics.inserts.WithLabelValues(kindLabel(err)).Inc()
		in.running.Done()
		j, ok = <-in.jobs
	}
}

func (in *inserts) do(j job) (err error) {
	if j.group {
		err = in.insertGroup(j)
	} else {
		err = in.insert(j)
	}
	if _, named := peer.MapOf(err); named && in.version < streamMaps && !isAhead(err) { // that gateway's version has no such ack
		err = fault.Errorf(fault.KindOf(err), "%v", err)
	}
	return err
}

func (in *inserts) insert(j job) error {
	d := insertDecoders.Get().(*insertDecoder)
	defer d.put()
	rest, err := d.cutHead(j.payload)
	var need int64
	if err == nil {
		if need, err = in.awaitRoom(decodedBytes(rest)); err == nil {
			defer in.s.giveRoom(need)
			err = d.decodeFrame(rest)
		}
	}
	j.buf.Free()
	row := &d.in
	if err == nil {
		in.noteUnnamed(row)
		err = allowInsert(in.role, in.table, row)
	}
	if err != nil {
		return err
	}
	in.s.metrics.rows.Add(float64(len(row.IDs) + len(row.Hists)))
	return in.keep(row, d.parent)
}

// noteUnnamed marks rows that another partition had, where the sender's version cannot name it. Gateways send those of backups alone.
func (in *inserts) noteUnnamed(all ...*peer.Insert) {
	for _, x := range all {
		if x.Staging != nil && x.Staging.Do == peer.Inherit {
			x.Staging.Unnamed = in.version < streamSlices && in.role != RoleGateway
		}
	}
}

// insertGroup inserts what goes together.
func (in *inserts) insertGroup(j job) error {
	var d groupDecoder
	defer d.free()
	var all []*peer.Insert
	rest, err := d.cutHead(j.payload)
	if err == nil {
		var need int64
		if need, err = in.awaitRoom(d.decodedMembers(rest)); err == nil {
			defer in.s.giveRoom(need)
			all, err = d.decodeMembers(rest)
		}
	}
	j.buf.Free()
	if err == nil {
		in.noteUnnamed(all...)
		err = allowInsert(in.role, in.table, all[0]) // the others differ in rows and names alone
	}
	if err != nil {
		return err
	}
	rows := peer.RowsOf(all)
	in.s.metrics.rows.Add(float64(rows))
	ctx, span := in.span(d.head.parent, all[0], rows)
	err = peer.InsertTogether(ctx, in.stream, all)
	span.End(err)
	return err
}

// roomWait is how long an insert waits for memory to be decoded. Those before it may wait for copies, for longer: then its sender is to come again.
const roomWait = time.Second

// awaitRoom waits until rows of so many bytes may be decoded, and returns how many to give back. Errors are Throttled and Canceled.
func (in *inserts) awaitRoom(n int64) (int64, error) {
	n = min(n, in.s.settings.DecodedBytesMax) // the longest are decoded alone
	if !in.s.decoded.TryAcquire(n) {
		ctx, stop := context.WithTimeout(in.ss.Context(), roomWait)
		defer stop()
		switch err := in.s.decoded.Acquire(ctx, n); {
		case err == nil:
		case in.ss.Context().Err() != nil:
			return 0, fault.Wrap(err, fault.Canceled, "wait for memory to decode an insert")
		default:
			in.s.metrics.throttled.Inc()
			return 0, fault.Errorf(fault.Throttled, "decoded inserts of %d bytes are under way on the server, the most there may be; try again later", in.s.settings.DecodedBytesMax)
		}
	}
	in.s.insertsHeld.Add(n)
	return n, nil
}

func (s *Server) giveRoom(n int64) {
	s.insertsHeld.Add(-n)
	s.decoded.Release(n)
}

// InsertBytes is the memory of inserts under way: as they came, and decoded.
func (s *Server) InsertBytes() int64 { return s.insertsHeld.Load() }

// OnInsertGrowth registers f, which is called with the coming value of InsertBytes each time before it grows.
func (s *Server) OnInsertGrowth(f func(to int64)) { s.insertsHeld.OnGrowth(f) }

// span begins the span of an insert, if it is part of a trace.
func (in *inserts) span(parent trace.Parent, of *peer.Insert, rows int) (context.Context, trace.Span) {
	ctx, span := in.s.deps.Tracer.Under(in.ss.Context(), "peer Insert", parent)
	span.Text("spillway.table", in.table)
	span.Count("spillway.partition", int(of.Partition))
	span.Count("spillway.rows", rows)
	return ctx, span
}

// keep stores the rows of an insert, in a span if it is part of a trace.
func (in *inserts) keep(row *peer.Insert, parent trace.Parent) error {
	ctx, span := in.span(parent, row, len(row.IDs)+len(row.Hists))
	err := in.stream.Insert(ctx, row)
	if stamp, anew := in.stampAnew(err); anew {
		row.Stamp = stamp
		err = in.stream.Insert(ctx, row)
	}
	span.End(err)
	return err
}

// stampAnew gives an insert a new stamp here, if the gateway's version lacks the answer that asks it for one.
func (in *inserts) stampAnew(err error) (stamp point.Stamp, anew bool) {
	clock, ok := peer.NeedsStamp(err)
	above, late := peer.StampAbove(err)
	switch {
	case late && in.version < streamLate:
		return max(rank.At(time.Now().UnixNano()), above), true
	case ok && in.version < streamAhead:
		if clock == 0 { // sent again, and accepted before: it counts as received now
			clock = time.Now().UnixNano()
		}
		return rank.At(clock), true
	}
	return 0, false
}

// roleOf returns the role of a caller that was allowed to call.
func (s *Server) roleOf(ctx context.Context) Role {
	if s.settings.TLS.Insecure {
		return ""
	}
	id, _ := callerOf(ctx) // allow found no error
	return id.Role
}

func isAhead(err error) bool {
	_, ahead := peer.NeedsStamp(err)
	return ahead
}

var insertDecoders = sync.Pool{New: func() any { return new(insertDecoder) }}

func (in *inserts) ack(seq uint64, err error) {
	in.mu.Lock()
	in.mu.acks = appendAck(in.mu.acks, seq, err)
	in.mu.Unlock()
	in.rouse()
}

func (in *inserts) rouse() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// acksBytesMax bounds the memory for acks that is kept; acksUnreadMax the acks that wait to be sent.
const (
	acksBytesMax  = 64 << 10
	acksUnreadMax = 8 << 20
)

func (in *inserts) unread() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.mu.acks) > acksUnreadMax
}

// sendAcks sends all acks there are.
func (in *inserts) sendAcks() error {
	in.mu.Lock()
	n := len(in.mu.acks)
	if n == 0 {
		in.mu.Unlock()
		return nil
	}
	buf, data := poolBuffer(recordLen + n)
	b, from := beginRecord(data[:0], recordAcks)
	b = append(b, in.mu.acks...)
	in.mu.acks = in.mu.acks[:0]
	if cap(in.mu.acks) > acksBytesMax {
		in.mu.acks = nil
	}
	in.mu.Unlock()
	endRecord(b, from)
	in.s.metrics.sent.WithLabelValues(methodInserts).Add(float64(len(b)))
	return sendBuffer(in.ss, buf)
}
