package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// disk is a store directory and a process on it.
type disk struct {
	saved registry.Lives
	registry.Directory
}

var names int

func start(saved registry.Lives) *disk {
	d := &disk{saved: saved}
	d.Directory = registry.Directory{Server: "s1", Store: "d1", Lives: saved, Save: func(l registry.Lives) error { d.saved = l; return nil },
		Name: func() string { names++; return fmt.Sprint(names) }}
	return d
}

// unanswered commits, and gives no answer.
type unanswered struct{ coord.Store }

func (u unanswered) Commit(ctx context.Context, conditions []coord.Condition, writes []coord.Write) (coord.Revision, bool, error) {
	if _, _, err := u.Store.Commit(ctx, conditions, writes); err != nil {
		return 0, false, err
	}
	return 0, false, fault.Errorf(fault.Unavailable, "no answer")
}

func TestAnOlderCopyOfADirectoryIsRefused(t *testing.T) {
	store, ctx := mem.New(), t.Context()
	begins := func(d *disk) {
		t.Helper()
		if begun, err := registry.Begin(ctx, store, &d.Directory); err != nil || !begun {
			t.Fatal(begun, err)
		}
	}
	refused := func(d *disk) {
		t.Helper()
		_, err := registry.Begin(ctx, store, &d.Directory)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "older copy of the store") || !strings.Contains(err.Error(), "--replace-store") {
			t.Fatalf("begun, or without what to do: %v", err)
		}
		if err := registry.Newest(ctx, store, &d.Directory); !fault.Is(err, fault.Invalid) {
			t.Errorf("the newest, where one that reads only looks: %v", err)
		}
	}
	row := func() (s registry.Server) {
		t.Helper()
		r, _, err := store.Get(ctx, registry.Key("s1"))
		if err == nil {
			s, err = registry.Decode(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}

	first := start(registry.Lives{})
	if begun, err := registry.Begin(ctx, store, &first.Directory); begun || err != nil {
		t.Fatal("begun without a row", begun, err)
	}
	if err := registry.Register(ctx, store, s1, false, nil); err != nil {
		t.Fatal(err)
	}
	begins(first)
	old := first.saved // copied while it runs
	begins(first)
	if err := first.Superseded(row()); err != nil {
		t.Error("by itself:", err)
	}
	refused(start(old))

	// The process ends. Of two copies of its directory the first that starts goes on, whichever it is.
	copied := start(first.saved)
	begins(copied)
	if err := first.Superseded(row()); !fault.Is(err, fault.Invalid) {
		t.Error("goes on though another process began a life:", err)
	}
	refused(first)
	refused(start(first.saved))
	after := start(copied.saved) // the same directory, started again
	begins(after)

	// A commit came true without an answer, and the process was killed before it saw that.
	again := start(after.saved)
	if _, err := registry.Begin(ctx, unanswered{store}, &again.Directory); err == nil {
		t.Fatal("begun without an answer")
	}
	begins(start(again.saved))

	// A build from before lives wrote the row: nothing is known. A coordination store that was restored is older than the directory.
	last := start(registry.Lives{Known: registry.Life{N: 100, Name: "x"}})
	begins(last)
	s := row()
	s.Life = registry.Life{}
	if err := registry.Change(ctx, store, "s1", func(r *registry.Server) { r.Life = s.Life }); err != nil {
		t.Fatal(err)
	}
	begins(start(old))

	// Persons may accept an older one. One in another directory that has the name supersedes it.
	loss := start(registry.Lives{Known: registry.Life{N: 1, Name: "y"}})
	refused(loss)
	loss.Older = true
	begins(loss)
	other := s1
	other.Store = "d2"
	if err := registry.Register(ctx, store, other, true, nil); err != nil {
		t.Fatal(err)
	}
	if begun, err := registry.Begin(ctx, store, &loss.Directory); begun || err != nil {
		t.Error("begins a life in the row of another directory", begun, err)
	}
	empty := start(registry.Lives{})
	empty.Store = "d2"
	if err := registry.Newest(ctx, store, &loss.Directory); err != nil {
		t.Error(err)
	}
	empty.Older = true // --replace-store
	begins(empty)
	if err := loss.Superseded(row()); !fault.Is(err, fault.Invalid) {
		t.Error("goes on though another directory has its name:", err)
	}
	next := start(empty.saved)
	next.Store = empty.Store
	begins(next)
}

// TestLivesThatGotNoAnswerAreRecognized: each of the last commits can be the one that came true.
func TestLivesThatGotNoAnswerAreRecognized(t *testing.T) {
	l := registry.Lives{Known: registry.Life{N: 3, Name: "c"}}
	var tried []registry.Life
	for i := range 5 {
		var next registry.Life
		if l, next = l.Next(registry.Life{N: 3, Name: "c"}, fmt.Sprint("t", i)); next.N != uint64(4+i) {
			t.Errorf("%d is tried after %d others", next.N, i)
		}
		tried = append(tried, next)
	}
	for _, row := range tried {
		if got, newest := l.After(row); !newest || got.Known != row || len(got.Tried) > 0 {
			t.Errorf("%+v: %+v %t", row, got, newest)
		}
	}
	for _, row := range []registry.Life{{N: 3, Name: "z"}, {N: 5, Name: "c"}, {N: 9, Name: "t4"}} {
		if _, newest := l.After(row); newest {
			t.Errorf("%+v is no life of the directory", row)
		}
	}
	for _, row := range []registry.Life{{}, {N: 3, Name: "c"}, {N: 2, Name: "z"}} {
		if got, newest := l.After(row); !newest || len(got.Tried) != 5 {
			t.Errorf("%+v shows nothing that is newer", row)
		}
	}
	for range 100 {
		l, _ = l.Next(registry.Life{}, "x")
	}
	if len(l.Tried) > 8 {
		t.Errorf("%d are kept", len(l.Tried))
	}
}

func TestAProcessThatRunsIsNotJoinedByASecond(t *testing.T) {
	beat := func(t *testing.T, store coord.Store, rev coord.Revision, b lease.Beat) coord.Revision {
		t.Helper()
		b.Server, b.Store = "s1", "d1"
		rev, ok, err := store.Commit(t.Context(), []coord.Condition{{Key: lease.BeatKey("s1"), Revision: rev}}, []coord.Write{{Key: lease.BeatKey("s1"), Value: b.Encode()}})
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		return rev
	}
	wait := func(t *testing.T, store coord.Store) (time.Duration, error) {
		began := time.Now()
		err := registry.AwaitSilence(t.Context(), store, s1, 4*time.Second)
		return time.Since(began), err
	}
	synctest.Test(t, func(t *testing.T) {
		store := mem.New()
		if d, err := wait(t, store); err != nil || d > 0 {
			t.Errorf("none ever ran: %v %v", d, err)
		}
		rev := beat(t, store, 0, lease.Beat{Boot: "b1", N: 1})
		if d, err := wait(t, store); err != nil || d < 4*time.Second || d > 5*time.Second {
			t.Errorf("it was killed: %v %v", d, err)
		}
		// Its last renewal comes late.
		renewed := make(chan struct{})
		go func() {
			time.Sleep(time.Second)
			rev = beat(t, store, rev, lease.Beat{Boot: "b1", N: 2})
			close(renewed)
		}()
		if d, err := wait(t, store); err != nil || d < 5*time.Second || d > 6*time.Second {
			t.Errorf("it was killed a moment ago: %v %v", d, err)
		}
		<-renewed
		lives := make(chan struct{})
		go func() {
			defer close(lives)
			for n := range uint64(3) {
				time.Sleep(time.Second)
				rev = beat(t, store, rev, lease.Beat{Boot: "b1", N: 3 + n})
			}
		}()
		if d, err := wait(t, store); !fault.Is(err, fault.Unavailable) || !errors.Is(err, registry.ErrRuns) || d > 3*time.Second || !strings.Contains(err.Error(), s1.Addr) {
			t.Errorf("it runs: %v %v", d, err)
		}
		<-lives
		beat(t, store, rev, lease.Beat{Missing: true, Boot: "m"})
		if d, err := wait(t, store); err != nil || d > 0 {
			t.Errorf("its row was written by others: %v %v", d, err)
		}
	})
}
