package pathtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/view"
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/fanout"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	filesmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
	"github.com/spillwaydb/spillway/storage/staging"
	stagings "github.com/spillwaydb/spillway/storage/staging/runner"
)

// spread is a gateway and several storage servers, all real but for the leases: the first placement of a partition leads
// it. Partitions go round, so that those of a ring column lie on all.
type spread struct {
	tb      testing.TB
	store   coord.Store
	meta    *mapstore.Server // in n1
	tables  *tables.Tables
	parts   map[topology.ServerID]*part
	view    *registry.View
	peers   *peers.Peers
	leaders *leaders.View
	forward *forward.Forwarder
	source  *fanout.Source
	reg     *prometheus.Registry
	stop    context.CancelFunc
	ended   chan error
	fast    atomic.Int64 // how far the servers' clocks are ahead, in nanoseconds
	latest  func() point.Nanos
	copies  int // of each partition; 1: it lies on one server

	rankWithin time.Duration // server.Settings.RankWithin
	// With a disk, servers have their files in directories there, else in memory. With ways, they forward rows that wait.
	disk string
	ways func(topology.ServerID) stagings.Ways
	// processors are those of a server; 0: as many as Go's scheduler uses.
	processors int
	// stretchTime is fanout.Settings.StretchTime; 0: a plan is divided at every edge.
	stretchTime time.Duration
	// lies numbers the server that has a partition; nil: neighbours are mostly on different ones.
	lies func(point.PartitionID) int
}

// first numbers the server with the first placement of a partition.
func (s *spread) first(p point.PartitionID) int {
	if s.lies != nil {
		return s.lies(p)
	}
	return int(p + p/3)
}

// now is the servers' time.
func (s *spread) now() point.Nanos { return time.Now().UnixNano() + s.fast.Load() }

// part is one storage server.
type part struct {
	id     topology.ServerID
	fs     vfs.FS
	dir    string
	brick  *brick.Brick
	staged *stagings.Store // which forwards nothing by itself, but with spread.ways
	server *server.Server
	rpc    *rpc.Server

	metrics *prometheus.Registry // of server
}

// firsts are the leases of a server that leads the partitions with their first placement there. With any, it acts for all partitions that lie there.
type firsts struct {
	id   topology.ServerID
	maps *tables.Tables
	any  bool
}

func (firsts) Wanted(string, point.PartitionID) {}

func (f firsts) MayAct(table string, id point.PartitionID) (point.Epoch, bool) {
	m, ok := f.maps.Get(table)
	if !ok {
		return 0, false
	}
	p, ok := m.ByID(id)
	if _, here := p.On(f.id); ok && f.any && here {
		return 1, true
	}
	return 1, ok && p.Placements[0].Server == f.id
}

func (f firsts) Alone(table string, id point.PartitionID) (point.Epoch, bool) {
	return f.MayAct(table, id)
}

func (f firsts) Hold(context.Context, string, point.PartitionID, point.Epoch) error { return nil }

func (f firsts) Why(string, point.PartitionID) string { return "its placement is not the first" }

// parentsOf asks the first placement of a partition for its highest rank.
type parentsOf struct{ s *spread }

// HighestRank implements server.Parents.
func (o parentsOf) HighestRank(ctx context.Context, table string, at *topology.Partition) (point.Stamp, error) {
	st, ok := o.s.peers.Server(at.Placements[0].Server)
	if !ok {
		return 0, fault.Errorf(fault.Unavailable, "server %s is not known", at.Placements[0].Server)
	}
	return st.(peer.SealedRanker).HighestRank(ctx, table, at.ID)
}

// InSync implements server.Parents.
func (parentsOf) InSync(context.Context, string, *topology.Partition, point.PlacementID) bool {
	return false
}

// openSpread opens n servers. far: they are reached over the network; else by calls.
func openSpread(tb testing.TB, n int, far bool, width time.Duration, columns int) *spread {
	return openSpreadOf(tb, n, far, width, columns, 1)
}

// openSpreadOf opens n servers, with copies of each partition on so many.
func openSpreadOf(tb testing.TB, n int, far bool, width time.Duration, columns, copies int) *spread {
	s := &spread{tb: tb, copies: copies}
	s.start(n, far, width, columns)
	return s
}

// start opens the servers.
func (s *spread) start(n int, far bool, width time.Duration, columns int) {
	log := slog.New(slog.DiscardHandler)
	tb, copies := s.tb, s.copies
	s.store, s.parts, s.reg, s.ended = mem.New(), map[topology.ServerID]*part{}, prometheus.NewRegistry(), make(chan error, 2)
	var ids []topology.ServerID
	for i := range n {
		ids = append(ids, topology.ServerID(fmt.Sprint("n", i+1)))
	}
	var err error
	meta := filesmem.NewServer(s.store, ids[0])
	s.meta = meta
	s.tables, err = tables.Open(tb.Context(), tables.Deps{
		Store: s.store, Metadata: meta.Alone, Servers: meta.Only, Log: log, Rand: rand.New(rand.NewPCG(1, 2)),
		Place: func(_ string, p point.PartitionID) (on []topology.ServerID) {
			for i := range copies {
				on = append(on, ids[(s.first(p)+i)%n])
			}
			return on
		},
	}, tables.Settings{New: topology.Config{PartitionWidth: width}, CreateOnWrite: true})
	s.must(err)
	_, err = s.tables.Create(tb.Context(), promqlsuite.Table, topology.Config{PartitionWidth: width, Replicas: copies})
	s.must(err)
	if columns > 1 {
		s.cutRing(columns)
	}
	local := map[topology.ServerID]peers.Local{}
	for _, id := range ids {
		p := &part{id: id, fs: vfs.NewMem()}
		if s.disk != "" {
			p.fs, p.dir = vfs.Default, filepath.Join(s.disk, string(id))
		}
		s.parts[id] = p
		s.open(p)
		if far {
			s.serve(p)
		} else {
			local[id] = peers.Local{Storage: p.server}
		}
	}
	s.view, err = registry.Open(tb.Context(), s.store, log, rand.New(rand.NewPCG(3, 4)))
	s.must(err)
	dial := func(_ topology.ServerID, addr string) (peers.Peer, error) {
		return rpc.Dial(addr, rpc.DialSettings{TLS: rpc.TLS{Insecure: true}, SilenceMax: time.Minute, ConnectMax: time.Minute}) // all share the processors of a machine that may be busy
	}
	s.peers = peers.Open(peers.Deps{Servers: s.view, Dial: dial, Local: local, Log: log, Registerer: s.reg}, peers.Settings{})
	lead, err := leaders.Open(tb.Context(), leaders.Deps{Store: s.store, Log: log, Rand: rand.New(rand.NewPCG(5, 6)), Registerer: s.reg}, leaders.Settings{})
	s.must(err)
	s.forward = forward.New(forward.Deps{Tables: s.tables, Servers: s.peers, Leaders: lead, Clock: forward.NewClock(0, nil), Log: log, Registerer: s.reg},
		forward.Settings{PartitionsMax: 1 << 20, NewPartitionsPerWrite: 1 << 20, NewPartitionsPerSecond: 1 << 20})
	s.leaders = lead
	s.source = fanout.New(fanout.Deps{Tables: s.tables, Leaders: lead, Servers: s.peers, Log: log, Registerer: s.reg}, fanout.Settings{Patience: 100 * time.Millisecond, StretchTime: cmp.Or(s.stretchTime, time.Nanosecond)})
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() { s.ended <- s.view.Run(ctx) }()
	go func() { s.ended <- s.peers.Run(ctx) }()
}

// open opens a server on its disk.
func (s *spread) open(p *part) {
	s.tb.Helper()
	log := slog.New(slog.DiscardHandler)
	var err error
	p.brick, err = brick.Open(brick.Deps{FS: p.fs, Log: log}, brick.Settings{DataDir: filepath.Join(p.dir, "data"), FreeBytesMin: 1, FileBytesMax: 1 << 20})
	s.must(err)
	ways, gather := stagings.Ways(noWays{}), time.Duration(0)
	if s.ways != nil {
		ways, gather = s.ways(p.id), staging.GatherFor
	}
	p.staged, err = stagings.Open(stagings.Deps{FS: p.fs, Dir: filepath.Join(p.dir, "staging"), Room: func(int64) error { return nil }, Announce: func(context.Context, []string) error { return nil }, Ways: ways, Log: log},
		staging.Settings{Server: p.id, GatherFor: gather, BytesMax: 1 << 30})
	s.must(err)
	p.metrics = prometheus.NewRegistry()
	p.server, err = server.Open(s.tb.Context(), server.Deps{Staging: p.staged, Brick: p.brick, Maps: s.tables, Leadership: firsts{p.id, s.tables, s.copies > 1}, Parents: parentsOf{s}, Now: s.now, Latest: s.latest, Processors: s.processors, Log: log, Registerer: p.metrics},
		server.Settings{Server: p.id, RankWithin: s.rankWithin})
	s.must(err)
}

func (s *spread) must(err error) {
	s.tb.Helper()
	if err != nil {
		s.tb.Fatal(err)
	}
}

// cutRing makes partitions of several columns, for all times.
func (s *spread) cutRing(columns int) {
	weights := make([]uint32, columns)
	for i := range weights {
		weights[i] = 1
	}
	ranges, err := topology.Spread(nil, weights)
	s.must(err)
	_, err = s.tables.Change(s.tb.Context(), promqlsuite.Table, func(*topology.Map) ([]topology.Op, error) {
		return []topology.Op{topology.SetColumns{Layout: topology.Layout{From: math.MinInt64, Weights: weights, Ranges: ranges}}}, nil
	})
	s.must(err)
}

// serve accepts calls from the network, and registers the address.
func (s *spread) serve(p *part) {
	log := slog.New(slog.DiscardHandler)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	p.rpc, err = rpc.NewServer(rpc.Deps{Storage: p.server, Metadata: s.meta, Log: log}, rpc.Settings{TLS: rpc.TLS{Insecure: true}})
	s.must(err)
	srv := p.rpc // hangUp sets the field to nil
	go func() { _ = srv.Serve(l) }()
	s.must(registry.Register(s.tb.Context(), s.store, registry.Server{ID: p.id, Addr: l.Addr().String(), Host: "h", Store: "d"}, false, nil))
}

// noWays lead nowhere: staged rows stay.
type noWays struct{ stagings.Ways }

func (noWays) Map(string) (*topology.Map, uint64) { return nil, 0 }

// hangUp ends a server's connections.
func (p *part) hangUp() error {
	if p.rpc == nil {
		return nil
	}
	now, stop := context.WithCancel(context.Background())
	stop()
	err := p.rpc.Shutdown(now)
	p.rpc = nil
	if fault.Is(err, fault.Canceled) {
		return nil
	}
	return err
}

func (s *spread) close() error {
	err := errors.Join(s.forward.Close(), s.peers.Close())
	for _, p := range s.parts {
		err = errors.Join(err, p.hangUp(), p.server.Close(), p.staged.Close(), p.brick.Close())
	}
	s.stop()
	return errors.Join(err, <-s.ended, <-s.ended)
}

func (s *spread) insert(ctx context.Context, b *point.Batch) error {
	t, err := s.forward.Table(ctx, promqlsuite.Table)
	if err != nil {
		return err
	}
	return t.Write(ctx, b, point.All)
}

// TestThreeServersAnswerAsOne writes the same to one server and to three, reached by the network, and sends both the same
// queries.
func TestThreeServersAnswerAsOne(t *testing.T) {
	one, three := openSpread(t, 1, false, 100*time.Second, 1), openSpread(t, 3, true, 100*time.Second, 3)
	defer func() { one.must(errors.Join(one.close(), three.close())) }()
	alone := one.parts["n1"].server // as a gateway in one process reads it: without a fan-out
	rng := rand.New(rand.NewPCG(7, 8))
	for range 40 {
		b := randomBatch(rng)
		one.must(one.insert(t.Context(), b))
		three.must(three.insert(t.Context(), b))
	}
	spreadOver(t, three)

	for range 60 {
		q := &peer.Select{Table: promqlsuite.Table, Lo: rng.Int64N(3e12), LabelsOnly: rng.IntN(8) == 0}
		q.Hi = q.Lo + rng.Int64N(1e12)
		q.Matchers = [][]peer.Matcher{
			nil, {{Name: "i", Type: peer.MatchRegexp, Value: "[0-4]"}}, {{Name: point.MetricName, Value: "m1"}},
			{{Name: "nobody", Value: "has"}}, {{Name: "i", Type: peer.MatchNotEqual, Value: "7"}, {Name: point.MetricName, Value: "h"}},
		}[rng.IntN(5)]
		if a, b := selected(t, alone, q), selected(t, three.source, q); a != b {
			t.Fatalf("%+v:\none server  %.2000s\nthree       %.2000s", q, a, b)
		}
		limit := rng.IntN(4)
		for name, ask := range map[string]func(query.Source) (any, bool, error){
			"names":  func(s query.Source) (any, bool, error) { return tuple(s.LabelNames(t.Context(), q, limit)) },
			"values": func(s query.Source) (any, bool, error) { return tuple(s.LabelValues(t.Context(), q, "i", limit)) },
			"exemplars": func(s query.Source) (any, bool, error) {
				ex, err := s.Exemplars(t.Context(), &peer.Select{Table: q.Table, Lo: q.Lo, Hi: q.Hi}, [][]peer.Matcher{q.Matchers})
				for i := range ex {
					for j := range ex[i].Exemplars {
						ex[i].Exemplars[j].ID = 0
					}
				}
				return fmt.Sprintf("%v", ex), false, err
			},
		} {
			a, amore, aerr := ask(alone)
			b, bmore, berr := ask(three.source)
			if fmt.Sprint(a, amore, aerr) != fmt.Sprint(b, bmore, berr) {
				t.Fatalf("%s of %+v, at most %d:\n%v %v %v\n%v %v %v", name, q, limit, a, amore, aerr, b, bmore, berr)
			}
		}
	}
	for _, expr := range []string{
		`m1`, `sum by (i) (rate(m1[5m]))`, `max_over_time(m1[10m])`, `topk(3, m1)`, `m1 / on (i) m2`, `count_over_time({__name__=~"m.*"}[7m])`,
		`histogram_quantile(0.9, sum(rate(h[10m])))`, `quantile_over_time(0.5, m2[20m])`, `m1 offset 3m`, `absent(m9)`, `stddev(m2) by (i)`,
		`max_over_time(sum(m1)[10m:1m])`, `increase(m1[15m] @ 1500)`,
	} {
		for _, plain := range []bool{false, true} {
			a, b := evaluate(t, alone, expr, plain), evaluate(t, three.source, expr, plain)
			if d := querytest.Diff(a, b, 1e-12); d != "" {
				t.Errorf("%s, plain %v: %s", expr, plain, d)
			}
		}
	}

	// Deletions reach every server.
	del := &peer.Select{Table: promqlsuite.Table, Lo: 3e11, Hi: 22e11, Matchers: []peer.Matcher{{Name: "i", Type: peer.MatchRegexp, Value: "[0-5]"}}}
	one.must(errors.Join(alone.DeleteSeries(t.Context(), del), three.source.DeleteSeries(t.Context(), del)))
	all := &peer.Select{Table: promqlsuite.Table, Hi: math.MaxInt64}
	if a, b := selected(t, alone, all), selected(t, three.source, all); a != b {
		t.Errorf("after a deletion:\n%.1000s\n%.1000s", a, b)
	}
	// Bounds apply to the whole.
	all.SamplesMax = 1000
	if got := selected(t, three.source, all); !strings.Contains(got, "more than 1000 samples") {
		t.Errorf("1000 samples at most: %.300s", got)
	}
	if st, err := three.source.Stats(t.Context(), promqlsuite.Table, 5); err != nil || st.HeadRows+st.SegmentRows == 0 || len(st.ByPartition) < 10 {
		t.Errorf("stats %+v %v", st, err)
	}
}

// spreadOver checks that the servers have something to merge.
func spreadOver(t *testing.T, s *spread) {
	t.Helper()
	for id, p := range s.parts {
		st, err := p.server.Stats(t.Context(), promqlsuite.Table, 1)
		s.must(err)
		if st.Partitions < 5 || st.Series < 10 {
			t.Errorf("%s has %d partitions and %d series: too few to prove anything", id, st.Partitions, st.Series)
		}
	}
}

func tuple(of []string, more bool, err error) (any, bool, error) {
	return strings.Join(of, " "), more, err
}

// randomBatch makes a batch of floats, stale markers, histograms and exemplars of 45 minutes.
func randomBatch(rng *rand.Rand) *point.Batch {
	b := point.GetBatch(point.NewDict(0))
	series := func(name string) point.SeriesID {
		return querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, name, "i", fmt.Sprint(rng.IntN(10))))
	}
	at := func() point.Nanos { return rng.Int64N(2700) * 1e9 }
	for range 200 {
		v := float64(rng.IntN(1000))
		if rng.IntN(10) == 0 {
			v = math.Float64frombits(point.StaleNaN)
		}
		b.Append(series(fmt.Sprint("m", 1+rng.IntN(2))), at(), v)
	}
	for range 20 {
		n := uint64(rng.IntN(100))
		h := &histogram.Histogram{Schema: 1, Count: n, Sum: float64(n), ZeroThreshold: 1e-128, ZeroCount: n}
		b.Hists = append(b.Hists, point.HistRow{ID: series("h"), Time: at(), H: point.AppendHistogram(nil, h)})
		b.Exemplars = append(b.Exemplars, point.ExemplarRow{ID: series("h"), Time: at(), Value: rng.Float64(), Labels: "\x05trace\x01x"})
	}
	return b
}

// selected returns the whole result of a select, as text.
func selected(t *testing.T, s query.Source, q *peer.Select) string {
	t.Helper()
	set, err := s.Select(t.Context(), q)
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for set.Next() {
		x := set.At()
		fmt.Fprint(&out, x.Labels, x.Times, " ")
		for _, v := range x.Values {
			fmt.Fprintf(&out, "%x ", math.Float64bits(v))
		}
		fmt.Fprintln(&out, x.Hists)
	}
	if err := errors.Join(set.Err(), set.Close()); err != nil {
		return err.Error()
	}
	return out.String()
}

func evaluate(t *testing.T, s query.Source, expr string, plain bool) *promql.Result {
	t.Helper()
	r, err := query.New(query.Deps{Source: s}, query.Settings{PlainEngine: plain})
	if err != nil {
		t.Fatal(err)
	}
	q, err := r.Engine().NewRangeQuery(t.Context(), r.Table(promqlsuite.Table), nil, expr, time.Unix(0, 0), time.Unix(2700, 0), 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return q.Exec(t.Context())
}

// TestAServerThatIsAwayIsMissed, by readers that need complete answers and by those that do not; and comes back at
// another address.
func TestAServerThatIsAwayIsMissed(t *testing.T) {
	s := openSpread(t, 3, true, 100*time.Second, 1)
	defer func() { s.must(s.close()) }()
	b := point.GetBatch(point.NewDict(0))
	for i := range int64(27) {
		b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m")), i*100e9, float64(i))
	}
	b.Metadata = append(b.Metadata, point.MetadataRow{Metric: "m", Type: "gauge"})
	s.must(s.insert(t.Context(), b))
	all := &peer.Select{Table: promqlsuite.Table, Hi: math.MaxInt64}
	whole := selected(t, s.source, all)

	s.must(s.parts["n2"].hangUp())
	_, err := s.source.Select(t.Context(), all)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "n2") || !strings.Contains(err.Error(), "partition") {
		t.Errorf("without n2: %v", err)
	}
	ctx, warned := query.WithWarnings(query.WithPartial(t.Context()))
	set, err := s.source.Select(ctx, all)
	s.must(err)
	rows := 0
	for set.Next() {
		rows += len(set.At().Times)
	}
	s.must(errors.Join(set.Err(), set.Close()))
	if rows != 18 || len(warned.Texts()) == 0 || !strings.Contains(warned.Texts()[0], "n2") {
		t.Errorf("without n2 there are %d rows, want 18; %q", rows, warned.Texts())
	}
	if err := s.source.DeleteSeries(ctx, &peer.Select{Table: promqlsuite.Table, Hi: 1, Matchers: []peer.Matcher{{Name: "x", Value: "y"}}}); err != nil {
		t.Errorf("a deletion that needs n1 alone: %v", err)
	}
	if err := s.source.DeleteSeries(ctx, &peer.Select{Table: promqlsuite.Table, Hi: math.MaxInt64, Matchers: []peer.Matcher{{Name: "x", Value: "y"}}}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a deletion is never partial: %v", err)
	}
	if rows, err := s.source.GetMetadata(t.Context(), promqlsuite.Table, "m"); err != nil || len(rows) != 1 {
		t.Errorf("metadata, which others have too: %v %v", rows, err)
	}

	s.serve(s.parts["n2"])
	deadline := time.Now().Add(time.Minute)
	for selected(t, s.source, all) != whole {
		if time.Now().After(deadline) {
			t.Fatalf("after its return: %s", selected(t, s.source, all))
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.must(s.insert(t.Context(), b)) // its streams were broken
	if got := selected(t, s.source, all); got != whole {
		t.Errorf("written again:\n%s\nwant\n%s", got, whole)
	}
}

// hangs is a store that can be away: then all calls hang.
type hangs struct {
	coord.Store
	away atomic.Bool
}

func (h *hangs) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if h.away.Load() {
		return nil, 0, fault.Errorf(fault.Unavailable, "the store is away")
	}
	return h.Store.List(ctx, prefix)
}

func (h *hangs) Get(ctx context.Context, key string) (coord.Row, bool, error) {
	if h.away.Load() {
		return coord.Row{}, false, fault.Errorf(fault.Unavailable, "the store is away")
	}
	return h.Store.Get(ctx, key)
}

func (h *hangs) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	if h.away.Load() {
		return fault.Errorf(fault.Unavailable, "the store is away")
	}
	return h.Store.Watch(ctx, prefix, after, f)
}

// Close leaves the store to the next gateway.
func (h *hangs) Close() error { return nil }

// TestAGatewayStartsAndReadsWithoutTheStore: its state on disk from an earlier life is enough (C127).
func TestAGatewayStartsAndReadsWithoutTheStore(t *testing.T) {
	s := openSpread(t, 3, true, 100*time.Second, 2)
	defer func() { s.must(s.close()) }()
	b := randomBatch(rand.New(rand.NewPCG(9, 9)))
	s.must(s.insert(t.Context(), b))
	all := &peer.Select{Table: promqlsuite.Table, Hi: math.MaxInt64}
	want := selected(t, s.source, all)

	store := &hangs{Store: s.store}
	cfg := &settings.Config{}
	cfg.DataDir = t.TempDir()
	cfg.Tables.PartitionWidth = setting.Span(100 * time.Second)
	cfg.Peer.Insecure = true
	log := slog.New(slog.DiscardHandler)
	life := func(f func(source *fanout.Source, write *forward.Forwarder)) {
		t.Helper()
		v := view.Cluster{Coord: store}
		s.must(v.Open(t.Context(), cfg, log, prometheus.NewRegistry(), "", peers.Local{}))
		ctx, stop := context.WithCancel(context.Background())
		var g run.Group
		v.Actors(ctx, &g)
		g.Add(func() error { <-ctx.Done(); return nil }, func(error) { stop() })
		ended := make(chan error)
		go func() { ended <- g.Run() }()
		write := forward.New(forward.Deps{Tables: v.Tables, Servers: v.Peers, Leaders: v.Leaders, Clock: forward.NewClock(0, nil), Log: log}, forward.Settings{})
		f(fanout.New(fanout.Deps{Tables: v.Tables, Leaders: v.Leaders, Servers: v.Peers, Log: log}, fanout.Settings{}), write)
		stop()
		s.must(errors.Join(<-ended, write.Close(), v.Close()))
	}
	reads := func(source *fanout.Source) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for selected(t, source, all) != want {
			if time.Now().After(deadline) {
				t.Fatalf("read %.500s\nwant %.500s", selected(t, source, all), want)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	life(func(source *fanout.Source, _ *forward.Forwarder) { reads(source) })
	store.away.Store(true)
	life(func(source *fanout.Source, write *forward.Forwarder) {
		reads(source)
		table, err := write.Table(t.Context(), promqlsuite.Table)
		s.must(err)
		s.must(table.Write(t.Context(), b, point.All)) // to partitions that exist
		reads(source)
	})
}
