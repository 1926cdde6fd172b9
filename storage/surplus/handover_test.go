package surplus

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

type noBytes struct{}

func (noBytes) Add(int64) {}

// node is a placement of partition 1.
type node struct {
	*partition.Partition
	t     *testing.T
	index *series.Index
}

func openNode(t *testing.T, id point.PlacementID) *node {
	t.Helper()
	n := &node{t: t, index: series.New()}
	log := slog.New(slog.DiscardHandler)
	b, err := brick.Open(brick.Deps{FS: vfs.NewMem(), Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	n.must(err)
	n.must(b.Recover(func(point.PlacementID) point.Serial { return point.Serial{} }, func(point.PlacementID, point.Serial, []byte) error { return nil }))
	deps := partition.Deps{Brick: b, Index: n.index, Cache: segment.NewCache(1 << 14), Log: log, Metrics: partition.NewMetrics(prometheus.NewRegistry()),
		HeadBytes: noBytes{}, Compacting: new(budget.Held)}
	n.Partition, err = partition.Create(deps, partition.Settings{}, partition.Identity{Table: "t", Partition: 1, Placement: id, TimeHi: 1 << 60}, 0)
	n.must(err)
	t.Cleanup(func() {
		n.Close()
		n.must(b.Close())
	})
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// put writes one row; labels are of a series that is named so.
func (n *node) put(r partition.Rows, name string, at point.Nanos, v float64) error {
	ref := n.index.Intern(point.MakeLabels(point.MetricName, name))
	defer n.index.Release(ref)
	r.Refs, r.Times, r.Values = []series.Ref{ref}, []point.Nanos{at}, []float64{v}
	return n.Append(&r)
}

// newest are the values that readers see, by series and time.
func (n *node) newest() map[string]float64 {
	n.t.Helper()
	v, err := n.View()
	n.must(err)
	defer v.Close()
	got := map[string]float64{}
	ss, err := v.Match(nil)
	n.must(err)
	n.must(v.Read(ss, math.MinInt64, math.MaxInt64, func(i int, r rows.Run) error {
		for j, at := range r.Times {
			got[fmt.Sprintf("%s %d", ss[i].Labels.Get(point.MetricName), at)] = r.Values[j]
		}
		return nil
	}))
	return got
}

// leader is a cluster of one server that leads partition 1.
type leader struct {
	n       *node
	epoch   point.Epoch
	m       *topology.Map
	refuses error // of the next inserts
	stops   int   // the insert of that number ends the process that hands over, after it was done
	cancel  context.CancelFunc
	inserts int
}

func (l *leader) Map(string) (*topology.Map, uint64)                            { return l.m, 1 }
func (l *leader) Cover(context.Context, string, []point.Nanos) error            { panic("all is covered") }
func (l *leader) Server(topology.ServerID) (peer.Storage, bool)                 { return storage{l: l}, true }
func (l *leader) Leader(string, *topology.Partition) (topology.ServerID, error) { return "m", nil }

type storage struct {
	peer.Storage
	l *leader
}

func (s storage) OpenStream(context.Context, string) (peer.Stream, error) {
	return &stream{l: s.l, labels: map[point.SeriesID]point.Labels{}}, nil
}

type stream struct {
	l      *leader
	labels map[point.SeriesID]point.Labels
}

func (s *stream) Define(_ context.Context, defs []peer.Def) error {
	for _, d := range defs {
		s.labels[d.ID] = d.Labels
	}
	return nil
}

func (s *stream) Close() error { return nil }

func (s *stream) Insert(ctx context.Context, in *peer.Insert) error {
	if s.l.refuses != nil {
		return s.l.refuses
	}
	if in.Staging.Do != peer.Inherit || in.Level != point.All {
		s.l.n.t.Errorf("inserted as %v, level %v", in.Staging.Do, in.Level)
	}
	for i, id := range in.IDs {
		s.l.n.must(s.l.n.put(partition.Rows{Epoch: s.l.epoch, Stamp: in.Stamp, Foreign: true, Missing: true}, s.labels[id].Get(point.MetricName), in.Times[i], in.Values[i]))
	}
	if s.l.inserts++; s.l.inserts == s.l.stops {
		s.l.cancel()
		return ctx.Err()
	}
	return nil
}

// parted is H, which led epoch 1 and took rows, and a deletion, that M never had, and M, which leads epoch 2 and replaced one of them. H follows.
func parted(t *testing.T) (h *node, l *leader) {
	h, m := openNode(t, 1), openNode(t, 2)
	h.must(h.Lead(1))
	row := func(epoch point.Epoch, stamp point.Stamp) partition.Rows {
		return partition.Rows{Epoch: epoch, Stamp: stamp << 10}
	}
	h.must(h.DeleteLate(t.Context(), 1, []peer.Matcher{{Name: point.MetricName, Value: "only"}}, 0, 100))
	h.must(h.put(row(1, 10), "only", 1, 10))
	h.must(h.put(row(1, 11), "replaced", 2, 11))
	h.must(h.put(row(1, 12), "last", 3, 12))

	m.must(m.Lead(2))
	m.must(m.put(row(2, 1<<40), "replaced", 2, 99))
	h.must(h.FollowLeader(2))
	s, err := h.Cut(point.Serial{})
	h.must(err)
	if s.Frames != 4 {
		t.Fatalf("%d frames are set aside", s.Frames)
	}
	tm, err := topology.New("t", topology.Config{PartitionWidth: time.Hour, Replicas: 2})
	h.must(err)
	tm = tm.Cover([]point.Nanos{0}, func(point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 1, Server: "h"}, {ID: 2, Server: "m"}}
	})
	return h, &leader{n: m, epoch: 2, m: tm}
}

func (l *leader) handover(h *node) *Handover {
	return New(Deps{Ways: l, Partitions: func() []*partition.Partition { return []*partition.Partition{h.Partition} }, Log: slog.New(slog.DiscardHandler)}, Settings{})
}

// all are M's rows once everything is handed over: what was written later won.
var all = map[string]float64{"only 1": 10, "replaced 2": 99, "last 3": 12}

func (l *leader) wants(t *testing.T, h *node) {
	t.Helper()
	got := l.n.newest()
	if len(got) != len(all) {
		t.Errorf("the leader has %v, want %v", got, all)
	}
	for k, v := range all {
		if got[k] != v {
			t.Errorf("the leader has %v, want %v", got, all)
		}
	}
	if files, err := h.SurplusFiles(); err != nil || len(files) > 0 || h.HasSurplus() {
		t.Errorf("%v, %v are left", files, err)
	}
	if rows := l.n.HeadRows(); rows != len(all) {
		t.Errorf("the leader logged %d rows for %d", rows, len(all))
	}
}

func TestRowsThatOnlyTheFormerLeaderHadAreNotLost(t *testing.T) {
	h, l := parted(t)
	x := l.handover(h)
	x.look(t.Context())
	l.wants(t, h)
	if testutil.ToFloat64(x.metrics.rows) != 3 || testutil.ToFloat64(x.metrics.deletions) != 1 || testutil.ToFloat64(x.metrics.waiting) != 0 {
		t.Errorf("%v rows, %v deletions, %v files wait", testutil.ToFloat64(x.metrics.rows), testutil.ToFloat64(x.metrics.deletions), testutil.ToFloat64(x.metrics.waiting))
	}
	x.look(t.Context())
	l.wants(t, h)
}

func TestSurplusIsKeptUntilALeaderHasIt(t *testing.T) {
	h, l := parted(t)
	x := l.handover(h)
	l.refuses = fault.Errorf(fault.Unavailable, "not led here")
	x.look(t.Context())
	if files, err := h.SurplusFiles(); err != nil || len(files) != 1 || !h.HasSurplus() || testutil.ToFloat64(x.metrics.waiting) != 1 || files[0].Bytes == 0 || testutil.ToFloat64(x.metrics.bytes) != float64(files[0].Bytes) {
		t.Errorf("%v, %v", files, err)
	}
	l.refuses = nil
	x.look(t.Context())
	l.wants(t, h)
}

// TestSurplusThatIsHandedOverTwiceCountsOnce: the process ends after some of the frames were taken, before it removed the file.
func TestSurplusThatIsHandedOverTwiceCountsOnce(t *testing.T) {
	h, l := parted(t)
	for l.stops = 1; l.stops <= 3; l.stops++ {
		ctx, cancel := context.WithCancel(t.Context())
		l.cancel, l.inserts = cancel, 0
		l.handover(h).look(ctx)
		if files, err := h.SurplusFiles(); err != nil || len(files) != 1 {
			t.Fatalf("ended at insert %d: %v, %v", l.stops, files, err)
		}
	}
	l.stops = 0
	l.handover(h).look(t.Context())
	l.wants(t, h)
}

// TestSurplusOfADroppedTableStaysOutOfTheNextOfItsName: the table was dropped and made again, and the file is still there.
func TestSurplusOfADroppedTableStaysOutOfTheNextOfItsName(t *testing.T) {
	h, l := parted(t)
	x, were := l.handover(h), l.m
	next, err := topology.New("t", were.Config)
	h.must(err)
	l.m = next.Cover([]point.Nanos{0}, func(point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 7, Server: "h"}, {ID: 8, Server: "m"}}
	})
	x.look(t.Context())
	if l.inserts != 0 || testutil.ToFloat64(x.metrics.waiting) != 1 {
		t.Errorf("%d inserts into the new table", l.inserts)
	}
	l.m = were
	x.look(t.Context())
	l.wants(t, h)
}

// TestADamagedFileIsAnErrorOnceAnHour: it is tried every two seconds, and each try was an error in the log.
func TestADamagedFileIsAnErrorOnceAnHour(t *testing.T) {
	h, l := parted(t)
	x := l.handover(h)
	var log strings.Builder
	x.deps.Log = slog.New(slog.NewTextHandler(&log, nil))
	l.refuses = fault.Errorf(fault.Corrupt, "checksum")
	looks := func(errors int, why string) {
		t.Helper()
		log.Reset()
		for range 3 {
			x.look(t.Context())
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != errors {
			t.Errorf("%s: %d errors in three tries, want %d", why, n, errors)
		}
	}
	looks(1, "found")
	looks(0, "known")
	for path := range x.said {
		x.said[path] = time.Now().Add(-sayEvery)
	}
	looks(1, "an hour later")
	l.refuses = nil
	looks(0, "taken")
	l.wants(t, h)
	if len(x.said) > 0 {
		t.Errorf("remembered: %v", x.said)
	}
}
