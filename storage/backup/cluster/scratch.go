package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
	"github.com/spillwaydb/spillway/storage/unload/runner"
)

const (
	// sliceBytes bounds the rows of a partition in memory at a time.
	sliceBytes = 16 << 20
	// sendsAtOnce is how many frames of a slice are on their way: they share the fsyncs of their leaders.
	sendsAtOnce = 16
	// scratchCacheBytes is the cache of a store that is read once.
	scratchCacheBytes = 8 << 20
)

// oneMap is the map that a scratch store knows.
type oneMap struct{ m *topology.Map }

// Get implements server.Maps.
func (o oneMap) Get(table string) (*topology.Map, bool) { return o.m, table == o.m.Table }

// partition restores a partition: its files become a store for a while, which is read as the leader of a split reads its partition.
func (r *restorer) partition(ctx context.Context, m *topology.Map, p *backup.Part, exact bool) (err error) {
	fs := r.set.FS
	dir := fs.PathJoin(r.set.Scratch, fmt.Sprintf("%016x", uint64(p.Placement)))
	deps, where := brick.Deps{FS: fs, Log: r.set.Log}, brick.Settings{DataDir: dir, FreeBytesMin: 1}
	res, err := backup.RestorePart(ctx, r.at, r.name, r.m, p.Placement, deps, where, backup.Settings{BytesPerSecond: r.set.BytesPerSecond})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fs.RemoveAll(dir)) }()
	defer r.passed(res.Segments, res.Bytes)
	if len(res.Missing) > 0 {
		for _, what := range res.Missing {
			r.lacks("partition %s/%d is not restored: %s", m.Table, p.ID, what)
		}
		return nil
	}
	b, err := brick.Open(deps, where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	epoch := b.EpochMax() + 1
	s, err := server.Open(ctx, server.Deps{Brick: b, Maps: oneMap{m}, Log: r.set.Log, Registerer: prometheus.NewRegistry()}, server.Settings{Server: "restore", Epoch: epoch, CacheBytes: scratchCacheBytes, NoScrub: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	key := lease.Partition{Table: m.Table, ID: p.ID}
	err = r.rows(ctx, s, m, key, epoch, exact)
	if fault.Is(err, fault.Corrupt) {
		r.lacks("partition %v is not restored whole: %v", key, err)
		return nil
	}
	return err
}

// rows sends all rows of a partition, and its exemplars, which may lie before and after them.
func (r *restorer) rows(ctx context.Context, s *server.Server, m *topology.Map, key lease.Partition, epoch point.Epoch, exact bool) error {
	at, ok := m.ByID(key.ID)
	if !ok {
		return fault.Errorf(fault.Corrupt, "the map of the backup does not have it")
	}
	type span struct{ lo, hi point.Nanos }
	spans := []span{{at.TimeLo, at.TimeHi - 1}}
	if lo, hi, ok := s.Bounds(key); ok {
		spans = []span{{at.TimeLo, lo - 1}, {lo, hi}, {hi + 1, at.TimeHi - 1}}
	}
	for _, of := range spans {
		if err := r.slices(ctx, s, key, epoch, of.lo, of.hi, exact); err != nil {
			return err
		}
	}
	return nil
}

// slices sends the rows of the times [lo, hi], as many at once as fit.
func (r *restorer) slices(ctx context.Context, s *server.Server, key lease.Partition, epoch point.Epoch, lo, hi point.Nanos, exact bool) error {
	width := hi - lo + 1
	for from := lo; from <= hi; {
		end := hi
		if width-1 < hi-from {
			end = from + width - 1
		}
		most := int64(sliceBytes)
		if end == from { // one time's rows go together, whatever their size
			most = 0
		}
		g := runner.NewGather(most, exact)
		err := s.Rows(ctx, key, epoch, from, end, g.Take)
		if runner.IsFull(err) {
			full := float64(g.Bytes()) / g.Share() // series are much alike
			width = max(1, min(point.Nanos(float64(end-from)*0.75*sliceBytes/full), (end-from)/2))
			continue
		}
		if err != nil {
			return err
		}
		if err := r.frames(ctx, key.Table, g); err != nil {
			return err
		}
		if g.Bytes() < sliceBytes/3 && width < (hi-lo)/2 {
			width *= 2
		}
		if end == hi {
			return nil
		}
		from = end + 1
	}
	return nil
}

// frames sends a slice.
func (r *restorer) frames(ctx context.Context, table string, of *runner.Gather) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sendsAtOnce)
	for _, f := range of.Frames() {
		g.Go(func() error { return r.send(ctx, table, f) })
	}
	return g.Wait()
}
