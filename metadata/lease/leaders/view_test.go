package leaders_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// cutOff is a store that can be cut off.
type cutOff struct {
	coord.Store
	away atomic.Bool
	late atomic.Pointer[chan struct{}]           // the watch brings nothing until it is closed; nil: it is not late
	stop atomic.Pointer[context.CancelCauseFunc] // of the watch under way
}

var errAway = fault.Errorf(fault.Unavailable, "the store is away")

func (c *cutOff) take() {
	c.away.Store(true)
	if stop := c.stop.Load(); stop != nil {
		(*stop)(errAway)
	}
}

func (c *cutOff) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if c.away.Load() {
		return nil, 0, errAway
	}
	return c.Store.List(ctx, prefix)
}

func (c *cutOff) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	if c.away.Load() {
		return errAway
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.stop.Store(&stop)
	return c.Store.Watch(ctx, prefix, after, func(events []coord.Event) error {
		if late := c.late.Load(); late != nil {
			<-*late
		}
		return f(events)
	})
}

// world is a store with heartbeats, and a view that follows it.
type world struct {
	t     *testing.T
	store *cutOff
	view  *leaders.View
	beats map[topology.ServerID]uint64
}

func inWorld(t *testing.T, story func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, store: &cutOff{Store: mem.New()}, beats: map[topology.ServerID]uint64{}}
		var err error
		w.view, err = leaders.Open(t.Context(), leaders.Deps{Store: w.store, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2))}, leaders.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.view.Run(ctx) }()
		synctest.Wait()
		story(w)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (w *world) write(key string, value []byte) {
	w.t.Helper()
	if _, ok, err := w.store.Commit(w.t.Context(), nil, []coord.Write{{Key: key, Value: value, Delete: value == nil}}); err != nil || !ok {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) beat(servers ...topology.ServerID) {
	w.t.Helper()
	for _, s := range servers {
		w.beats[s]++
		w.write(lease.BeatKey(s), lease.Beat{Server: s, Boot: "b1", Store: "d1", N: w.beats[s]}.Encode())
	}
}

// pass lets time pass, a second at a time, while these servers beat.
func (w *world) pass(seconds int, servers ...topology.ServerID) {
	w.t.Helper()
	for range seconds {
		time.Sleep(time.Second)
		w.beat(servers...)
	}
	synctest.Wait()
}

func (w *world) live(want string) {
	w.t.Helper()
	var got []string
	for _, s := range []topology.ServerID{"n1", "n2", "n3"} {
		if w.view.Live(s) {
			got = append(got, string(s))
		}
	}
	if s := strings.Join(got, " "); s != want {
		w.t.Errorf("live: %q, want %q", s, want)
	}
}

var seven = &topology.Partition{ID: 7, Placements: []topology.Placement{{ID: 1, Server: "n1"}, {ID: 2, Server: "n2"}, {ID: 3, Server: "n3"}}}

func (w *world) put(l lease.Lease) {
	w.t.Helper()
	w.write(lease.RowKey(lease.Partition{Table: "t", ID: 7}), l.Encode())
}

// finds checks the server that is to be asked, or a part of the reason.
func (w *world) finds(want string) {
	w.t.Helper()
	lead, err := w.view.Find("t", seven, 0)
	if err != nil {
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "t/7") {
			w.t.Errorf("%v, want an Unavailable about t/7 that says %q", err, want)
		}
		return
	}
	if string(lead.Server) != want {
		w.t.Errorf("%s is asked, want %q", lead.Server, want)
	}
}

func TestALeaseMovesFromServerToServer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.beat("n1", "n2")
		w.finds("n1") // a guess
		changed := w.view.Changed()
		w.put(lease.Lease{State: lease.Held, Holder: "n2", Boot: "b1", Epoch: 4})
		<-changed
		w.finds("n2")
		if s, epoch, ok := w.view.Leader(lease.Partition{Table: "t", ID: 7}); s != "n2" || epoch != 4 || !ok {
			t.Errorf("leader %s at %d: %v", s, epoch, ok)
		}
		w.put(lease.Lease{State: lease.Free, Holder: "n2", Boot: "b1", Epoch: 4})
		w.finds("n2 let it go")
		if _, _, ok := w.view.Leader(lease.Partition{Table: "t", ID: 7}); ok {
			t.Error("a free row has a leader")
		}
		w.put(lease.Lease{State: lease.Held, Holder: "n3", Boot: "b9", Epoch: 6})
		w.finds("n3")
		w.put(lease.Lease{State: lease.Free, Holder: "n3", Epoch: 6}.TakenOffline(lease.Note{Who: "ada", When: time.Unix(0, 0), Reason: "bad disk"}))
		w.finds("taken offline by ada at 1970-01-01T00:00:00Z: bad disk")
		w.write(lease.RowKey(lease.Partition{Table: "t", ID: 7}), []byte("{"))
		w.finds("cannot be read")
		w.write(lease.RowKey(lease.Partition{Table: "t", ID: 7}), nil)
		w.finds("n1")
	})
}

func TestGuessesGoToTheLivingByTurns(t *testing.T) {
	inWorld(t, func(w *world) {
		asked := func(want string) {
			t.Helper()
			var got []string
			for try := range 4 {
				lead, err := w.view.Find("t", seven, try)
				if err != nil || !lead.Guess {
					t.Fatalf("%+v %v", lead, err)
				}
				got = append(got, string(lead.Server))
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("asked %s, want %s", s, want)
			}
		}
		asked("n1 n2 n3 n1") // no heartbeat was seen yet
		w.beat("n1", "n2", "n3")
		w.pass(5, "n2", "n3")
		asked("n2 n3 n2 n3")
		w.beat("x")
		w.pass(5, "x")
		w.finds("none shows a heartbeat")
	})
}

func TestServersAreDeadOnlyWhileTheStoreAnswers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.beat("n1", "n2")
		w.pass(3, "n1")
		w.live("n1 n2")
		w.pass(2, "n1")
		w.live("n1")
		w.pass(6) // nothing is written: the view has to ask by itself
		w.live("")
		w.beat("n1", "n2", "n3")
		w.live("n1 n2 n3")

		w.store.take()
		time.Sleep(10 * time.Minute)
		w.live("n1 n2 n3")
		w.finds("n1")
		if age := w.view.Age(); age < 9*time.Minute {
			t.Errorf("what is known is said to be %v old", age)
		}
		w.store.away.Store(false)
		w.pass(1) // listed again, with the rows as they were
		w.live("n1 n2 n3")
		w.pass(5, "n3")
		w.live("n3")
	})
}

func TestARestartAndAComebackAreChanges(t *testing.T) {
	inWorld(t, func(w *world) {
		f := func(what string, want bool, do func()) {
			t.Helper()
			changed := w.view.Changed()
			do()
			synctest.Wait()
			select {
			case <-changed:
				if !want {
					t.Errorf("%s is a change", what)
				}
			default:
				if want {
					t.Errorf("%s is no change", what)
				}
			}
		}
		f("a first heartbeat", true, func() { w.beat("n1") })
		f("the next", false, func() { w.beat("n1") })
		f("another boot", true, func() { w.write(lease.BeatKey("n1"), lease.Beat{Server: "n1", Boot: "b2", Store: "d1", N: 1}.Encode()) })
		w.pass(6, "n2")
		w.live("n2")
		f("a comeback", true, func() { w.write(lease.BeatKey("n1"), lease.Beat{Server: "n1", Boot: "b2", Store: "d1", N: 2}.Encode()) })
		f("a row gone", false, func() { w.write(lease.BeatKey("n1"), nil) })
		w.live("n2")
		f("one in its place", false, func() { w.write(lease.BeatKey("n1"), lease.Beat{Server: "n1", Boot: "none", Missing: true}.Encode()) })
		w.live("n2")
	})
}

func TestOpenSaysThatTheStoreIsAway(t *testing.T) {
	s := &cutOff{Store: mem.New()}
	s.take()
	_, err := leaders.Open(t.Context(), leaders.Deps{Store: s, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2))}, leaders.Settings{})
	if !errors.Is(err, errAway) || !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
}

// TestTheViewCatchesUpWithTheStore: reads of the store are answered while the watch is late, so that the view's age says nothing about rows.
func TestTheViewCatchesUpWithTheStore(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		write := func(key string) {
			t.Helper()
			if _, ok, err := w.store.Commit(w.t.Context(), nil, []coord.Write{{Key: key, Value: []byte(`{}`)}}); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
		p := lease.Partition{Table: "t", ID: 7}
		write(lease.RowKey(p))
		if err := w.view.CaughtUp(w.t.Context()); err != nil || w.view.NeverLed(p) {
			t.Errorf("%v; never led: %t", err, w.view.NeverLed(p))
		}

		late := make(chan struct{})
		w.store.late.Store(&late)
		q := lease.Partition{Table: "t", ID: 8}
		write(lease.RowKey(q))
		began := time.Now()
		if err := w.view.CaughtUp(w.t.Context()); !fault.Is(err, fault.Unavailable) || time.Since(began) > 2*time.Second {
			t.Errorf("the watch is late: %v after %v", err, time.Since(began))
		}
		caught := make(chan error, 2)
		for range 2 {
			go func() { caught <- w.view.CaughtUp(w.t.Context()) }()
		}
		time.Sleep(time.Second)
		w.store.late.Store(nil)
		close(late)
		for range 2 {
			if err := <-caught; err != nil || w.view.NeverLed(q) {
				t.Errorf("the watch goes on: %v; never led: %t", err, w.view.NeverLed(q))
			}
		}

		write("tables/t") // a change of others: the next heartbeat shows that nothing came before
		go func() {
			time.Sleep(500 * time.Millisecond)
			write(lease.BeatKey("s1"))
		}()
		if err := w.view.CaughtUp(w.t.Context()); err != nil {
			t.Error(err)
		}
		w.store.take()
		if err := w.view.CaughtUp(w.t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("the store is away: %v", err)
		}
	})
}

// TestTheMarkOfNoRowsStandsForALeaderThatWasSeen: not for one that was not seen since the coordination store was restored, nor of an older map: the keys may be another's by now.
func TestTheMarkOfNoRowsStandsForALeaderThatWasSeen(t *testing.T) {
	inWorld(t, func(w *world) {
		f := func(what string, want bool, l lease.Lease) {
			w.t.Helper()
			w.put(l)
			if err := w.view.CaughtUp(w.t.Context()); err != nil {
				w.t.Error(err)
			}
			if got := w.view.HasNoRows(lease.Partition{Table: "t", ID: 7}, 3); got != want {
				w.t.Errorf("%s: %t", what, got)
			}
		}
		l := lease.Lease{State: lease.Held, Holder: "n2", Boot: "b1", Epoch: 4, Empty: true}
		f("of its server there is no heartbeat", false, l)
		w.beat("n2")
		f("its heartbeat is as old as the view", false, l)
		w.beat("n2")
		f("it was renewed", true, l)
		w.pass(5, "n1")
		f("it is dead", true, l)
		f("the map of transaction 3 changed it", true, l.Barring(3))
		f("a newer one did", false, l.Barring(4))
		f("taken offline", false, l.TakenOffline(lease.Note{Who: "ada", Reason: "bad disk"}))
		had := l
		had.Empty = false
		f("it had a row", false, had)
		w.write(lease.BeatKey("n2"), lease.Beat{Server: "n2", Boot: "b2", Store: "d1", N: 1}.Encode())
		f("it is of an earlier boot", false, l)
	})
}

// TestTheMarkOfNoRowsOfARestoredStoreDoesNotStandForALeaderSeenBefore: this process ran all the while, and saw its heartbeats. Rows were acked behind the backup.
func TestTheMarkOfNoRowsOfARestoredStoreDoesNotStandForALeaderSeenBefore(t *testing.T) {
	for _, behind := range []bool{false, true} {
		inWorld(t, func(w *world) {
			none := func() bool {
				w.t.Helper()
				if err := w.view.CaughtUp(w.t.Context()); err != nil {
					w.t.Error(err)
				}
				return w.view.HasNoRows(lease.Partition{Table: "t", ID: 7}, 3)
			}
			l := lease.Lease{State: lease.Held, Holder: "n2", Boot: "b1", Epoch: 4, Empty: true}
			w.put(l)
			w.pass(2, "n1", "n2")
			if !none() {
				t.Error("before the backup it has rows")
			}
			if behind { // this process is cut off from the old store
				w.store.take()
				w.pass(2, "n1", "n2")
			}
			rows, rev, err := w.store.Store.List(w.t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			l.Empty = false
			w.put(l)
			w.pass(2, "n1", "n2")
			// etcdutl --bump-revision --mark-compacted: rows keep their revisions, that of the store goes on, and watchers list.
			w.store.take()
			synctest.Wait()
			w.store.Store = coord.NewRows(rows, rev+1e6, nil)
			w.store.away.Store(false)
			w.pass(3, "n1")
			if none() {
				t.Errorf("by a mark of the backup it has no rows, seen up to the backup alone: %t", behind)
			}
		})
	}
}
