package registry_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/protocols/fault"
)

var s1 = registry.Server{ID: "s1", Addr: "10.0.0.1:8430", Host: "h1", Zone: "a", Store: "d1", Copies: registry.CopiesOn, Since: time.Unix(1700000000, 0).UTC()}

func TestARowIsReadAsItWasWritten(t *testing.T) {
	got, err := registry.Decode(coord.Row{Key: "servers/s1", Value: s1.Encode()})
	if err != nil || !reflect.DeepEqual(got, s1) {
		t.Fatalf("got %+v %v", got, err)
	}
	const golden = `{"v":1,"id":"s1","addr":"10.0.0.1:8430","host":"h1","zone":"a","store":"d1","copies":"on","since":"2023-11-14T22:13:20Z"}`
	if string(s1.Encode()) != golden {
		t.Errorf("stored as %s", s1.Encode())
	}
	refuse := func(key, value string) {
		t.Helper()
		if _, err := registry.Decode(coord.Row{Key: key, Value: []byte(value)}); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", value, err)
		}
	}
	refuse("servers/s2", golden)
	refuse("servers/s1", `{"v":2}`)
	refuse("servers/s1", `{"v":1,"id":"s1"}`)
	for i := range golden {
		refuse("servers/s1", golden[:i])
	}
}

func TestAServerKeepsWhatPeopleWroteAndRefusesATwin(t *testing.T) {
	store, ctx := mem.New(), t.Context()
	register := func(s registry.Server, replace bool) error { return registry.Register(ctx, store, s, replace, nil) }
	if err := register(s1, false); err != nil {
		t.Fatal(err)
	}
	note := &lease.Note{Who: "ann", Reason: "new disk"}
	if err := registry.Change(ctx, store, "s1", func(s *registry.Server) { s.Drain = note }); err != nil {
		t.Fatal(err)
	}
	moved := s1
	moved.Addr, moved.Since = "10.0.0.9:8430", time.Now()
	if err := register(moved, false); err != nil {
		t.Fatal(err)
	}
	twin := moved
	twin.Store = "d2"
	if err := register(twin, false); !fault.Is(err, fault.Invalid) {
		t.Fatalf("a twin: %v", err)
	}
	v, err := registry.Open(ctx, store, slog.New(slog.DiscardHandler), rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	got, ok := v.Get("s1")
	if !ok || got.Addr != moved.Addr || !got.Since.Equal(s1.Since) || got.Drain == nil || got.Drain.Who != "ann" || got.Store != "d1" {
		t.Fatalf("got %+v", got)
	}
	reported := ""
	if err := registry.Change(ctx, store, "s1", func(s *registry.Server) { s.Staging = "cpu" }); err != nil {
		t.Fatal(err)
	}
	if err := registry.Register(ctx, store, moved, false, func(staging string) bool { reported = staging; return true }); err != nil {
		t.Fatal(err)
	}
	row, _, err := store.Get(ctx, registry.Key("s1"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err = registry.Decode(row); err != nil || reported != "cpu" || got.Staging != "cpu" || !got.Since.Equal(moved.Since) || got.Drain == nil {
		t.Fatalf("a server that lost staged rows of %q: %+v, %v", reported, got, err)
	}
	if err := register(twin, true); err != nil {
		t.Fatal(err)
	}
	if err := registry.Change(ctx, store, "s7", func(*registry.Server) {}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a server that nobody knows: %v", err)
	}
}

func TestAViewFollows(t *testing.T) {
	store := mem.New()
	ctx, stop := context.WithCancel(t.Context())
	v, err := registry.Open(ctx, store, slog.New(slog.DiscardHandler), rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- v.Run(ctx) }()
	wait := func(cond func() bool) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			changed := v.Changed()
			if cond() {
				return
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("still %+v", v.All())
			}
		}
	}
	if err := registry.Register(ctx, store, s1, false, nil); err != nil {
		t.Fatal(err)
	}
	wait(func() bool { _, ok := v.Get("s1"); return ok })
	if _, _, err := store.Commit(ctx, nil, []coord.Write{{Key: "servers/s1", Delete: true}}); err != nil {
		t.Fatal(err)
	}
	wait(func() bool { return len(v.All()) == 0 })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAViewThatDoesNotFollowReadsWhatIsNew: its watch is silent, as one that is behind. Rows are those of the last reading, or newer ones.
func TestAViewThatDoesNotFollowReadsWhatIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mem.New()
		ctx, stop := context.WithCancel(t.Context())
		v, err := registry.Open(ctx, store, slog.New(slog.DiscardHandler), rand.New(rand.NewPCG(1, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if age := v.Age(time.Now()); age < time.Hour {
			t.Errorf("rows that were never read again are %v old", age)
		}
		var running sync.WaitGroup
		running.Go(func() { _ = v.Prove(ctx, store) })
		if err := registry.Register(ctx, store, s1, false, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if _, ok := v.Get("s1"); !ok || v.Age(time.Now()) > 2*time.Second {
			t.Errorf("s1 is known: %t, and the rows are %v old", ok, v.Age(time.Now()))
		}
		stop()
		running.Wait()
		time.Sleep(time.Minute)
		if age := v.Age(time.Now()); age < time.Minute {
			t.Errorf("rows that were read a minute ago are %v old", age)
		}
	})
}
