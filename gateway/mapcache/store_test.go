package mapcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/coordtest"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// absent is a store that can be away: then it does not answer until the caller ends the call.
type absent struct {
	coord.Store
	away atomic.Bool
}

func (a *absent) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if a.away.Load() {
		<-ctx.Done()
		return nil, 0, fault.Wrap(ctx.Err(), fault.Unavailable, "the store is away")
	}
	return a.Store.List(ctx, prefix)
}

func remember(t *testing.T, inner coord.Store, dir string) *Store {
	t.Helper()
	return NewStore(StoreDeps{
		Inner: inner, Cache: open(t, dir, Settings{}), Log: slog.New(slog.DiscardHandler),
		Prefixes: []string{registry.Prefix, lease.Prefix}, Volatile: []string{lease.BeatPrefix},
	})
}

// TestAGatewayStartsWithoutTheStore: servers and leaders are those cached last; when the store is back, those it has.
func TestAGatewayStartsWithoutTheStore(t *testing.T) {
	dir := t.TempDir()
	seven := lease.Partition{Table: "t", ID: 7}
	held := func(s topology.ServerID) []coord.Write {
		return []coord.Write{{Key: lease.RowKey(seven), Value: lease.Lease{State: lease.Held, Holder: s, Boot: "b", Epoch: 5}.Encode()}}
	}
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		rng := func() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
		real := &absent{Store: mem.New()}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		commit := func(w ...coord.Write) {
			t.Helper()
			_, ok, err := real.Commit(t.Context(), nil, w)
			if !ok {
				err = errors.Join(err, errors.New("not committed"))
			}
			must(err)
		}
		life := func(f func(s *Store, servers *registry.View, who *leaders.View)) {
			t.Helper()
			s := remember(t, real, dir)
			servers, err := registry.Open(t.Context(), s, log, rng())
			must(err)
			who, err := leaders.Open(t.Context(), leaders.Deps{Store: s, Log: log, Rand: rng()}, leaders.Settings{})
			must(err)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			for _, run := range []func(context.Context) error{s.Run, servers.Run, who.Run} {
				go func() { ended <- run(ctx) }()
			}
			synctest.Wait()
			f(s, servers, who)
			stop()
			must(errors.Join(<-ended, <-ended, <-ended))
		}
		at := func(servers *registry.View, who *leaders.View) string {
			row, _ := servers.Get("n1")
			leader, epoch, ok := who.Leader(seven)
			return fmt.Sprint(row.Addr, " ", leader, " ", epoch, " ", ok)
		}
		must(registry.Register(t.Context(), real, registry.Server{ID: "n1", Addr: "a:1", Host: "h", Store: "d"}, false, nil))
		life(func(s *Store, servers *registry.View, who *leaders.View) {
			commit(held("n1")...)
			commit(coord.Write{Key: lease.BeatKey("n1"), Value: lease.Beat{Server: "n1", Boot: "b", N: 1}.Encode()})
			synctest.Wait()
			if got := at(servers, who); got != "a:1 n1 5 true" || s.Age() != 0 {
				t.Errorf("with the store: %s, age %v", got, s.Age())
			}
		})

		real.away.Store(true)
		time.Sleep(time.Hour)
		life(func(s *Store, servers *registry.View, who *leaders.View) {
			if got := at(servers, who); got != "a:1 n1 5 true" || s.Age() < time.Hour {
				t.Errorf("without the store: %s, age %v", got, s.Age())
			}
			if who.Live("n1") {
				t.Error("a heartbeat was kept")
			}
			// It comes back, with other rows.
			commit(held("n2")...)
			time.Sleep(time.Minute)
			if got := at(servers, who); got != "a:1 n1 5 true" {
				t.Errorf("still without the store: %s", got)
			}
			real.away.Store(false)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if got := at(servers, who); got != "a:1 n2 5 true" || s.Age() != 0 {
				t.Errorf("with the store again: %s, age %v", got, s.Age())
			}
			// Once it answered, the rows on disk are no answer any more.
			real.away.Store(true)
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			if _, _, err := s.List(ctx, registry.Prefix); !fault.Is(err, fault.Unavailable) {
				t.Errorf("a list that the store did not answer: %v", err)
			}
		})
	})
}

func TestNothingKeptIsNoAnswer(t *testing.T) {
	real := &absent{Store: mem.New()}
	real.away.Store(true)
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, _, err := remember(t, real, t.TempDir()).List(ctx, registry.Prefix); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
}

// TestItIsAStoreLikeAnother in everything it passes through.
func TestItIsAStoreLikeAnother(t *testing.T) {
	coordtest.Run(t, func(t *testing.T) coord.Store {
		return NewStore(StoreDeps{Inner: mem.New(), Cache: open(t, t.TempDir(), Settings{}), Log: slog.New(slog.DiscardHandler), Prefixes: []string{"a/", ""}})
	})
}
