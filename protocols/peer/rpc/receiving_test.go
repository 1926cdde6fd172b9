package rpc

import (
	"context"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestReadsOfManyPeersLeaveRoomForMaps: each of any number of reads under way could bring 8 MiB of matchers to a storage server, in no account of its memory.
func TestReadsOfManyPeersLeaveRoomForMaps(t *testing.T) {
	s := &Server{}
	s.settings.setDefaults()
	booked := int64(0)
	s.OnRequestGrowth(func(to int64) { booked = max(booked, to) })
	var all []*receiving
	begin := func(what string, small bool, n int, wants error) {
		t.Helper()
		r := &receiving{s: s, small: small}
		all = append(all, r)
		if err := r.take(n); (err == nil) != (wants == nil) || err != nil && !fault.Is(err, fault.KindOf(wants)) {
			t.Errorf("%s: %v, want %v", what, err, wants)
		}
	}
	full := fault.Errorf(fault.Throttled, "full")
	for range smallRequestsMax / smallMax {
		begin("a read", true, smallMax, nil)
	}
	begin("one too many", true, alwaysMax+1, full)
	begin("a short read", true, alwaysMax, nil)
	begin("a deletion", false, smallMax, nil)
	begin("a map", false, peer.MapBytesMax, nil)
	if n := s.RequestBytes(); booked != n || n != smallRequestsMax+alwaysMax+smallMax+peer.MapBytesMax {
		t.Errorf("%d bytes are held, and %d were booked", n, booked)
	}
	begin("another", false, peer.MapBytesMax, full)
	begin("a deletion beside what was refused", false, smallMax, nil)
	begin("rows, once all is full", false, peer.MapBytesMax-smallRequestsMax-alwaysMax-2*smallMax, nil)
	begin("a deletion then", false, smallMax, full)
	begin("a ping then", false, alwaysMax, nil)
	for _, r := range all {
		r.end()
	}
	if n := s.RequestBytes(); n != 0 {
		t.Errorf("%d bytes stay booked", n)
	}
	begin("a read after them", true, smallMax, nil)
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
	for range smallRequestsMax / smallMax {
		r := &receiving{s: srv, small: true}
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
