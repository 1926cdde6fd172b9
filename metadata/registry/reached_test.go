package registry_test

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/registry"
)

func TestAServerIsReachedAtTheAddressOfItsRowAlone(t *testing.T) {
	store, ctx := mem.New(), t.Context()
	lost := s1
	lost.Unreached = "i/o timeout"
	if err := registry.Register(ctx, store, lost, false, nil); err != nil {
		t.Fatal(err)
	}
	f := func(addr string, want bool) {
		t.Helper()
		if err := registry.Reached(ctx, store, "s1", addr, s1.Store); err != nil {
			t.Fatal(err)
		}
		all, err := registry.List(ctx, store)
		if err != nil || len(all) != 1 || all[0].Takes() != want {
			t.Errorf("%s: %+v %v", addr, all, err)
		}
	}
	f("10.0.0.2:8430", false)
	f(s1.Addr, true)
	f(s1.Addr, true)
}

func TestAProcessThatWaitsToRegisterIsListedWhileItWaits(t *testing.T) {
	store, ctx, now := mem.New(), t.Context(), time.Unix(1700000000, 0).UTC()
	f := func(now time.Time, want string) {
		t.Helper()
		got := ""
		all, err := registry.AllRefused(ctx, store, now)
		for _, r := range all {
			got += string(r.ID) + ": " + r.Why + "; "
		}
		if err != nil || got != want {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
	f(now, "")
	for _, why := range []string{"s1 answers there", "s2 answers there"} {
		if err := registry.Refuse(ctx, store, registry.Refused{ID: "s3", Addr: "h:1", Host: "h3", Why: why, Time: now}); err != nil {
			t.Fatal(err)
		}
	}
	f(now.Add(time.Minute), "s3: s2 answers there; ")
	f(now.Add(time.Hour), "")
	for range 2 {
		if err := registry.Accepted(ctx, store, "s3"); err != nil {
			t.Fatal(err)
		}
	}
	f(now, "")
}
