package master

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// counted is a store that counts transactions.
type counted struct {
	coord.Store
	commits atomic.Int64
}

func (c *counted) Commit(ctx context.Context, conditions []coord.Condition, writes []coord.Write) (coord.Revision, bool, error) {
	c.commits.Add(1)
	return c.Store.Commit(ctx, conditions, writes)
}

// TestRetentionOfThousandsIsOneChange drops thousands of partitions that were led, with real metadata servers: the lease rows are
// marked in batches, the map is changed once, the rows are swept in batches.
func TestRetentionOfThousandsIsOneChange(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 1_000
	}
	ctx := t.Context()
	store := &counted{Store: mem.New()}
	lib := newLibrary(t, store, "s1", "s2", "s3")
	tabs, err := tables.Open(ctx, tables.Deps{Store: store, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 1)), Metadata: lib.peer,
		Servers: func() []topology.ServerID { return []topology.ServerID{"s1", "s2", "s3"} },
		Place:   func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{"s1"} }}, tables.Settings{New: topology.Config{PartitionWidth: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	defer tabs.Close()
	if _, err := tabs.Create(ctx, "cpu", topology.Config{PartitionWidth: time.Hour, Retention: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	first := time.Now().Add(-time.Duration(n) * time.Hour)
	var m *topology.Map
	for at := 0; at <= n+1; at += 500 {
		var times []point.Nanos
		for i := at; i < min(n+2, at+500); i++ {
			times = append(times, first.Add(time.Duration(i)*time.Hour).UnixNano())
		}
		if m, err = tabs.Cover(ctx, "cpu", times); err != nil {
			t.Fatal(err)
		}
	}
	led := lease.Lease{State: lease.Free, Epoch: 3, Holder: "s1", Boot: "b", Store: "d", InSync: []lease.Member{{Placement: 1, Server: "s1", Store: "d"}}}
	for p := range m.All() {
		key := lease.Partition{Table: "cpu", ID: p.ID}
		if _, _, err := store.Commit(ctx, nil, []coord.Write{{Key: lease.RowKey(key), Value: led.Encode()}, {Key: lease.BornKey(key), Value: []byte(`{"v":1}`)}}); err != nil {
			t.Fatal(err)
		}
	}
	before := m
	store.commits.Store(0)
	began := time.Now()
	rounds := 0
	for ; rounds < 5; rounds++ {
		m, _ = tabs.Get("cpu")
		rows := NewRows(func() time.Duration { return 0 }, time.Second)
		list, rev, err := store.List(ctx, lease.Prefix)
		if err != nil || rows.Listed(list, rev) != nil {
			t.Fatal(err)
		}
		s := State{Now: time.Now().UnixNano(), Tables: []*topology.Map{m}}
		rows.Fill(&s, servers())
		for i := range s.Servers {
			s.Servers[i].Live, s.Servers[i].For = true, time.Hour
		}
		var steps []Step
		for _, step := range Plan(s, Settings{Ahead: time.Nanosecond, RetentionConfirmed: s.Now}, rand.New(rand.NewPCG(1, 1))) {
			if step.Kind == Retention || step.Kind == Sweep {
				steps = append(steps, step)
			}
		}
		if len(steps) == 0 {
			break
		}
		x := &executor{store: store, tables: tabs, rows: rows, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}
		x.carryOut(ctx, []*topology.Map{m}, steps)
	}
	took := time.Since(began)
	list, _, err := store.List(ctx, lease.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	dropped := before.Len() - m.Len()
	t.Logf("%d partitions dropped and swept by %d changes of the map and %d store transactions in %d rounds, within %v; %d lease rows are left",
		dropped, m.Seq-before.Seq, store.commits.Load(), rounds, took.Round(time.Millisecond), len(list))
	if dropped < n-50 || m.Seq-before.Seq != 1 {
		t.Errorf("%d of %d partitions dropped by %d changes", dropped, n, m.Seq-before.Seq)
	}
	if most := int64(n/60+n/50) + 20; store.commits.Load() > most {
		t.Errorf("%d store transactions, at most %d are needed", store.commits.Load(), most)
	}
	if len(list) > 2*m.Len()+1 {
		t.Errorf("%d lease rows are left of %d partitions", len(list), m.Len())
	}
}
