package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/mem"

	"github.com/spillwaydb/spillway/protocols/fault"
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

// TestMessagesThatArriveStayWithinTheMemoryForInserts: each of 1,024 streams of a connection could have a message of 33 MiB under way that was nowhere counted, so that a few gateways with
// large inserts ended the process that kept the rows.
func TestMessagesThatArriveStayWithinTheMemoryForInserts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &Server{}
		srv.settings.setDefaults()
		srv.arrivals = newArrivals(&srv.settings)
		var peak int64
		srv.OnArrivingGrowth(func(to int64) { peak = max(peak, to) })
		const most = 2 * messageBytesMax // InsertBytesMax is less than four times that
		ctx, end := context.WithCancel(t.Context())
		defer end()
		in, ended := make(chan byte), make(chan error)
		const streams = 100
		for range streams {
			go func() {
				a := &arrivingStream{ofContext{nil, ctx}, srv, &slowTransport{ctx, in, messageBytesMax}, messageBytesMax, true}
				var m message
				err := a.RecvMsg(&m)
				if err == nil && m.data.Len() != messageBytesMax {
					err = errors.New("a message is cut")
				}
				ended <- err
			}()
		}
		synctest.Wait()
		if n := srv.ArrivingBytes(); n == 0 || n > most {
			t.Errorf("%d bytes of %d messages arrive, want at most %d", n, streams, most)
		}
		call := &arrivingStream{ofContext{nil, ctx}, srv, &slowTransport{ctx, in, requestMessageMax}, requestMessageMax, false}
		if err := call.RecvMsg(&message{}); !fault.Is(err, fault.Throttled) {
			t.Errorf("a long read beside them: %v", err)
		}
		call.from = &slowTransport{ctx, in, messageBytesMax}
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
		if n := srv.ArrivingBytes(); n != 0 || peak > most || !srv.arrivals.room.TryAcquire(most) {
			t.Errorf("%d bytes stay counted; at most %d arrived at a time", n, peak)
		}
	})
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
