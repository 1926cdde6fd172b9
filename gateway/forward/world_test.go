package forward_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	filesmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// cluster is a forwarder and servers that keep rows in memory, one of which leads each partition. Rows are counted where
// they arrive: by partition, so that a share that is sent to the wrong server, or twice, shows.
type cluster struct {
	t        *testing.T
	tables   *tables.Tables
	forward  *forward.Forwarder
	registry *prometheus.Registry

	mu       sync.Mutex
	servers  map[topology.ServerID]*server
	leads    map[point.PartitionID]topology.ServerID
	offline  string // why no server leads anything
	changed  chan struct{}
	inserts  map[point.PartitionID]int
	staged   []staged
	together int // calls with several inserts
}

// staged is a frame that a server was asked to stage.
type staged struct {
	at    topology.ServerID
	nonce uint64
	due   point.Nanos
	ids   []point.SeriesID
}

// server is one storage server: it accepts rows of the partitions it leads.
type server struct {
	peer.Storage
	id     topology.ServerID
	c      *cluster
	boots  int                     // streams of an earlier boot are broken
	mute   chan struct{}           // not nil: it answers nothing until this is closed
	err    error                   // it answers this
	slow   time.Duration           // it answers inserts after so long
	full   error                   // it keeps no rows of partitions that it leads, and answers this
	stalls bool                    // it keeps them, and answers that they wait for a copy
	unsure time.Time               // until then it refuses all rows, staged ones too, as it does not know the time
	asked  int                     // inserts that it refused so
	room   func(point.Labels) bool // for a series that is offered; nil: for all
	store  *querytest.Store
	seen   rank.Seen
	late   int                    // inserts that were sent back
	hung   []point.Stamp          // of inserts that it has not looked at yet when the stream breaks
	hangs  func(point.Stamp) bool // an insert does so; nil: none
	gaveUp []error                // why callers of a mute server gave up
}

func newCluster(t *testing.T, set forward.Settings, servers ...topology.ServerID) *cluster {
	return newClusterWith(t, func(*forward.Deps) {}, set, servers...)
}

// newClusterWith is newCluster with a forwarder that depends on something else.
func newClusterWith(t *testing.T, change func(*forward.Deps), set forward.Settings, servers ...topology.ServerID) *cluster {
	c := &cluster{
		t: t, registry: prometheus.NewRegistry(), servers: map[topology.ServerID]*server{},
		leads: map[point.PartitionID]topology.ServerID{}, changed: make(chan struct{}), inserts: map[point.PartitionID]int{},
	}
	for _, id := range servers {
		c.servers[id] = &server{id: id, c: c, store: querytest.NewStore()}
	}
	var err error
	log := slog.New(slog.DiscardHandler)
	store := mem.New()
	meta := filesmem.NewServer(store, servers[0])
	c.tables, err = tables.Open(t.Context(), tables.Deps{
		Store: store, Metadata: meta.Alone, Servers: meta.Only, Log: log, Rand: rand.New(rand.NewPCG(1, 2)),
		Place: func(_ string, p point.PartitionID) []topology.ServerID {
			return []topology.ServerID{servers[int(p)%len(servers)]}
		},
	}, tables.Settings{New: topology.Config{PartitionWidth: time.Hour}, CreateOnWrite: true})
	if err != nil {
		t.Fatal(err)
	}
	deps := forward.Deps{Tables: c.tables, Servers: c, Leaders: c, Clock: forward.NewClock(0, nil), Log: log, Registerer: c.registry}
	change(&deps)
	c.forward = forward.New(deps, set)
	t.Cleanup(func() {
		if err := c.forward.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Server implements forward.Servers.
func (c *cluster) Server(id topology.ServerID) (peer.Storage, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.servers[id]
	return s, ok
}

// IDs implements forward.Servers.
func (c *cluster) IDs() (ids []topology.ServerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.servers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Find implements forward.Leaders.
func (c *cluster) Find(table string, p *topology.Partition, _ int) (leaders.Lead, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offline != "" {
		return leaders.Lead{}, fault.Errorf(fault.Unavailable, "partition %s/%d: %s", table, p.ID, c.offline)
	}
	if s, ok := c.leads[p.ID]; ok {
		return leaders.Lead{Server: s, Epoch: 1}, nil
	}
	return leaders.Lead{Server: p.Placements[0].Server, Guess: true}, nil
}

// Changed implements forward.Leaders.
func (c *cluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// change changes the cluster, and announces it.
func (c *cluster) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// OpenStream implements peer.Storage.
func (s *server) OpenStream(ctx context.Context, table string) (peer.Stream, error) {
	if err := s.answers(ctx); err != nil {
		return nil, err
	}
	inner, err := s.store.OpenStream(ctx, table)
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return &stream{Stream: inner, s: s, boot: s.boots}, err
}

// PutMetadata implements peer.Storage.
func (s *server) PutMetadata(ctx context.Context, table string, rows []point.MetadataRow) error {
	if err := s.answers(ctx); err != nil {
		return err
	}
	return s.store.PutMetadata(ctx, table, rows)
}

func (s *server) answers(ctx context.Context) error {
	s.c.mu.Lock()
	mute, err := s.mute, s.err
	s.c.mu.Unlock()
	if mute != nil {
		select {
		case <-mute:
		case <-ctx.Done():
			s.c.mu.Lock()
			defer s.c.mu.Unlock()
			s.gaveUp = append(s.gaveUp, ctx.Err())
			return ctx.Err()
		}
	}
	return err
}

type stream struct {
	peer.Stream
	s    *server
	boot int
}

func (st *stream) ok(ctx context.Context) error {
	if err := st.s.answers(ctx); err != nil {
		return err
	}
	st.s.c.mu.Lock()
	defer st.s.c.mu.Unlock()
	if st.boot != st.s.boots {
		return fault.Wrap(peer.ErrStreamBroken, fault.Unavailable, "server %s", st.s.id)
	}
	return nil
}

func (st *stream) Define(ctx context.Context, defs []peer.Def) error {
	if err := st.ok(ctx); err != nil {
		return err
	}
	return st.Stream.Define(ctx, defs)
}

// Offer implements peer.Offerer.
func (st *stream) Offer(ctx context.Context, defs []peer.Def) (refused peer.Refused, err error) {
	var kept []peer.Def
	for _, d := range defs {
		if st.s.room == nil || st.s.room(d.Labels) {
			kept = append(kept, d)
			continue
		}
		refused.IDs, refused.Reason = append(refused.IDs, d.ID), "no room"
	}
	return refused, st.Define(ctx, kept)
}

// InsertTogether implements peer.Together.
func (st *stream) InsertTogether(ctx context.Context, all []*peer.Insert) error {
	if err := peer.CheckTogether(all); err != nil {
		return err
	}
	st.s.c.mu.Lock()
	st.s.c.together++
	st.s.c.mu.Unlock()
	return peer.InsertEach(ctx, st, all)
}

func (st *stream) Insert(ctx context.Context, in *peer.Insert) error {
	if err := st.ok(ctx); err != nil {
		return err
	}
	c := st.s.c
	if err := st.s.sure(); err != nil {
		return err
	}
	if s := in.Staging; s != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.staged = append(c.staged, staged{st.s.id, s.Nonce, s.Due, slices.Clone(in.IDs)})
		return nil
	}
	c.mu.Lock()
	leader, led := c.leads[in.Partition]
	m, _ := c.tables.Get("t")
	p, there := m.ByID(in.Partition)
	if !led && there {
		leader = p.Placements[0].Server
	}
	c.mu.Unlock()
	if !there || leader != st.s.id {
		return fault.Errorf(fault.Stale, "partition %d is not led by %s", in.Partition, st.s.id)
	}
	time.Sleep(st.s.slow) // a server that answers late
	if st.s.full != nil {
		return peer.Answer(st.s.full)
	}
	if st.s.hangs != nil && st.s.hangs(in.Stamp) {
		st.s.hung = append(st.s.hung, in.Stamp)
		return fault.Wrap(peer.ErrStreamBroken, fault.Unavailable, "partition %d", in.Partition)
	}
	if err := st.s.timely(in.Stamp); err != nil {
		return err
	}
	if err := st.Stream.Insert(ctx, in); err != nil {
		return err
	}
	if st.s.stalls {
		return peer.Answer(fault.Errorf(fault.Unavailable, "a copy is away"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inserts[in.Partition] += len(in.IDs)
	return nil
}

// sure refuses all stamps, as a server that has just started with its clock behind does until it knows the clocks of the others.
func (s *server) sure() error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if !time.Now().Before(s.unsure) {
		return nil
	}
	s.asked++
	return fault.Errorf(fault.Stale, "nothing was kept: the clocks of the other servers are not known yet")
}

// timely refuses stamps as partitions do.
func (s *server) timely(stamp point.Stamp) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if newest, late := s.seen.Late(stamp, time.Now().UnixNano()); late {
		s.late++
		return peer.NewLate(newest)
	}
	if !s.seen.Take(stamp) {
		return peer.NewSeen()
	}
	return nil
}

// write writes rows, one per time, of series "s".
func (c *cluster) write(times ...point.Nanos) error { return c.writeTimes(false, times) }

// writeAtomic writes them whole, or none.
func (c *cluster) writeAtomic(times ...point.Nanos) error { return c.writeTimes(true, times) }

func (c *cluster) writeTimes(atomic bool, times []point.Nanos) error {
	c.t.Helper()
	table, err := c.forward.Table(c.t.Context(), "t")
	if err != nil {
		c.t.Fatal(err)
	}
	b := point.GetBatch(table.Dict())
	b.Atomic = atomic
	for i, at := range times {
		b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(i))), at, float64(i))
	}
	err = table.Write(c.t.Context(), b, point.All)
	b.Put()
	return err
}

// rows lists each server's rows: "n1: 1 2 n2: 3" are times in minutes.
func (c *cluster) rows() string {
	c.t.Helper()
	var out []string
	for _, id := range c.IDs() {
		set, err := c.servers[id].store.Select(c.t.Context(), &peer.Select{Table: "t", Lo: math.MinInt64, Hi: math.MaxInt64})
		if err != nil {
			continue // nothing was written there
		}
		var times []int
		for set.Next() {
			for _, at := range set.At().Times {
				times = append(times, int(at/int64(time.Minute)))
			}
		}
		slices.Sort(times)
		out = append(out, strings.TrimSuffix(strings.Replace(fmt.Sprint(id, ": ", times), "[", "", 1), "]"))
		if err := set.Close(); err != nil {
			c.t.Error(err)
		}
	}
	return strings.Join(out, " ")
}

// counted gives a counter by its name and label value ("": without).
func (c *cluster) counted(name, label string) (sum float64) {
	c.t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && (label == "" || len(m.Label) > 0 && m.Label[0].GetValue() == label) {
				sum += m.Counter.GetValue()
			}
		}
	}
	return sum
}
