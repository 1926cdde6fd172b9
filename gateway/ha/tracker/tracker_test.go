package tracker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/ha"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// run opens a tracker and runs it until the test ends.
func run(t *testing.T, store coord.Store, s ha.Settings) *Tracker {
	t.Helper()
	s.SetDefaults()
	tr, err := Open(t.Context(), Deps{Store: store, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Rand: rand.New(rand.NewPCG(1, 2))}, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return tr
}

// sends has a replica send one row, and reports whether it is kept.
func sends(t *testing.T, tr *Tracker, replica string) bool {
	t.Helper()
	d := point.NewDict(0)
	d.Replicas(tr.Labels("t"))
	l := point.MakeLabels("__name__", "up", "cluster", "x", "__replica__", replica)
	id, err := d.Intern(d.Hash([]byte(l)), l)
	if err != nil {
		t.Error(err)
	}
	b := point.GetBatch(d)
	defer b.Put()
	b.Append(id, 1, 1)
	n, senders := tr.Resolve("t", b)
	tr.Accepted("t", senders)
	if n.Floats+len(b.IDs)+b.RefusedRows != 1 {
		t.Errorf("%+v, %d rows kept, %d refused", n, len(b.IDs), b.RefusedRows)
	}
	return len(b.IDs) == 1
}

func within(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestGatewaysAgree: each receives another replica, from many goroutines. They keep the same one; a gateway that opens later too.
func TestGatewaysAgree(t *testing.T) {
	store := mem.New()
	s := ha.Settings{Enabled: true, UpdateInterval: setting.Span(time.Second), FailoverTimeout: setting.Span(time.Hour)}
	one, two := run(t, store, s), run(t, store, s)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for range 50 {
				sends(t, []*Tracker{one, two}[g%2], string(rune('a'+g%2)))
			}
		})
	}
	wg.Wait()
	agreed := func(trs ...*Tracker) (replica string) {
		for _, tr := range trs {
			s := tr.Status()
			if len(s) != 1 || !s[0].Agreed || replica != "" && s[0].Replica != replica {
				return ""
			}
			replica = s[0].Replica
		}
		return replica
	}
	within(t, "they do not agree", func() bool { return agreed(one, two) != "" })
	elected := agreed(one, two)
	other := map[string]string{"a": "b", "b": "a"}[elected]
	three := run(t, store, s)
	for _, tr := range []*Tracker{one, two, three} {
		if !sends(t, tr, elected) || sends(t, tr, other) {
			t.Errorf("%s is elected, and its rows are not kept, or those of %s are", elected, other)
		}
	}
}

// silent is a store that does not answer.
type silent struct{ coord.Store }

var errAway = errors.New("away")

func (silent) List(context.Context, string) ([]coord.Row, coord.Revision, error) {
	return nil, 0, errAway
}

func (silent) Commit(context.Context, []coord.Condition, []coord.Write) (coord.Revision, bool, error) {
	return 0, false, errAway
}

func (silent) Watch(context.Context, string, coord.Revision, func([]coord.Event) error) error {
	return errAway
}

// TestAGatewayElectsWhileTheStoreIsAway: rows are neither refused nor lost.
func TestAGatewayElectsWhileTheStoreIsAway(t *testing.T) {
	tr := run(t, silent{}, ha.Settings{Enabled: true, UpdateInterval: setting.Span(time.Second), FailoverTimeout: setting.Span(2 * time.Second)})
	if !sends(t, tr, "a") {
		t.Error("the first row is not kept")
	}
	within(t, "the other replica does not take over", func() bool { return sends(t, tr, "b") })
	if s := tr.Status(); len(s) != 1 || s[0].Agreed || s[0].Replica != "b" {
		t.Errorf("%+v", s)
	}
}

// TestAPairWithoutASpareIsSeen: otherwise the missing spare would be noticed only when the elected replica dies.
func TestAPairWithoutASpareIsSeen(t *testing.T) {
	s := ha.Settings{Enabled: true}
	s.SetDefaults()
	registry := prometheus.NewRegistry()
	tr, err := Open(t.Context(), Deps{Log: slog.New(slog.DiscardHandler), Registerer: registry, Rand: rand.New(rand.NewPCG(1, 2))}, s)
	if err != nil {
		t.Fatal(err)
	}
	silent := func() (seconds float64, pairs int) {
		t.Helper()
		all, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.GetName() == "spillway_tracker_spare_silent_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue(), len(f.GetMetric())
			}
		}
		return 0, 0
	}
	if _, pairs := silent(); pairs != 0 {
		t.Errorf("%d pairs before any row", pairs)
	}
	if !sends(t, tr, "a") {
		t.Error("the first row is not kept")
	}
	if seconds, pairs := silent(); pairs != 1 || seconds < 1 { // the tracker's clock begins at one
		t.Errorf("one replica sends: %v s, %d pairs", seconds, pairs)
	}
	within(t, "rows of the other replica are not seen", func() bool {
		if sends(t, tr, "b") {
			t.Fatal("rows of both replicas are kept")
		}
		seconds, pairs := silent()
		return pairs == 1 && seconds < 1
	})
}

// TestSettingsAreReloaded, all or nothing.
func TestSettingsAreReloaded(t *testing.T) {
	tr := run(t, nil, ha.Settings{})
	if tr.Labels("t") != (point.ReplicaLabels{}) {
		t.Error("it is on by default")
	}
	bad := ha.Settings{Enabled: true, ReplicaLabel: "cluster"}
	bad.SetDefaults()
	if err := tr.Reload(bad); err == nil || tr.Settings().Enabled {
		t.Errorf("%v", err)
	}
	good := ha.Settings{Enabled: true}
	good.SetDefaults()
	if err := tr.Reload(good); err != nil || tr.Labels("t") == (point.ReplicaLabels{}) {
		t.Errorf("%v", err)
	}
}
