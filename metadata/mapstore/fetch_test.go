package mapstore

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordmem "github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// A search as a story: inputs with their times in milliseconds, and the effects of each.
func TestFetchAsksTheNextServer(t *testing.T) {
	f := func(servers int, story ...string) {
		t.Helper()
		var ids []topology.ServerID
		for i := range servers {
			ids = append(ids, topology.ServerID(fmt.Sprint("s", i+1)))
		}
		m := NewFetch("cpu", ids)
		for i := 0; i < len(story); i += 2 {
			var at int
			var what, server string
			if _, err := fmt.Sscanf(story[i]+" .", "%d %s %s", &at, &what, &server); err != nil {
				t.Fatal(err)
			}
			var in FetchInput = FetchTick{}
			switch what {
			case "found":
				in = FetchAnswer{topology.ServerID(server), nil}
			case "failed":
				in = FetchAnswer{topology.ServerID(server), fault.Errorf(fault.NotFound, "not here")}
			}
			var got []string
			for _, e := range m.Step(time.UnixMilli(int64(at)), in, nil) {
				switch e := e.(type) {
				case FetchAsk:
					got = append(got, strings.TrimSuffix(fmt.Sprintf("ask %s, tick after %v", e.Server, e.After), ", tick after 0s"))
				case FetchFound:
					got = append(got, "found at "+string(e.Server))
				case FetchLost:
					got = append(got, "lost: "+fault.KindOf(e.Err).String())
				}
			}
			if want := story[i+1]; strings.Join(got, "; ") != want {
				t.Errorf("at %s: %q, want %q", story[i], got, want)
			}
		}
	}
	f(3, "0 tick", "ask s1, tick after 300ms", "5 found s1", "found at s1", "300 tick", "")
	f(3, "0 tick", "ask s1, tick after 300ms", "5 failed s1", "ask s2, tick after 300ms", "6 failed s2", "ask s3", "9 failed s3", "lost: unavailable", "10 tick", "")
	f(3, "0 tick", "ask s1, tick after 300ms", "299 tick", "", "300 tick", "ask s2, tick after 300ms", "310 found s1", "found at s1", "311 found s2", "")
	f(2, "0 tick", "ask s1, tick after 300ms", "300 tick", "ask s2", "301 failed s2", "", "9000 failed s1", "lost: unavailable")
	f(2, "0 tick", "ask s1, tick after 300ms", "300 tick", "ask s2", "301 failed s1", "", "900 found s2", "found at s2")
	f(1, "0 tick", "ask s1", "300 tick", "", "900 failed s1", "lost: unavailable")
	f(0, "0 tick", "lost: unavailable")
}

// TestStepsLeadFromOneMapToAnother, on the branch that was asked for, within their bounds.
func TestStepsLeadFromOneMapToAnother(t *testing.T) {
	id := func(n int) peer.TxnID { return peer.TxnID{byte(n), byte(n >> 8), 1} }
	s := newSteps()
	for n := 1; n <= 3000; n++ {
		s.put("cpu", id(n), id(n-1), fmt.Append(nil, n))
	}
	s.put("cpu", peer.TxnID{9}, id(10), []byte("lost the race"))
	f := func(from, to peer.TxnID, want int) {
		t.Helper()
		steps, ok := s.since("cpu", from, to)
		if ok != (want >= 0) || ok && len(steps) != want {
			t.Errorf("%d steps, %v; want %d", len(steps), ok, want)
		}
	}
	f(id(7), id(7), 0)
	f(id(7), id(10), 3)
	f(id(10), id(7), -1)
	f(id(9), peer.TxnID{9}, 2)
	f(id(11), peer.TxnID{9}, -1)
	f(peer.TxnID{9}, id(12), -1)
	f(id(1000), id(1000+peer.StepsMax), peer.StepsMax)
	f(id(1000), id(1001+peer.StepsMax), -1)
	if got, _ := s.since("cpu", id(7), id(10)); string(slices.Concat(got...)) != "8910" {
		t.Errorf("%q", got)
	}
	s.put("mem", id(5), id(2), []byte("3"), []byte("4"), []byte("5")) // they came together
	s.put("mem", id(6), id(5), []byte("6"))
	if got, ok := s.since("mem", id(2), id(6)); !ok || string(slices.Concat(got...)) != "3456" {
		t.Errorf("%q", got)
	}
	for n := range 40 { // of 1 MiB each: more than there is room for
		s.put("big", id(n+1), id(n), make([]byte, peer.StepsBytesMax))
	}
	if s.bytes > stepsBytesMax || s.tables["cpu"] != nil {
		t.Errorf("%d bytes are remembered", s.bytes)
	}
	f(id(2998), id(3000), -1)
	if _, ok := s.since("big", id(38), id(40)); ok {
		t.Error("2 MiB in one answer")
	}
	if _, ok := s.since("big", id(39), id(40)); !ok {
		t.Error("the newest was forgotten")
	}
}

// silent is a metadata server that never answers, or another one with lies.
type answers struct {
	peer.Metadata
	asked  int
	answer func(q *peer.FileQuery) (*peer.File, error)
}

func (a *answers) Fetch(ctx context.Context, q *peer.FileQuery) (*peer.File, error) {
	a.asked++
	if a.answer == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return a.answer(q)
}

// TestAFetchIsCheckedAndNotHeldUp: a silent server costs HedgeAfter, one with another map nothing, and the fetched map is the one
// that was asked for.
func TestAFetchIsCheckedAndNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		have := m
		op := topology.SetConfig{Config: topology.Config{PartitionWidth: 2 * time.Hour}}
		if m, err = m.Apply(op); err != nil {
			t.Fatal(err)
		}
		whole := *withMap(&peer.File{Table: "cpu", Txn: peer.TxnID{2}, Seq: 2}, m)
		lie := func(change func(f *peer.File)) *answers {
			return &answers{answer: func(*peer.FileQuery) (*peer.File, error) {
				f := whole
				f.Map = slices.Clone(f.Map)
				change(&f)
				return &f, nil
			}}
		}
		liars := map[string]*answers{
			"another table":       lie(func(f *peer.File) { f.Table = "mem" }),
			"another transaction": lie(func(f *peer.File) { f.Txn[0]++ }),
			"another seq":         lie(func(f *peer.File) { f.Seq++ }),
			"another map":         lie(func(f *peer.File) { *f = *withMap(f, have); f.Map, f.Sum = withMap(&peer.File{}, have).Map, 0 }),
			"a flipped bit":       lie(func(f *peer.File) { f.Map[len(f.Map)-1] ^= 1 }),
			"a digest":            lie(func(f *peer.File) { f.Digest++ }),
			"ops nobody asked for": lie(func(f *peer.File) {
				f.Map, f.Since, f.Steps = nil, peer.TxnID{7}, [][]byte{topology.EncodeOps([]topology.Op{op})}
			}),
		}
		good := &answers{answer: func(q *peer.FileQuery) (*peer.File, error) {
			f := whole
			if q.Since == (peer.TxnID{1}) {
				f.Map, f.Sum, f.Since, f.Steps = nil, 0, q.Since, [][]byte{topology.EncodeOps([]topology.Op{op})}
			}
			return &f, nil
		}}
		peers := map[topology.ServerID]*answers{"silent": {}, "good": good}
		servers := []topology.ServerID{"silent", "good", "unknown"}
		for name, l := range liars {
			peers[topology.ServerID(name)] = l
			servers = append(servers, topology.ServerID(name))
		}
		c, err := NewCoordinator(Deps{Store: coordmem.New(), Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)),
			Peers: func(id topology.ServerID) (peer.Metadata, bool) { p, ok := peers[id]; return p, ok }}, Settings{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		w := Wanted{Table: "cpu", Txn: peer.TxnID{2}, Seq: 2, Servers: servers}
		for round := range 100 {
			w.Since, w.Have = peer.TxnID{}, nil
			if round%2 == 1 {
				w.Since, w.Have = peer.TxnID{1}, have
			}
			began := time.Now()
			f, got, err := c.Fetch(t.Context(), w)
			if err != nil || got.Digest() != m.Digest() || f.Map != nil || (f.Steps != nil) != (round%2 == 1) {
				t.Fatalf("%+v %v", f, err)
			}
			if took := time.Since(began); took > HedgeAfter {
				t.Fatalf("a silent server cost %v", took)
			}
		}
		for name, l := range liars {
			if l.asked == 0 {
				t.Errorf("%s was never asked", name)
			}
		}
		w.Servers = slices.DeleteFunc(servers, func(s topology.ServerID) bool { return s == "good" })
		w.Since, w.Have = peer.TxnID{1}, have
		if _, _, err := c.Fetch(t.Context(), w); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("of liars alone: %v", err)
		}
	})
}

// TestOpsThatDoNotLeadThereAreFollowedByTheWholeMap: the map that is here is another one than the server thinks.
func TestOpsThatDoNotLeadThereAreFollowedByTheWholeMap(t *testing.T) {
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	op := topology.SetConfig{Config: topology.Config{PartitionWidth: 2 * time.Hour}}
	next, err := m.Apply(op)
	if err != nil {
		t.Fatal(err)
	}
	other, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	s := &answers{answer: func(q *peer.FileQuery) (*peer.File, error) {
		f := withMap(&peer.File{Table: "cpu", Txn: q.Txn, Seq: 2}, next)
		if q.Since != (peer.TxnID{}) {
			f.Map, f.Sum, f.Since, f.Steps = nil, 0, q.Since, [][]byte{topology.EncodeOps([]topology.Op{topology.SetConfig{Config: topology.Config{PartitionWidth: 3 * time.Hour}}})}
		}
		return f, nil
	}}
	c, err := NewCoordinator(Deps{Store: coordmem.New(), Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)),
		Peers: func(topology.ServerID) (peer.Metadata, bool) { return s, true }}, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, got, err := c.Fetch(t.Context(), Wanted{Table: "cpu", Txn: peer.TxnID{2}, Seq: 2, Servers: []topology.ServerID{"s1"}, Since: peer.TxnID{1}, Have: other})
	if err != nil || got.Digest() != next.Digest() || s.asked != 2 {
		t.Fatalf("after %d requests: %v %v", s.asked, got, err)
	}
}
