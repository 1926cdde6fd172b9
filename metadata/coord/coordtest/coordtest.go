// Package coordtest is the conformance suite of coordination stores: the rules of every coord.Store.
package coordtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Run runs the suite; open gives an empty store each time.
func Run(t *testing.T, open func(t *testing.T) coord.Store) {
	for name, f := range map[string]func(*testing.T, coord.Store){
		"a row is what was last put":                     rowIsWhatWasPut,
		"conditions decide all or nothing":               conditionsDecide,
		"of many that create one row one wins":           oneCreatorWins,
		"a counter raised by CAS loses nothing":          counterLosesNothing,
		"a watch sees every change in order":             watchSeesAll,
		"a watch ends with its context":                  watchEnds,
		"a watch from too long ago has to list":          watchCompacted,
		"a closed store answers Unavailable":             closedAnswers,
		"values belong to the reader":                    valuesAreCopies,
		"a list is in key order and keeps to its prefix": listKeepsToPrefix,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			defer s.Close()
			f(t, s)
		})
	}
}

func mustCommit(t *testing.T, s coord.Store, writes ...coord.Write) coord.Revision {
	t.Helper()
	rev, ok, err := s.Commit(t.Context(), nil, writes)
	if err != nil || !ok {
		t.Fatalf("commit: %v %v", ok, err)
	}
	return rev
}

func rowIsWhatWasPut(t *testing.T, s coord.Store) {
	if _, ok, err := s.Get(t.Context(), "a"); ok || err != nil {
		t.Fatalf("a row that was never put: %v %v", ok, err)
	}
	r1 := mustCommit(t, s, coord.Write{Key: "a", Value: []byte("1")})
	r2 := mustCommit(t, s, coord.Write{Key: "a", Value: []byte("2")}, coord.Write{Key: "b", Value: nil})
	row, ok, err := s.Get(t.Context(), "a")
	if err != nil || !ok || string(row.Value) != "2" || row.Revision != r2 || r2 <= r1 {
		t.Fatalf("got %+v %v %v, revisions %d %d", row, ok, err, r1, r2)
	}
	if row, ok, _ := s.Get(t.Context(), "b"); !ok || len(row.Value) != 0 {
		t.Fatalf("an empty value is a row too: %+v %v", row, ok)
	}
	mustCommit(t, s, coord.Write{Key: "a", Delete: true})
	if _, ok, _ := s.Get(t.Context(), "a"); ok {
		t.Fatal("the row was deleted")
	}
}

func conditionsDecide(t *testing.T, s coord.Store) {
	rev := mustCommit(t, s, coord.Write{Key: "a", Value: []byte("1")})
	_, ok, err := s.Commit(t.Context(), []coord.Condition{{Key: "a", Revision: rev}, {Key: "b", Revision: rev}},
		[]coord.Write{{Key: "a", Value: []byte("x")}, {Key: "c", Value: []byte("x")}})
	if ok || err != nil {
		t.Fatalf("b does not exist: %v %v", ok, err)
	}
	if _, ok, _ := s.Get(t.Context(), "c"); ok {
		t.Fatal("half of a refused transaction was written")
	}
	if _, ok, _ = s.Commit(t.Context(), []coord.Condition{{Key: "a", Revision: rev}, {Key: "b", Revision: 0}}, []coord.Write{{Key: "a", Value: []byte("2")}}); !ok {
		t.Fatal("both conditions hold")
	}
	if _, ok, _ = s.Commit(t.Context(), []coord.Condition{{Key: "a", Revision: rev}}, nil); ok {
		t.Fatal("the revision is an old one")
	}
}

func oneCreatorWins(t *testing.T, s coord.Store) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	wins := 0
	for i := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, ok, err := s.Commit(t.Context(), []coord.Condition{{Key: "x"}}, []coord.Write{{Key: "x", Value: fmt.Append(nil, i)}})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if ok {
				wins++
			}
		}()
	}
	wg.Wait()
	if wins != 1 {
		t.Fatalf("%d winners", wins)
	}
}

func counterLosesNothing(t *testing.T, s coord.Store) {
	const workers, each = 4, 25
	var wg sync.WaitGroup
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for done := 0; done < each; {
				row, _, err := s.Get(t.Context(), "n")
				if err != nil {
					t.Error(err)
					return
				}
				var n int
				fmt.Sscan(string(row.Value), &n)
				_, ok, err := s.Commit(t.Context(), []coord.Condition{{Key: "n", Revision: row.Revision}}, []coord.Write{{Key: "n", Value: fmt.Append(nil, n+1)}})
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					done++
				}
			}
		}()
	}
	wg.Wait()
	if row, _, _ := s.Get(t.Context(), "n"); string(row.Value) != fmt.Sprint(workers*each) {
		t.Fatalf("counted %s", row.Value)
	}
}

var errEnough = errors.New("enough")

func watchSeesAll(t *testing.T, s coord.Store) {
	start := mustCommit(t, s, coord.Write{Key: "w/0", Value: []byte("before")})
	got := make(chan string, 16)
	done := make(chan error, 1)
	go func() {
		done <- s.Watch(t.Context(), "w/", start, func(es []coord.Event) error {
			for _, e := range es {
				if e.Deleted {
					got <- "-" + e.Key
					return errEnough
				}
				got <- e.Key + "=" + string(e.Value)
			}
			return nil
		})
	}()
	mustCommit(t, s, coord.Write{Key: "w/1", Value: []byte("a")})
	mustCommit(t, s, coord.Write{Key: "other", Value: []byte("b")})
	mustCommit(t, s, coord.Write{Key: "w/2", Value: []byte("c")})
	mustCommit(t, s, coord.Write{Key: "w/1", Delete: true})
	for _, want := range []string{"w/1=a", "w/2=c", "-w/1"} {
		select {
		case g := <-got:
			if g != want {
				t.Fatalf("saw %q, want %q", g, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("never saw %q", want)
		}
	}
	if err := <-done; !errors.Is(err, errEnough) {
		t.Fatalf("the watch ended with %v", err)
	}
}

func watchEnds(t *testing.T, s coord.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Watch(ctx, "", 0, func([]coord.Event) error { return nil }) }()
	cancel()
	if err := <-done; !fault.Is(err, fault.Canceled) {
		t.Fatalf("ended with %v", err)
	}
}

func watchCompacted(t *testing.T, s coord.Store) {
	for i := range 5000 {
		mustCommit(t, s, coord.Write{Key: "k", Value: fmt.Append(nil, i)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Watch(ctx, "k", 1, func([]coord.Event) error { return errEnough }); !errors.Is(err, coord.ErrCompacted) && !errors.Is(err, errEnough) {
		t.Fatalf("neither the changes nor ErrCompacted: %v", err)
	}
}

func closedAnswers(t *testing.T, s coord.Store) {
	mustCommit(t, s, coord.Write{Key: "a"})
	s.Close()
	if _, _, err := s.Get(t.Context(), "a"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Get: %v", err)
	}
	if _, _, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "a"}}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Commit: %v", err)
	}
}

func valuesAreCopies(t *testing.T, s coord.Store) {
	v := []byte("abc")
	mustCommit(t, s, coord.Write{Key: "a", Value: v})
	v[0] = 'x'
	row, _, _ := s.Get(t.Context(), "a")
	row.Value[1] = 'x'
	if again, _, _ := s.Get(t.Context(), "a"); string(again.Value) != "abc" {
		t.Fatalf("the row became %q", again.Value)
	}
}

func listKeepsToPrefix(t *testing.T, s coord.Store) {
	rev := mustCommit(t, s, coord.Write{Key: "b/2"}, coord.Write{Key: "a/1"}, coord.Write{Key: "b/1"}, coord.Write{Key: "c"})
	rows, at, err := s.List(t.Context(), "b/")
	if err != nil || at != rev || len(rows) != 2 || rows[0].Key != "b/1" || rows[1].Key != "b/2" {
		t.Fatalf("got %v at %d: %v", rows, at, err)
	}
}
