package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/mem"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// slowTransport is the transport of a stream on which bytes come as a test sends them.
type slowTransport struct {
	ctx context.Context
	in  chan byte // each stands for a piece
	len int       // of every message
}

func (s *slowTransport) ReadMessageHeader(header []byte) error {
	binary.BigEndian.PutUint32(header[1:], uint32(s.len))
	return nil
}

func (s *slowTransport) Read(n int) (mem.BufferSlice, error) {
	select {
	case _, ok := <-s.in:
		if !ok {
			return nil, io.EOF
		}
		return mem.BufferSlice{mem.SliceBuffer(make([]byte, n))}, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// slowly is the transport of a stream of which a piece comes in each period.
type slowly struct {
	slowTransport
	every time.Duration
}

func (s *slowly) Read(n int) (mem.BufferSlice, error) {
	select {
	case <-time.After(s.every):
		return mem.BufferSlice{mem.SliceBuffer(make([]byte, n))}, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// closes is a connection that reports that it is closed.
type closes struct {
	net.Conn
	closed atomic.Bool
}

func (c *closes) RemoteAddr() net.Addr { return &net.TCPAddr{} }
func (c *closes) Close() error         { c.closed.Store(true); return nil }

// arrivingServer makes a server that reads messages of transports, and serves nothing.
func arrivingServer() *Server {
	srv := &Server{requestMax: time.Minute, deps: Deps{Log: slog.New(slog.DiscardHandler)}}
	srv.settings.setDefaults()
	srv.arrivals, srv.callers = newArrivals(&srv.settings), newCallers(&srv.settings)
	return srv
}

// arrivingFrom is a call of a peer that has entered.
func arrivingFrom(ctx context.Context, srv *Server, from messageReader, peer string, most int, inserts bool) *arrivingStream {
	kind := ofCall
	if inserts {
		kind = ofInserts
	}
	if err := srv.callers.enter(peer, false); err != nil {
		panic(err)
	}
	return &arrivingStream{ServerStream: ofContext{nil, ctx}, s: srv, from: from, peer: peer, most: most, kind: kind}
}

// TestMessagesThatArriveStayWithinTheMemoryForInserts: each of 1,024 streams of a connection could have a message of 33 MiB under way that was nowhere counted, so that a few gateways with
// large inserts ended the process that kept the rows.
func TestMessagesThatArriveStayWithinTheMemoryForInserts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arrivingServer()
		var peak atomic.Int64
		srv.OnArrivingGrowth(func(to int64) {
			for old := peak.Load(); to > old && !peak.CompareAndSwap(old, to); old = peak.Load() {
			}
		})
		const most = 2 * messageBytesMax // InsertBytesMax is less than four times that
		ctx, end := context.WithCancel(t.Context())
		defer end()
		in, ended := make(chan byte), make(chan error)
		const streams = 20
		for range streams {
			go func() {
				a := arrivingFrom(ctx, srv, &slowTransport{ctx, in, messageBytesMax}, "", messageBytesMax, true)
				var m message
				err := a.RecvMsg(&m)
				if err == nil && m.data.Len() != messageBytesMax {
					err = errors.New("a message is cut")
				}
				m.data.Free()
				m.done()
				ended <- err
			}()
		}
		synctest.Wait()
		if n := srv.ArrivingBytes(); n != 0 {
			t.Errorf("%d bytes are counted of %d messages of which no more than the length came", n, streams)
		}
		for range streams {
			in <- 1
		}
		synctest.Wait()
		if n := srv.ArrivingBytes(); n < messageBytesMax || n > most {
			t.Errorf("%d bytes of %d messages arrive, want at most %d", n, streams, most)
		}
		call := arrivingFrom(ctx, srv, &slowTransport{ctx, in, messageBytesMax}, "", requestMessageMax, false)
		if err := call.RecvMsg(&message{}); !fault.Is(err, fault.TooLarge) {
			t.Errorf("a read as long as an insert: %v", err)
		}
		for range streams {
			for range messageBytesMax/arrivingPiece - 1 {
				in <- 1
			}
		}
		for range streams {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if n := srv.ArrivingBytes(); n != 0 || peak.Load() > most || srv.arrivals.long.used() != 0 {
			t.Errorf("%d bytes stay counted; at most %d arrived at a time", n, peak.Load())
		}
	})
}

// TestLongRequestsAreNotRefusedWhileInsertsWait: long requests shared the semaphore of inserts, whose TryAcquire fails while any insert waits, so that long plans of queries were refused although
// there was room. Those of a peer that sends slowly leave room to others.
func TestLongRequestsAreNotRefusedWhileInsertsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arrivingServer()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		for _, gateway := range []string{"a", "b", "c"} { // the third waits
			go func() {
				_ = arrivingFrom(ctx, srv, &slowly{slowTransport{ctx, nil, messageBytesMax}, time.Second}, gateway, messageBytesMax, true).RecvMsg(&message{})
			}()
		}
		time.Sleep(2 * time.Second)
		plan := func(gateway string, every time.Duration) error {
			return arrivingFrom(ctx, srv, &slowly{slowTransport{ctx, nil, requestMessageMax}, every}, gateway, requestMessageMax, false).RecvMsg(&message{})
		}
		if err := plan("a", 0); err != nil {
			t.Errorf("a long plan beside inserts: %v", err)
		}
		for range 2 * arrivingCalls {
			go func() { _ = plan("slow", time.Second) }()
		}
		time.Sleep(2 * time.Second)
		if n := srv.arrivals.calls.used(); n != (arrivingCalls-1)*requestMessageMax {
			t.Errorf("long plans of one peer have %d bytes", n)
		}
		if err := plan("a", 0); err != nil {
			t.Errorf("a long plan beside many that another peer sends slowly: %v", err)
		}
		if err := plan("slow", 0); !fault.Is(err, fault.Throttled) {
			t.Errorf("a long plan beside %d of the same peer that do not come: %v", arrivingCalls, err)
		}
	})
}

// TestASilentSenderLosesItsRoomWhileOthersWait: a message of which no more came than its beginning held its room for up to two minutes. Its stream goes on where it comes in the end.
func TestASilentSenderLosesItsRoomWhileOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arrivingServer()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		ended := make(chan error)
		ins := map[string]chan byte{"a": make(chan byte), "b": make(chan byte)} // one for both would let a have the piece of b
		for silent, in := range ins {
			go func() {
				var m message
				err := arrivingFrom(ctx, srv, &slowTransport{ctx, in, messageBytesMax}, silent, messageBytesMax, true).RecvMsg(&m)
				if err == nil {
					err = m.refused
				}
				m.data.Free()
				m.done()
				ended <- err
			}()
			in <- 1
		}
		synctest.Wait()
		if n := srv.ArrivingBytes(); n != 2*messageBytesMax {
			t.Errorf("%d bytes of two messages arrive", n)
		}
		time.Sleep(srv.requestMax / 2)
		if n := srv.ArrivingBytes(); n != 2*messageBytesMax {
			t.Errorf("where none waits silent senders keep %d bytes", n)
		}
		began := time.Now()
		var m message
		err := arrivingFrom(ctx, srv, &slowly{slowTransport{ctx, nil, shortMessage + 1}, 0}, "honest", messageBytesMax, true).RecvMsg(&m)
		if took := time.Since(began); err != nil || m.refused != nil || took >= arrivingWait {
			t.Errorf("a long insert beside silent ones: after %v %v, refused for %v", took, err, m.refused)
		}
		m.data.Free()
		m.done()
		for _, in := range ins {
			go func() {
				for range messageBytesMax/arrivingPiece - 1 {
					in <- 1
				}
			}()
		}
		lost := 0
		for range 2 {
			switch err := <-ended; {
			case fault.Is(err, fault.Throttled):
				lost++
			case err != nil:
				t.Errorf("a stream does not go on behind a message that came late: %v", err)
			}
		}
		if lost == 0 {
			t.Error("no silent message lost its room")
		}
		if n := srv.ArrivingBytes(); n != 0 || srv.arrivals.long.used() != 0 {
			t.Errorf("%d bytes stay counted, %d in use", n, srv.arrivals.long.used())
		}
	})
}

// TestABusyConnectionKeepsItsCalls: each MiB of a message had a minute, however many streams shared the connection. A slow one was closed with all of them, and what it had
// brought was sent again, for ever.
func TestABusyConnectionKeepsItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arrivingServer()
		conn := &closes{}
		ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: pacedInfo{nil, conn, ""}})
		for _, inserts := range []bool{true, false} {
			var m message
			a := arrivingFrom(ctx, srv, &slowly{slowTransport{ctx, nil, chunkBytesMax}, srv.requestMax / 2}, "", requestMessageMax, inserts)
			var from receiver = a
			if !inserts {
				from = srv.awaited(a)
			}
			if err := from.RecvMsg(&m); err != nil || m.data.Len() != chunkBytesMax || conn.closed.Load() {
				t.Errorf("a message of which a part comes in each half of a minute, of inserts %v: %d bytes, %v, connection closed %v", inserts, m.data.Len(), err, conn.closed.Load())
			}
			m.data.Free()
			m.done()
		}
		ctx, end := context.WithCancel(ctx)
		go func() {
			_ = arrivingFrom(ctx, srv, &slowTransport{ctx, nil, chunkBytesMax}, "", messageBytesMax, true).RecvMsg(&message{})
		}()
		time.Sleep(srv.requestMax - time.Second)
		early := conn.closed.Load()
		time.Sleep(2 * time.Second)
		if early || !conn.closed.Load() {
			t.Errorf("a message of which nothing came for a minute: closed before %v, after %v", early, conn.closed.Load())
		}
		end()
	})
}

// TestSlowSendersDoNotKeepLongInsertsOfOthersOut: two gateways that sent a MiB in each minute held all room for half an hour, and streams of others stood still.
func TestSlowSendersDoNotKeepLongInsertsOfOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arrivingServer()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		receive := func(gateway string, n int, every time.Duration) (bytes int, refused, err error) {
			var m message
			err = arrivingFrom(ctx, srv, &slowly{slowTransport{ctx, nil, n}, every}, gateway, messageBytesMax, true).RecvMsg(&m)
			bytes = m.data.Len()
			m.data.Free()
			m.done()
			return bytes, m.refused, err
		}
		for _, slow := range []string{"a", "b"} {
			go func() { _, _, _ = receive(slow, messageBytesMax, time.Second) }()
		}
		time.Sleep(2 * time.Second)
		began := time.Now()
		n, refused, err := receive("honest", shortMessage+1, 0)
		if took := time.Since(began); took != arrivingWait || err != nil || !fault.Is(refused, fault.Throttled) || n != recordLen {
			t.Errorf("a long insert without room: after %v %v, refused for %v", took, err, refused)
		}
		if n, refused, err := receive("honest", shortMessage, 0); err != nil || refused != nil || n != shortMessage {
			t.Errorf("a short insert beside long ones: %v, refused for %v", err, refused)
		}
		time.Sleep(2 * srv.requestMax)
		if n, refused, err := receive("honest", shortMessage+1, 0); err != nil || refused != nil || n != shortMessage+1 {
			t.Errorf("a long insert two minutes later: %v, refused for %v", err, refused)
		}
		if n := srv.ArrivingBytes(); n != 0 {
			t.Errorf("%d bytes are counted of messages that are not kept", n)
		}
	})
}

// TestAStreamGoesOnAfterAnInsertWithoutRoom: it would be opened anew, and all its series defined again.
func TestAStreamGoesOnAfterAnInsertWithoutRoom(t *testing.T) {
	m := newMemory()
	p, srv := serveStorage(t, m)
	srv.arrivals.wait = time.Millisecond
	var others []*seat
	for _, other := range []string{"a", "b"} {
		has, err := srv.arrivals.long.enter(t.Context(), time.Minute, other, messageBytesMax)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, has)
	}
	st := openStream(t, p)
	if err := st.Define(t.Context(), []peer.Def{{ID: 1, Labels: point.MakeLabels(point.MetricName, "m")}}); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	insert := func(rows int) error {
		in := &peer.Insert{Partition: 1, Stamp: 1 << 20}
		for i := range rows {
			in.IDs, in.Times, in.Values = append(in.IDs, 1), append(in.Times, point.Nanos(i)), append(in.Values, rng.NormFloat64())
		}
		return st.Insert(t.Context(), in)
	}
	const long = 60_000
	wantKind(t, "a long insert without room", insert(long), fault.Throttled)
	if err := insert(1); err != nil {
		t.Errorf("a short insert behind it: %v", err)
	}
	for _, has := range others {
		srv.arrivals.long.leave(has)
	}
	if err := insert(long); err != nil {
		t.Errorf("a long insert with room: %v", err)
	}
	if m.streams != 1 {
		t.Errorf("%d streams were opened", m.streams)
	}
}

// waitingStorage is a storage on which definitions wait.
type waitingStorage struct {
	*memory
	defining chan struct{}
	goOn     chan struct{}
}

type waitingStream struct {
	peer.Stream
	s *waitingStorage
}

func (s *waitingStorage) OpenStream(ctx context.Context, table string) (peer.Stream, error) {
	st, err := s.memory.OpenStream(ctx, table)
	return &waitingStream{st, s}, err
}

func (s *waitingStream) Define(context.Context, []peer.Def) error {
	close(s.s.defining)
	<-s.s.goOn
	return nil
}

// TestAMessageIsCountedWhileItsDefinitionsWait: inserts behind a definition, 33 MiB of each stream, were in memory and in no account while it waited for its ack.
func TestAMessageIsCountedWhileItsDefinitionsWait(t *testing.T) {
	s := &waitingStorage{newMemory(), make(chan struct{}), make(chan struct{})}
	p, srv := serveStorage(t, s)
	l, err := p.enter()
	if err != nil {
		t.Fatal(err)
	}
	defer l.leave()
	cs, cancel, err := p.open(t.Context(), l, methodInserts)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel(nil)
	send := func(b []byte) {
		buf, _ := pooled(b)
		if err := sendBuffer(cs, buf); err != nil {
			t.Fatal(err)
		}
	}
	send((&hello{versionMin: streamOldest, versionMax: streamVersion, table: "t"}).append(nil))
	if err := cs.RecvMsg(&message{}); err != nil {
		t.Fatal(err)
	}
	var e defineEncoder
	define, _ := e.encode(recordDefine, []peer.Def{{ID: 1, Labels: point.MakeLabels(point.MetricName, "m")}})
	const rows = 1 << 20
	b, from := beginRecord(append([]byte(nil), define...), recordInsert)
	b = append(b, make([]byte, rows)...)
	endRecord(b, from)
	send(b)
	<-s.defining
	if n := srv.ArrivingBytes(); n != int64(pooledBytes(len(b))) {
		t.Errorf("%d bytes are counted of a message of %d of which a definition waits", n, len(b))
	}
	close(s.goOn)
	if err := cs.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = cs.RecvMsg(&message{})
	}
	if n := srv.ArrivingBytes() + srv.InsertBytes(); n != 0 {
		t.Errorf("%d bytes stay counted: %v", n, err)
	}
}

// TestAGatewayReadsAllAcksThatAServerSendsAtOnce: a bound for answers of calls would end its stream after a pause in which many inserts were refused.
func TestAGatewayReadsAllAcksThatAServerSendsAtOnce(t *testing.T) {
	if n := answerMessageMax(methodInserts); n < 2*acksUnreadMax {
		t.Errorf("a message of acks has at most %d bytes, and %d and those of a message of records wait", n, acksUnreadMax)
	}
	for _, method := range []string{methodLabelValues, methodFetch, methodListRows, methodSnapshots} {
		if n := answerMessageMax(method); n < 1+chunkBytesMax {
			t.Errorf("%s: a message has at most %d bytes, a chunk %d", method, n, chunkBytesMax)
		}
	}
}

// TestTheTransportOfRequestsIsReadHere: another version of gRPC may have none that can be read, and messages would arrive uncounted.
func TestTheTransportOfRequestsIsReadHere(t *testing.T) {
	p, srv := serveStorage(t, newMemory())
	peak := make(chan int64, 100)
	srv.OnArrivingGrowth(func(to int64) { peak <- to })
	l, err := p.enter()
	if err != nil {
		t.Fatal(err)
	}
	defer l.leave()
	for _, n := range []int{1000, requestMessageMax + 1} {
		cs, cancel, err := p.open(t.Context(), l, methodLabelNames)
		if err != nil {
			t.Fatal(err)
		}
		buf, _ := pooled(make([]byte, n))
		if err := sendBuffer(cs, buf); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if err := cs.CloseSend(); err != nil {
			t.Fatal(err)
		}
		err = cs.RecvMsg(&message{})
		if n <= requestMessageMax {
			select {
			case got := <-peak:
				if got != int64(n) {
					t.Errorf("%d bytes were counted of a message of %d", got, n)
				}
			default:
				t.Error("gRPC has read the message, and nobody counted it")
			}
			if err == nil {
				t.Error("zeros were answered")
			}
		} else if err := ofStatus(err); !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "at most") {
			t.Errorf("a message of %d bytes: %v", n, err)
		}
		cancel(nil)
	}
}
