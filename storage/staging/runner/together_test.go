package runner

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/deliver"
	"github.com/spillwaydb/spillway/storage/staging"
)

// together is a cluster whose servers note what goes together, and refuse what the test says.
type together struct {
	leaderless
	refuse func(*peer.Insert) error

	calls   [][]peer.Insert // of rows, that were accepted; guarded by mu, as are the others
	forgets [][]staging.ID  // of forgets, at b
}

// Server implements Ways.
func (l *together) Server(topology.ServerID) (peer.Storage, bool) { return togetherStorage{l: l}, true }

type togetherStorage struct {
	peer.Storage
	l *together
}

func (s togetherStorage) OpenStream(context.Context, string) (peer.Stream, error) {
	return togetherStream(s), nil
}

type togetherStream struct {
	peer.Storage
	l *together
}

// Define implements peer.Stream, as do the others.
func (s togetherStream) Define(context.Context, []peer.Def) error { return nil }

func (s togetherStream) Close() error { return nil }

func (s togetherStream) Insert(ctx context.Context, in *peer.Insert) error {
	return s.InsertTogether(ctx, []*peer.Insert{in})
}

// InsertTogether implements peer.Together.
func (s togetherStream) InsertTogether(_ context.Context, all []*peer.Insert) error {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if err := peer.CheckTogether(all); err != nil {
		return err
	}
	var call []peer.Insert
	var ids []staging.ID
	for _, in := range all {
		if s.l.refuse != nil {
			if err := s.l.refuse(in); err != nil {
				return err
			}
		}
		call, ids = append(call, peer.Insert{Partition: in.Partition, Stamp: in.Stamp}), append(ids, staging.ID{Stamp: in.Stamp, Nonce: in.Staging.Nonce})
	}
	if all[0].Staging.Do == peer.Forget {
		s.l.forgets = append(s.l.forgets, ids)
	} else {
		s.l.calls = append(s.l.calls, call)
	}
	return nil
}

func (l *together) refusing(f func(*peer.Insert) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = f
}

// smearedFrame is a frame of one row that was due a second ago, in the first or the second hour.
func smearedFrame(n int) Staged {
	_, of, f := row("t", n)
	of.Due = time.Now().Add(-time.Second).UnixNano()
	f.Times[0] = point.Nanos(n%2) * point.Nanos(time.Hour)
	return Staged{of, f}
}

func smearedFrames(n int) (all []Staged) {
	for i := range n {
		all = append(all, smearedFrame(i+1))
	}
	return all
}

// run runs a store; the function it returns ends that.
func (h *house) run(s *Store) (end func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return func() {
		h.t.Helper()
		cancel()
		h.must(<-ended)
	}
}

// TestFramesThatAreDueAtOnceGoToEachLeaderInOneCall, are forgotten by one record, and the other holder is notified of all at once.
func TestFramesThatAreDueAtOnceGoToEachLeaderInOneCall(t *testing.T) {
	h := newHouse(t)
	l := &together{leaderless: leaderless{m: hours(t, 2)}}
	s := h.open(staging.Settings{GatherFor: staging.GatherFor})
	s.deps.Ways, s.out = l, deliver.New(l)
	const n = 40
	h.must(s.StageAll(t.Context(), "t", 1, smearedFrames(n)))
	if got := s.journal.mu.written; got != 1 {
		t.Errorf("%d writes to the log for frames that are staged together", got)
	}
	end := h.run(s)
	h.await("all are forwarded, and the other holder is notified", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.forgets) > 0
	})
	end()
	h.want(s, "t")
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := s.journal.mu.written; got != 2 {
		t.Errorf("%d writes to the log, want one to stage and one to forget", got)
	}
	if len(l.calls) != 2 || len(l.calls[0]) != n/2 || len(l.calls[1]) != n/2 {
		t.Errorf("%d calls to leaders: %v", len(l.calls), l.calls)
	}
	if len(l.forgets) != 1 || len(l.forgets[0]) != n {
		t.Errorf("the other holder is notified by %d calls: %v", len(l.forgets), l.forgets)
	}
}

// TestAFrameWhoseLeaderIsAwayKeepsBackNoOther that is due at the same moment: those go, and it goes once its leader is back.
func TestAFrameWhoseLeaderIsAwayKeepsBackNoOther(t *testing.T) {
	h := newHouse(t)
	l := &together{leaderless: leaderless{m: hours(t, 2)}}
	first, _ := l.m.Find(0, 0)
	l.refuse = func(in *peer.Insert) error {
		if in.Staging.Do == peer.Forward && in.Partition == first.ID {
			return fault.Errorf(fault.Unavailable, "away")
		}
		return nil
	}
	s := h.open(staging.Settings{GatherFor: staging.GatherFor})
	s.deps.Ways, s.out = l, deliver.New(l)
	h.must(s.StageAll(t.Context(), "t", 1, smearedFrames(6)))
	end := h.run(s)
	defer end()
	h.await("those of the other leader are gone", func() bool { return slices.Equal(h.values(s, "t"), []float64{2, 4, 6}) })
	l.refusing(nil)
	h.await("all are gone", func() bool { return len(h.values(s, "t")) == 0 })
}

// TestAFrameThatIsRefusedForGoodIsSetAsideAlone: the others that went with it are forwarded.
func TestAFrameThatIsRefusedForGoodIsSetAsideAlone(t *testing.T) {
	h := newHouse(t)
	l := &together{leaderless: leaderless{m: hours(t, 2)}}
	l.refuse = func(in *peer.Insert) error {
		if in.Staging.Do == peer.Forward && in.Stamp == idOf(3).Stamp {
			return fault.Errorf(fault.Invalid, "never")
		}
		return nil
	}
	s := h.open(staging.Settings{GatherFor: staging.GatherFor})
	s.deps.Ways, s.out = l, deliver.New(l)
	h.must(s.StageAll(t.Context(), "t", 1, smearedFrames(6)))
	end := h.run(s)
	h.await("none is left", func() bool { return len(h.values(s, "t")) == 0 })
	end()
	got := map[point.Stamp]bool{}
	for _, call := range l.calls {
		for _, in := range call {
			got[in.Stamp] = true
		}
	}
	for n := 1; n <= 6; n++ {
		if id := idOf(n); got[id.Stamp] == (n == 3) {
			t.Errorf("frame %d is forwarded: %t", n, got[id.Stamp])
		}
	}
	names, err := h.fs.List("staging")
	h.must(err)
	if aside := slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, asideSuffix) }); len(aside) != 1 {
		t.Errorf("set aside are %v", aside)
	}
}

// TestFramesThatAreStagedTogetherSurviveAPowerCut, all of them, as do those that are not forgotten of some.
func TestFramesThatAreStagedTogetherSurviveAPowerCut(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{})
	h.must(s.StageAll(t.Context(), "t", 1, smearedFrames(5)))
	h.must(s.StageAll(t.Context(), "t", 1, smearedFrames(5))) // once more, as after a lost ack
	h.want(s, "t", 1, 2, 3, 4, 5)
	cut := h.fs.CrashClone(vfs.CrashCloneCfg{})
	h.want(h.openOn(cut, staging.Settings{}), "t", 1, 2, 3, 4, 5)
	h.must(s.Forget(idOf(2), idOf(9), idOf(4), idOf(2)))
	h.want(s, "t", 1, 3, 5)
	h.must(s.settle())
	cut = h.fs.CrashClone(vfs.CrashCloneCfg{})
	h.want(h.openOn(cut, staging.Settings{}), "t", 1, 3, 5)
	h.must(s.Forget(idOf(1), idOf(3), idOf(5)))
	h.must(s.Forget())
	h.must(s.Close())
	h.want(h.open(staging.Settings{}), "t")
}

// TestOfFramesThatAreStagedTogetherNoneIsHeldIfOneIsRefused, and later ones have the room that they would have used.
func TestOfFramesThatAreStagedTogetherNoneIsHeldIfOneIsRefused(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{BytesMax: 2000})
	f := func(why string, kind fault.Kind, all []Staged) {
		t.Helper()
		if err := s.StageAll(t.Context(), "t", 1, all); !fault.Is(err, kind) {
			t.Errorf("%s: %v", why, err)
		}
		h.want(s, "t")
		if s.mu.machine.Len() != 0 || len(s.mu.pending) != 0 {
			t.Errorf("%s: %d frames are still counted, %v are pending", why, s.mu.machine.Len(), s.mu.pending)
		}
	}
	f("too many bytes for the room", fault.Unavailable, smearedFrames(20))
	undefined := smearedFrame(2)
	undefined.Frame.IDs = []point.DenseID{7}
	f("one names a series that it does not define", fault.Invalid, []Staged{smearedFrame(1), undefined})
	nameless := smearedFrame(2)
	nameless.Of.Holders = nil
	f("one has no holders", fault.Invalid, []Staged{smearedFrame(1), nameless})
	f("one comes twice", fault.Unavailable, []Staged{smearedFrame(1), smearedFrame(1)})
	h.deaf = fault.Errorf(fault.Unavailable, "the coordination store is away")
	f("the table cannot be announced", fault.Unavailable, smearedFrames(2))
	h.deaf = nil
	h.must(s.StageAll(t.Context(), "t", 1, smearedFrames(2)))
	h.want(s, "t", 1, 2)
}

// TestManyWritersStageAndForgetTogether: every frame is held until it is forgotten, and then not, whoever else writes to the log.
func TestManyWritersStageAndForgetTogether(t *testing.T) {
	h := newHouse(t)
	s := h.open(staging.Settings{BytesMax: 1 << 20})
	var all sync.WaitGroup
	const writers, each = 8, 24
	for w := range writers {
		all.Go(func() {
			var some []Staged
			var gone []staging.ID
			for i := range each {
				n := w*each + i + 1
				some = append(some, smearedFrame(n))
				if i%3 > 0 {
					gone = append(gone, idOf(n))
				}
			}
			for part := range slices.Chunk(some, 5) {
				h.must(s.StageAll(t.Context(), "t", 1, part))
			}
			h.must(s.Forget(gone...))
		})
	}
	all.Wait()
	var want []float64
	for n := range writers * each {
		if n%each%3 == 0 {
			want = append(want, float64(n+1))
		}
	}
	h.want(s, "t", want...)
	h.must(s.Close())
	s = h.open(staging.Settings{BytesMax: 1 << 20})
	h.want(s, "t", want...)
	if lo, hi := s.Times("t"); lo == math.MaxInt64 || hi < lo {
		t.Errorf("times %d to %d", lo, hi)
	}
	live := 0
	for _, f := range s.journal.mu.files {
		live += f.live
	}
	if live != len(want) {
		t.Errorf("files count %d frames, %d are held", live, len(want))
	}
}
