package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"math/rand/v2"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// far is a server at the other end of a connection, with answers that the test sets.
type far struct {
	peer.Storage
	peer.Metadata
	addr string
	net  *network
}

func (f *far) GetMetadata(context.Context, string, string) ([]point.MetadataRow, error) {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	f.net.calls = append(f.net.calls, f.addr)
	return []point.MetadataRow{{Metric: f.addr}}, f.net.down[f.addr]
}

// Self answers with the address.
func (f *far) Self(context.Context) (peer.Self, error) { return peer.Self{Server: f.addr}, nil }

func (f *far) OpenStream(context.Context, string) (peer.Stream, error) { return &farStream{f: f}, nil }

// farStream answers inserts as the test sets.
type farStream struct {
	peer.Stream
	f *far
}

func (s *farStream) Insert(context.Context, *peer.Insert) error {
	s.f.net.mu.Lock()
	defer s.f.net.mu.Unlock()
	return s.f.net.refused
}

// PutMetadata answers as inserts do.
func (f *far) PutMetadata(context.Context, string, []point.MetadataRow) error {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	return f.net.refused
}

// DeleteSeries answers as inserts do.
func (f *far) DeleteSeries(context.Context, *peer.Select) error {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	return f.net.refused
}

// EndSlices answers as inserts do.
func (f *far) EndSlices(context.Context, string, point.PartitionID, point.Epoch) error {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	return f.net.refused
}

// HighestRank answers as inserts do.
func (f *far) HighestRank(context.Context, string, point.PartitionID) (point.Stamp, error) {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	return 0, f.net.refused
}

func (f *far) Close() error {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	f.net.open = slices.DeleteFunc(f.net.open, func(a string) bool { return a == f.addr })
	return nil
}

// network is all connections there are.
type network struct {
	mu    sync.Mutex
	open  []string // addresses with a connection
	calls []string
	down  map[string]error
	bad   map[string]bool // cannot be dialled

	refused error // of inserts
}

func (n *network) dial(_ topology.ServerID, addr string) (Peer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bad[addr] {
		return nil, errors.New("no such certificate")
	}
	n.open = append(n.open, addr)
	return &far{addr: addr, net: n}, nil
}

func (n *network) opened() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.Sort(n.open)
	return strings.Join(n.open, " ")
}

func (n *network) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func newNetwork() *network { return &network{down: map[string]error{}, bad: map[string]bool{}} }

func register(t *testing.T, store coord.Store, id topology.ServerID, addr string) {
	t.Helper()
	if err := registry.Register(t.Context(), store, registry.Server{ID: id, Addr: addr, Host: "h", Store: "d"}, false, nil); err != nil {
		t.Fatal(err)
	}
}

func TestConnectionsFollowTheRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, n := mem.New(), newNetwork()
		log := slog.New(slog.DiscardHandler)
		register(t, store, "n1", "a:1")
		view, err := registry.Open(t.Context(), store, log, rand.New(rand.NewPCG(1, 2)))
		if err != nil {
			t.Fatal(err)
		}
		p := Open(Deps{Servers: view, Dial: n.dial, Log: log, Local: map[topology.ServerID]Local{"here": {Storage: &far{addr: "here", net: n}}}}, Settings{ServersMax: 3})
		if got := n.opened(); got != "a:1" {
			t.Errorf("after Open: %q", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = view.Run(ctx) })
		wg.Go(func() { _ = p.Run(ctx) })
		synctest.Wait()
		f := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := n.opened(); got != want {
				t.Errorf("open: %q, want %q", got, want)
			}
		}
		reach := func(id topology.ServerID, want string) {
			t.Helper()
			s, ok := p.Server(id)
			if !ok {
				if want != "" {
					t.Errorf("%s is not there", id)
				}
				return
			}
			rows, err := s.GetMetadata(ctx, "t", "")
			if err != nil || rows[0].Metric != want {
				t.Errorf("%s is reached at %v (%v), want %q", id, rows, err, want)
			}
		}
		register(t, store, "n2", "a:2")
		f("a:1 a:2")
		reach("n2", "a:2")
		reach("here", "here")
		reach("n9", "")
		register(t, store, "n1", "b:1") // it moved
		f("a:2 b:1")
		reach("n1", "b:1")
		if got := fmt.Sprint(p.IDs()); got != "[here n1 n2]" {
			t.Errorf("ids %s", got)
		}
		if _, _, err := store.Commit(ctx, nil, []coord.Write{{Key: registry.Key("n2"), Delete: true}}); err != nil {
			t.Fatal(err)
		}
		f("b:1")
		reach("n2", "")

		n.set(func() { n.bad["a:4"] = true })
		register(t, store, "n4", "a:4")
		f("b:1")
		n.set(func() { delete(n.bad, "a:4") })
		time.Sleep(redialEvery + time.Second)
		f("a:4 b:1")
		register(t, store, "n5", "a:5")
		register(t, store, "n6", "a:6") // one too many
		f("a:4 a:5 b:1")

		stop()
		wg.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		f("")
	})
}

// TestNobodyWaitsForTheDead: after three failures a server is asked again by one call at a time, less and less often,
// and as before as soon as it answers.
func TestNobodyWaitsForTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := &conn{id: "n1", addr: "a:1", peer: &far{addr: "a:1", net: n}, metrics: newMetrics(nil, &Peers{})}
		made := func(calls int) (reached int, last error) {
			n.set(func() { n.calls = nil })
			for range calls {
				if _, err := c.GetMetadata(t.Context(), "t", ""); err != nil {
					last = err
				}
			}
			return len(n.calls), last
		}
		f := func(calls, want int, kind fault.Kind) {
			t.Helper()
			got, err := made(calls)
			if got != want || err != nil && fault.KindOf(err) != kind {
				t.Errorf("%d of %d calls were made, want %d; %v", got, calls, want, err)
			}
		}
		f(5, 5, 0)
		n.set(func() { n.down["a:1"] = fault.Errorf(fault.Unavailable, "connection refused") })
		f(100, 3, fault.Unavailable)
		_, err := made(1)
		if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "n1 at a:1") {
			t.Errorf("what is said: %v", err)
		}
		time.Sleep(pauseMin)
		f(100, 1, fault.Unavailable)
		for range 10 {
			time.Sleep(pauseMax)
			f(100, 1, fault.Unavailable)
		}
		time.Sleep(pauseMax / 3)
		f(100, 0, fault.Unavailable)
		if !c.breaker.open(time.Now()) {
			t.Error("is not said to rest")
		}
		// A refusal by the server shows that it is there.
		n.set(func() { n.down["a:1"] = fault.Errorf(fault.Stale, "not led here") })
		time.Sleep(pauseMax)
		f(100, 100, fault.Stale)
		n.set(func() { delete(n.down, "a:1") })
		f(100, 100, 0)

		// A caller that went away says nothing of the server.
		n.set(func() { n.down["a:1"] = context.Canceled })
		f(100, 100, fault.Canceled)
		n.set(func() { n.down["a:1"] = context.DeadlineExceeded })
		f(100, 3, fault.Unavailable)
	})
}

// TestReadersOfAServerThatRefusesRowsAreAnswered: its disk is full, and it answers each insert with that; queries were not made, as if it were away.
func TestReadersOfAServerThatRefusesRowsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := &conn{id: "n1", addr: "a:1", peer: &far{addr: "a:1", net: n}, metrics: newMetrics(nil, &Peers{})}
		s, err := c.OpenStream(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		n.refused = fault.Errorf(fault.Unavailable, "the store is read-only")
		for range 100 {
			if err := s.Insert(t.Context(), &peer.Insert{}); !fault.Is(err, fault.Unavailable) || err.Error() != "server n1: the store is read-only" {
				t.Fatalf("%v", err)
			}
			if _, err := c.GetMetadata(t.Context(), "t", ""); err != nil {
				t.Fatalf("a read beside refused inserts: %v", err)
			}
		}
		for range 100 {
			_ = s.Insert(t.Context(), &peer.Insert{})
		}
		if _, err := c.GetMetadata(t.Context(), "t", ""); err != nil {
			t.Errorf("a read after refused inserts: %v", err)
		}

		// Inserts without an answer do rest a server.
		for _, err := range []error{peer.ErrStreamBroken, context.DeadlineExceeded} {
			n.refused = fault.Wrap(err, fault.Unavailable, "insert")
			for range failuresMax {
				_ = s.Insert(t.Context(), &peer.Insert{})
			}
			if _, err := c.GetMetadata(t.Context(), "t", ""); !fault.Is(err, fault.Unavailable) {
				t.Errorf("a read after inserts without an answer: %v", err)
			}
			time.Sleep(pauseMax)
			if _, err := c.GetMetadata(t.Context(), "t", ""); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestReadersOfAServerThatRefusesDescriptionsAreAnswered: senders repeat what their metrics mean every minute, and a server with a full disk refuses that
// too; queries were not made for up to 2 s after it.
func TestReadersOfAServerThatRefusesDescriptionsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := &conn{id: "n1", addr: "a:1", peer: &far{addr: "a:1", net: n}, metrics: newMetrics(nil, &Peers{})}
		calls := map[string]func() error{
			"a description": func() error { return c.PutMetadata(t.Context(), "t", nil) },
			"a deletion":    func() error { return c.DeleteSeries(t.Context(), &peer.Select{}) },
			"an end":        func() error { return c.EndSlices(t.Context(), "t", 1, 2) },
			"a rank":        func() error { _, err := c.HighestRank(t.Context(), "t", 1); return err },
		}
		for what, call := range calls {
			n.refused = peer.Answer(fault.Errorf(fault.Unavailable, "the store is read-only"))
			for range 10 * failuresMax {
				if err := call(); !fault.Is(err, fault.Unavailable) || err.Error() != "server n1: the store is read-only" {
					t.Fatalf("%s: %v", what, err)
				}
			}
			if _, err := c.GetMetadata(t.Context(), "t", ""); err != nil {
				t.Errorf("a read after refusals of %s: %v", what, err)
			}

			// One without an answer does rest the server.
			n.refused = fault.Errorf(fault.Unavailable, "the connection is refused")
			for range failuresMax {
				_ = call()
			}
			if _, err := c.GetMetadata(t.Context(), "t", ""); !fault.Is(err, fault.Unavailable) {
				t.Errorf("a read after %s without an answer: %v", what, err)
			}
			time.Sleep(pauseMax)
			if _, err := c.GetMetadata(t.Context(), "t", ""); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func (f *far) OpenSnapshot(context.Context, string, point.PartitionID) (peer.Snapshot, error) {
	return nil, fault.Errorf(fault.Unavailable, "no snapshots here")
}

// StagedFrames has one.
func (f *far) StagedFrames(_ context.Context, _ string, give func([]byte) error) error {
	return give([]byte("a frame"))
}

// TestReadersAreAnsweredWhileTheBucketOfABackupIsAway: a backup reads staged rows of a server and writes them to a bucket. An error of the bucket counted as an error of
// the server, and named it.
func TestReadersAreAnsweredWhileTheBucketOfABackupIsAway(t *testing.T) {
	n := newNetwork()
	c := &conn{id: "n1", addr: "a:1", peer: &far{addr: "a:1", net: n}, metrics: newMetrics(nil, &Peers{})}
	away := fault.Errorf(fault.Unavailable, "the bucket is away")
	for range 10 * failuresMax {
		if err := c.StagedFrames(t.Context(), "t", func([]byte) error { return away }); !errors.Is(err, away) || err.Error() != away.Error() {
			t.Fatal(err)
		}
	}
	if _, err := c.GetMetadata(t.Context(), "t", ""); err != nil {
		t.Errorf("a read: %v", err)
	}
}

// TestASlowServerStaysReadableAfterARequestRanOutOfTime: many inserts of one request end at its deadline. Calls that begin later, and fail too, do close the door.
func TestASlowServerStaysReadableAfterARequestRanOutOfTime(t *testing.T) {
	var b breaker
	began := time.Unix(1000, 0)
	late := fault.Wrap(context.DeadlineExceeded, fault.Unavailable, "no answer in time")
	ended := began.Add(5 * time.Second)
	for range 10 {
		b.leave(began, ended, late, 0.9)
	}
	if err := b.enter(ended); err != nil {
		t.Errorf("after one request: %v", err)
	}
	for range failuresMax - 1 {
		began, ended = ended, ended.Add(5*time.Second)
		b.leave(began, ended, late, 0.9)
	}
	if err := b.enter(ended); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after as many as may fail: %v", err)
	}
}

// TestOneCallLooksWhetherAServerIsBack: the others fail at once meanwhile.
func TestOneCallLooksWhetherAServerIsBack(t *testing.T) {
	var b breaker
	now := time.Unix(1000, 0)
	away := fault.Errorf(fault.Unavailable, "away")
	for range failuresMax {
		if err := b.enter(now); err != nil {
			t.Fatal(err)
		}
		b.leave(now, now, away, 0.9)
	}
	now = now.Add(pauseMin)
	if err := b.enter(now); err != nil {
		t.Fatal(err)
	}
	if err := b.enter(now); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a second call while one looks: %v", err)
	}
	b.leave(now, now, nil, 0)
	for range 2 {
		if err := b.enter(now); err != nil {
			t.Error(err)
		}
	}
}

// TestAServerThatMovedIsNotReachedByItsOldConnection: a process that was restarted with a wrong address still answers at the old one, and counted as reached at
// the new one.
func TestAServerThatMovedIsNotReachedByItsOldConnection(t *testing.T) {
	store, n := mem.New(), newNetwork()
	register(t, store, "n1", "a:1")
	view, err := registry.Open(t.Context(), store, slog.New(slog.DiscardHandler), rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	p := Open(Deps{Servers: view, Dial: n.dial, Log: slog.New(slog.DiscardHandler)}, Settings{})
	if who, err := p.Self(t.Context(), "n1", "a:1"); err != nil || who.Server != "a:1" {
		t.Errorf("%+v %v", who, err)
	}
	if who, err := p.Self(t.Context(), "n1", "b:1"); !fault.Is(err, fault.NotFound) {
		t.Errorf("by the connection to a:1: %+v %v", who, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
