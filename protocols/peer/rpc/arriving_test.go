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
	srv.arrivals = newArrivals(&srv.settings)
	return srv
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
				a := &arrivingStream{ofContext{nil, ctx}, srv, &slowTransport{ctx, in, messageBytesMax}, messageBytesMax, true}
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
		if n := srv.ArrivingBytes(); n == 0 || n > most {
			t.Errorf("%d bytes of %d messages arrive, want at most %d", n, streams, most)
		}
		call := &arrivingStream{ofContext{nil, ctx}, srv, &slowTransport{ctx, in, messageBytesMax}, requestMessageMax, false}
		if err := call.RecvMsg(&message{}); !fault.Is(err, fault.TooLarge) {
			t.Errorf("a read as long as an insert: %v", err)
		}
		for range streams {
			for range messageBytesMax / arrivingPiece {
				in <- 1
			}
		}
		for range streams {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if n := srv.ArrivingBytes(); n != 0 || peak.Load() > most || !srv.arrivals.room.TryAcquire(most) {
			t.Errorf("%d bytes stay counted; at most %d arrived at a time", n, peak.Load())
		}
	})
}

// TestLongRequestsAreNotRefusedWhileInsertsWait: long requests shared the semaphore of inserts, whose TryAcquire fails while any insert waits, so that long plans of queries were refused although
// there was room.
func TestLongRequestsAreNotRefusedWhileInsertsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arrivingServer()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		for range 3 { // the third waits
			go func() {
				_ = (&arrivingStream{ofContext{nil, ctx}, srv, &slowTransport{ctx, nil, messageBytesMax}, messageBytesMax, true}).RecvMsg(&message{})
			}()
		}
		synctest.Wait()
		plan := func(every time.Duration) error {
			return (&arrivingStream{ofContext{nil, ctx}, srv, &slowly{slowTransport{ctx, nil, requestMessageMax}, every}, requestMessageMax, false}).RecvMsg(&message{})
		}
		if err := plan(0); err != nil {
			t.Errorf("a long plan beside inserts: %v", err)
		}
		for range arrivingCalls {
			go func() { _ = plan(time.Hour) }()
		}
		synctest.Wait()
		if err := plan(0); !fault.Is(err, fault.Throttled) {
			t.Errorf("a long plan beside %d that do not come: %v", arrivingCalls, err)
		}
	})
}

// TestABusyConnectionKeepsItsCalls: each MiB of a message had a minute, however many streams shared the connection. A slow one was closed with all of them, and what it had
// brought was sent again, for ever.
func TestABusyConnectionKeepsItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arrivingServer()
		conn := &closes{}
		ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: pacedInfo{nil, conn}})
		for _, inserts := range []bool{true, false} {
			var m message
			a := &arrivingStream{ofContext{nil, ctx}, srv, &slowly{slowTransport{ctx, nil, chunkBytesMax}, srv.requestMax / 2}, requestMessageMax, inserts}
			var from receiver = a
			if !inserts {
				from = srv.awaited(a)
			}
			if err := from.RecvMsg(&m); err != nil || m.data.Len() != chunkBytesMax || conn.closed.Load() {
				t.Errorf("a message of which a part comes in each half of a minute, of inserts %v: %d bytes, %v, connection closed %v", inserts, m.data.Len(), err, conn.closed.Load())
			}
			m.done()
		}
		ctx, end := context.WithCancel(ctx)
		go func() {
			_ = (&arrivingStream{ofContext{nil, ctx}, srv, &slowTransport{ctx, nil, chunkBytesMax}, messageBytesMax, true}).RecvMsg(&message{})
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
		receive := func(n int, every time.Duration) (m message, err error) {
			err = (&arrivingStream{ofContext{nil, ctx}, srv, &slowly{slowTransport{ctx, nil, n}, every}, messageBytesMax, true}).RecvMsg(&m)
			m.done()
			return m, err
		}
		for range 2 {
			go func() { _, _ = receive(messageBytesMax, srv.requestMax/2) }()
		}
		synctest.Wait()
		began := time.Now()
		m, err := receive(shortMessage+1, 0)
		if took := time.Since(began); took != arrivingWait || err != nil || !fault.Is(m.refused, fault.Throttled) || m.data.Len() != recordLen {
			t.Errorf("a long insert without room: after %v %v, refused for %v", took, err, m.refused)
		}
		time.Sleep(2 * srv.requestMax)
		if m, err := receive(shortMessage+1, 0); err != nil || m.refused != nil || m.data.Len() != shortMessage+1 {
			t.Errorf("a long insert two minutes later: %v, refused for %v", err, m.refused)
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
	const all = 2 * messageBytesMax
	if !srv.arrivals.room.TryAcquire(all) {
		t.Fatal("room is in use")
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
	srv.arrivals.room.Release(all)
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
	if n := srv.ArrivingBytes(); n != int64(len(b)) {
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
