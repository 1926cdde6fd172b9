package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestReadsOfManyPeersLeaveRoomForMaps: each of any number of reads under way could bring 8 MiB of matchers to a storage server, in no account of its memory.
func TestReadsOfManyPeersLeaveRoomForMaps(t *testing.T) {
	s := &Server{}
	s.settings.setDefaults()
	booked := int64(0)
	s.OnRequestGrowth(func(to int64) { booked = max(booked, to) })
	var all []*receiving
	begin := func(what string, class requestClass, n int, wants error) {
		t.Helper()
		r := &receiving{s: s, class: class}
		all = append(all, r)
		if err := r.take(n); (err == nil) != (wants == nil) || err != nil && !fault.Is(err, fault.KindOf(wants)) {
			t.Errorf("%s: %v, want %v", what, err, wants)
		}
	}
	full := fault.Errorf(fault.Throttled, "full")
	share := int(s.settings.shareMax())
	for range share / smallMax {
		begin("a read", reads, smallMax, nil)
	}
	begin("one too many", reads, alwaysMax+1, full)
	begin("a short read", reads, alwaysMax, nil)
	begin("a deletion", orders, smallMax, nil)
	begin("a map", maps, peer.MapBytesMax, nil)
	if n := s.RequestBytes(); booked != n || n != int64(share+alwaysMax+smallMax+peer.MapBytesMax) {
		t.Errorf("%d bytes are held, and %d were booked", n, booked)
	}
	begin("another", maps, peer.MapBytesMax, full)
	for range share/smallMax - 1 {
		begin("a deletion beside what was refused", orders, smallMax, nil)
	}
	begin("one deletion too many, each of which could bring 8 MiB until there was room for no map", orders, alwaysMax+1, full)
	begin("a file, once all is full", maps, peer.MapBytesMax-2*share-alwaysMax, nil)
	begin("a file then", maps, alwaysMax+1, full)
	begin("a ping then", orders, alwaysMax, nil)
	for _, r := range all {
		r.end()
	}
	if n := s.RequestBytes(); n != 0 {
		t.Errorf("%d bytes stay booked", n)
	}
	begin("a read after them", reads, smallMax, nil)
	begin("a file that is longer than all requests may be", maps, 2*peer.MapBytesMax+1, fault.Errorf(fault.TooLarge, "large"))
}

// TestARequestIsBookedOnceAsItCameAndOnceAsItIsDecoded: its bytes and their decoded parts were each booked twice, so that 60 KiB of matchers whose parts need 8
// MiB booked 16 MiB from inserts and queries.
func TestARequestIsBookedOnceAsItCameAndOnceAsItIsDecoded(t *testing.T) {
	s := &Server{}
	s.settings.setDefaults()
	b, err := proto.Marshal(&peerpb.Select{Table: "t", Matchers: make([]*peerpb.Matcher, 10)})
	if err != nil {
		t.Fatal(err)
	}
	booked := int64(0)
	s.OnRequestGrowth(func(to int64) { booked = to })
	r := &receiving{s: s, class: reads}
	if err := r.take(len(b)); err != nil || booked != int64(len(b)) {
		t.Errorf("%d bytes are booked with %d that came: %v", booked, len(b), err)
	}
	parts := partsBytes(b, (&peerpb.Select{}).ProtoReflect().Descriptor())
	if err := r.decode(b, &peerpb.Select{}); err != nil || booked != int64(2*len(b)+parts) {
		t.Errorf("%d bytes are booked, want %d as they came, as many copied, and %d of their parts: %v", booked, len(b), parts, err)
	}
	r.end()
	if n := s.RequestBytes(); n != 0 || s.requestBytes.Load() != 0 {
		t.Errorf("%d bytes stay booked, %d counted", n, s.requestBytes.Load())
	}
}

// TestAReadOfManyPartsIsRefusedBeforeItIsDecoded: two bytes make an empty matcher of some hundred, so that one read of 8 MiB needed half a gigabyte, of which 8 MiB were
// counted.
func TestAReadOfManyPartsIsRefusedBeforeItIsDecoded(t *testing.T) {
	in := looking{newMemory(), nil, map[string]int64{}}
	in.booked = func() int64 { return 1 }
	p, srv := serveStorage(t, in)
	many := make([]peer.Matcher, 500_000)
	if _, _, err := p.LabelNames(t.Context(), &peer.Select{Table: "t", Matchers: many}, 0); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a look-up: %v", err)
	}
	if _, err := p.Select(t.Context(), &peer.Select{Table: "t", Matchers: many}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a select: %v", err)
	}
	if err := p.DeleteSeries(t.Context(), &peer.Select{Table: "t", Matchers: many}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a deletion: %v", err)
	}
	if len(in.seen) > 0 {
		t.Errorf("decoded and asked were %v", in.seen)
	}
	if _, _, err := p.LabelNames(t.Context(), &peer.Select{Table: "t", Matchers: many[:1000], Partitions: make([]point.PartitionID, 10_000)}, 0); err != nil {
		t.Errorf("a look-up of a thousand matchers in ten thousand partitions: %v", err)
	}
	until(t, "nothing stays booked", func() bool { return srv.RequestBytes() == 0 })
}

// TestPartsAreCountedBeforeTheyAreDecoded with the memory that they need.
func TestPartsAreCountedBeforeTheyAreDecoded(t *testing.T) {
	f := func(m proto.Message, want int) {
		t.Helper()
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if n := partsBytes(b, m.ProtoReflect().Descriptor()); n != want {
			t.Errorf("%v: %d bytes, want %d", m, n, want)
		}
		for n := range b { // malformed, all or nearly
			if got := partsBytes(b[:n], m.ProtoReflect().Descriptor()); got > want+numberCost*n {
				t.Errorf("%d bytes of %v: %d bytes", n, m, got)
			}
		}
	}
	f(&peerpb.Nothing{}, 0)
	f(&peerpb.Select{Table: "t", Lo: 5}, textCost+numberCost)
	f(&peerpb.Select{Partitions: []uint64{1, 300, 1 << 63}}, 3*numberCost)
	f(&peerpb.Select{Matchers: []*peerpb.Matcher{{}, {Name: []byte("a"), Type: 1}}}, 2*messageCost+textCost+numberCost)
	f(&peerpb.ExemplarsQuery{Sets: []*peerpb.Matchers{{Matchers: []*peerpb.Matcher{{}}}}}, 2*messageCost)
}

// endlessRows are rows that never change.
type endlessRows struct {
	peer.Rows
	watched chan struct{}
}

func (r endlessRows) WatchRows(ctx context.Context, _ string, _ uint64, _ func([]peer.RowEvent) error) error {
	close(r.watched)
	<-ctx.Done()
	return ctx.Err()
}

// TestAWatchOfRowsHoldsNoMemoryOfItsRequest: it was counted as long as the watch lasted, which may be for days.
func TestAWatchOfRowsHoldsNoMemoryOfItsRequest(t *testing.T) {
	rows := endlessRows{watched: make(chan struct{})}
	srv, err := NewServer(Deps{Storage: newMemory(), Rows: rows}, Settings{TLS: plain})
	if err != nil {
		t.Fatal(err)
	}
	p := dial(t, serving(t, srv), DialSettings{})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- p.WatchRows(ctx, strings.Repeat("x", 1<<20), 0, func([]peer.RowEvent) error { return nil })
	}()
	<-rows.watched
	if n := srv.RequestBytes(); n != 0 {
		t.Errorf("a watch holds %d bytes", n)
	}
	end()
	if err := <-ended; err == nil {
		t.Error("the watch ended without an error")
	}
}

// looking is a storage that notes what a server has booked while it looks up.
type looking struct {
	*memory
	booked func() int64
	seen   map[string]int64
}

func (l looking) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	l.seen["a select"] = l.booked()
	return l.memory.Select(ctx, q)
}

func (l looking) LabelNames(ctx context.Context, q *peer.Select, limit int) ([]string, bool, error) {
	l.seen["label names"] = l.booked()
	return l.memory.LabelNames(ctx, q, limit)
}

func TestARequestIsBookedUntilItIsAnswered(t *testing.T) {
	in := looking{newMemory(), nil, map[string]int64{}}
	var srv *Server
	in.booked = func() int64 { return srv.RequestBytes() }
	p, srv := serveStorage(t, in)
	long := []peer.Matcher{{Name: "a", Value: strings.Repeat("x", 1<<20)}}
	set, err := p.Select(t.Context(), &peer.Select{Table: "t", Matchers: long})
	if err != nil {
		t.Fatal(err)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := p.LabelNames(t.Context(), &peer.Select{Table: "t", Matchers: long}, 0); err != nil {
		t.Error(err)
	}
	for what, n := range in.seen {
		if n < 1<<20 {
			t.Errorf("%s: %d bytes are booked", what, n)
		}
	}
	if len(in.seen) != 2 {
		t.Errorf("seen are %v", in.seen)
	}
}

// TestLongReadsShutOutNoOtherCalls: eight reads of 8 MiB shut out the pings, statistics, files and rows of administrators of all peers, as these counted as look-ups.
func TestLongReadsShutOutNoOtherCalls(t *testing.T) {
	in := looking{newMemory(), nil, map[string]int64{}}
	in.booked = func() int64 { return 0 }
	p, srv := serveStorage(t, in)
	for range srv.settings.shareMax() / smallMax {
		r := &receiving{s: srv, class: reads}
		if err := r.take(smallMax); err != nil {
			t.Fatal(err)
		}
		defer r.end()
	}
	long := []peer.Matcher{{Name: "a", Value: strings.Repeat("x", 1<<20)}}
	if _, _, err := p.LabelNames(t.Context(), &peer.Select{Table: "t", Matchers: long}, 0); !fault.Is(err, fault.Throttled) {
		t.Errorf("one long read more: %v", err)
	}
	if _, _, err := p.LabelNames(t.Context(), &peer.Select{Table: "t"}, 0); err != nil {
		t.Errorf("a short read: %v", err)
	}
	if _, err := p.Stats(t.Context(), "t", 1); err != nil {
		t.Errorf("statistics: %v", err)
	}
	if err := p.DeleteSeries(t.Context(), &peer.Select{Table: "t", Matchers: long}); fault.Is(err, fault.Throttled) {
		t.Errorf("a deletion: %v", err)
	}
}

// TestAnAnswerIsBookedUntilItIsSent: the names of a look-up, and once more in their encoded form, were in no account while a gateway read them slowly.
func TestAnAnswerIsBookedUntilItIsSent(t *testing.T) {
	m := newMemory()
	for i := range 8 << 10 {
		m.names = append(m.names, fmt.Sprintf("%01024d", i))
	}
	p, srv := serveStorage(t, m)
	l, err := p.enter()
	if err != nil {
		t.Fatal(err)
	}
	defer l.leave()
	cs, cancel, err := p.open(t.Context(), l, methodLabelNames)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel(nil)
	if _, err := sendChunks(cs, &peerpb.Select{Table: "t"}); err != nil {
		t.Fatal(err)
	}
	if err := cs.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var first message
	if err := cs.RecvMsg(&first); err != nil {
		t.Fatal(err)
	}
	first.data.Free()
	if n := srv.AnswerBytes(); n < 16<<20 { // the window has room for 1 MiB of the answer
		t.Errorf("%d bytes of answers are booked", n)
	}
	cancel(nil)
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if n := srv.AnswerBytes(); n != 0 {
		t.Errorf("%d bytes stay booked", n)
	}
}

// TestHalfARequestIsNotWaitedForForEver: eight callers that sent a part of a long read, and no more, kept those of all others out as long as their connections lived. A
// stream of inserts without a hello held its goroutines.
func TestHalfARequestIsNotWaitedForForEver(t *testing.T) {
	for _, method := range []string{methodLabelNames, methodDeleteSeries, methodStore, methodSelect, methodEvaluate, methodEvaluations, methodWatchRows, methodInserts} {
		t.Run(method, func(t *testing.T) {
			srv, err := NewServer(Deps{Storage: newMemory()}, Settings{TLS: plain})
			if err != nil {
				t.Fatal(err)
			}
			srv.requestMax = 20 * time.Millisecond
			p := dial(t, serving(t, srv), DialSettings{})
			l, err := p.enter()
			if err != nil {
				t.Fatal(err)
			}
			defer l.leave()
			ctx, end := context.WithTimeout(t.Context(), 20*time.Second)
			defer end()
			cs, cancel, err := p.open(ctx, l, method)
			if err != nil {
				t.Fatal(err)
			}
			defer cancel(nil)
			if method == methodLabelNames || method == methodStore {
				buf, _ := pooled(make([]byte, chunkBytesMax))
				if err := sendBuffer(cs, buf); err != nil && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
			}
			if err := cs.RecvMsg(&message{}); !fault.Is(ofStatus(err), fault.Unavailable) || ctx.Err() != nil {
				t.Errorf("the call goes on: %v", err)
			}
			if err := srv.Shutdown(t.Context()); err != nil { // the handler has ended then
				t.Error(err)
			}
			if n := srv.RequestBytes(); n != 0 {
				t.Errorf("%d bytes stay booked", n)
			}
		})
	}
}

// serving serves on a loopback port until the test ends.
func serving(t testing.TB, srv *Server) (addr string) {
	t.Helper()
	l, done := listen(t), make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}
