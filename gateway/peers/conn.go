package peers

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/trace"
)

// conn is the connection to one server, behind its breaker.
type conn struct {
	// Constant.
	id      topology.ServerID
	addr    string
	peer    Peer
	metrics *metrics

	breaker breaker
}

var (
	_ peer.Storage     = (*conn)(nil)
	_ peer.Evaluations = (*conn)(nil)
	_ peer.Metadata    = (*conn)(nil)
)

// call makes one call through the breaker. Errors name the server.
func (c *conn) call(f func() error) error {
	began := time.Now()
	if err := c.breaker.enter(began); err != nil {
		c.metrics.refused.Inc()
		return fault.Annotate(err, "server %s at %s", c.id, c.addr)
	}
	err := f()
	c.breaker.leave(began, time.Now(), err, rand.Float64())
	if fault.Is(err, fault.Unavailable) {
		c.metrics.failed.Inc()
	}
	return fault.Annotate(err, "server %s", c.id)
}

// write is call for what a server refuses while its disk is full. A refusal that the server itself sent (own) shows that it runs and answers readers, and
// does not count against it; Unavailable from any other call does.
func (c *conn) write(own func(error) bool, f func() error) error {
	var refused error
	err := c.call(func() error {
		err := f()
		if own(err) {
			refused = err
			return nil
		}
		return err
	})
	if refused != nil {
		return fault.Annotate(refused, "server %s", c.id)
	}
	return err
}

// OpenStream implements peer.Storage.
func (c *conn) OpenStream(ctx context.Context, table string) (peer.Stream, error) {
	var s peer.Stream
	err := c.call(func() (err error) { s, err = c.peer.OpenStream(ctx, table); return err })
	if err != nil {
		return nil, err
	}
	return &stream{c, s}, nil
}

// stream is a stream whose calls report the server's state to the breaker.
type stream struct {
	c     *conn
	inner peer.Stream
}

// Define implements peer.Stream.
func (s *stream) Define(ctx context.Context, defs []peer.Def) error {
	return s.c.call(func() error { return s.inner.Define(ctx, defs) })
}

// Offer implements peer.Offerer.
func (s *stream) Offer(ctx context.Context, defs []peer.Def) (refused peer.Refused, err error) {
	to, offers := s.inner.(peer.Offerer)
	if !offers {
		return refused, s.Define(ctx, defs)
	}
	err = s.c.call(func() (err error) { refused, err = to.Offer(ctx, defs); return err })
	return refused, err
}

// Insert implements peer.Stream.
func (s *stream) Insert(ctx context.Context, in *peer.Insert) error {
	ctx, span := trace.Client(ctx, "peer Insert")
	span.Text("server.address", s.c.addr)
	span.Count("spillway.rows", len(in.IDs)+len(in.Hists))
	err := s.c.write(answered, func() error { return s.inner.Insert(ctx, in) })
	span.End(err)
	return err
}

// InsertTogether implements peer.Together.
func (s *stream) InsertTogether(ctx context.Context, all []*peer.Insert) error {
	ctx, span := trace.Client(ctx, "peer Insert")
	span.Text("server.address", s.c.addr)
	span.Count("spillway.rows", peer.RowsOf(all))
	err := s.c.write(answered, func() error { return peer.InsertTogether(ctx, s.inner, all) })
	span.End(err)
	return err
}

// answered reports whether the Unavailable of an insert is the server's own word.
func answered(err error) bool {
	return fault.Is(err, fault.Unavailable) && !errors.Is(err, peer.ErrStreamBroken) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// Close implements peer.Stream.
func (s *stream) Close() error { return s.inner.Close() }

// Select implements peer.Storage.
func (c *conn) Select(ctx context.Context, q *peer.Select) (set peer.SeriesSet, err error) {
	err = c.call(func() (err error) { set, err = c.peer.Select(ctx, q); return err })
	return set, err
}

// LabelNames implements peer.Storage.
func (c *conn) LabelNames(ctx context.Context, q *peer.Select, limit int) (names []string, truncated bool, err error) {
	err = c.call(func() (err error) { names, truncated, err = c.peer.LabelNames(ctx, q, limit); return err })
	return names, truncated, err
}

// LabelValues implements peer.Storage.
func (c *conn) LabelValues(ctx context.Context, q *peer.Select, name string, limit int) (values []string, truncated bool, err error) {
	err = c.call(func() (err error) { values, truncated, err = c.peer.LabelValues(ctx, q, name, limit); return err })
	return values, truncated, err
}

// Exemplars implements peer.Storage.
func (c *conn) Exemplars(ctx context.Context, q *peer.Select, sets [][]peer.Matcher) (found []peer.SeriesExemplars, err error) {
	err = c.call(func() (err error) {
		found, err = c.peer.Exemplars(ctx, q, sets)
		return err
	})
	return found, err
}

// PutMetadata implements peer.Storage.
func (c *conn) PutMetadata(ctx context.Context, table string, rows []point.MetadataRow) error {
	return c.write(peer.IsAnswer, func() error { return c.peer.PutMetadata(ctx, table, rows) })
}

// GetMetadata implements peer.Storage.
func (c *conn) GetMetadata(ctx context.Context, table, metric string) (rows []point.MetadataRow, err error) {
	err = c.call(func() (err error) { rows, err = c.peer.GetMetadata(ctx, table, metric); return err })
	return rows, err
}

// DeleteSeries implements peer.Storage.
func (c *conn) DeleteSeries(ctx context.Context, q *peer.Select) error {
	return c.write(peer.IsAnswer, func() error { return c.peer.DeleteSeries(ctx, q) })
}

// CleanTombstones implements peer.Storage.
func (c *conn) CleanTombstones(ctx context.Context, q *peer.Select) error {
	return c.write(peer.IsAnswer, func() error { return c.peer.CleanTombstones(ctx, q) })
}

// Stats implements peer.Storage.
func (c *conn) Stats(ctx context.Context, table string, topN int) (st *peer.Stats, err error) {
	err = c.call(func() (err error) { st, err = c.peer.Stats(ctx, table, topN); return err })
	return st, err
}

// StagedStats implements peer.StagedCounter.
func (c *conn) StagedStats(ctx context.Context, table string) (st *peer.Stats, err error) {
	at, ok := c.peer.(peer.StagedCounter)
	if !ok {
		return nil, fault.Errorf(fault.Unavailable, "the server does not count staged rows")
	}
	err = c.call(func() error { st, err = at.StagedStats(ctx, table); return err })
	return st, err
}

// StagedTimes implements peer.StagedRanger.
func (c *conn) StagedTimes(ctx context.Context, table string) (lo, hi point.Nanos, err error) {
	at, ok := c.peer.(peer.StagedRanger)
	if !ok {
		return 0, 0, fault.Errorf(fault.Invalid, "the server does not know the times of staged rows")
	}
	err = c.call(func() error { lo, hi, err = at.StagedTimes(ctx, table); return err })
	return lo, hi, err
}

// EndSlices implements peer.SliceEnder.
func (c *conn) EndSlices(ctx context.Context, table string, parent point.PartitionID, below point.Epoch) error {
	at, ok := c.peer.(peer.SliceEnder)
	if !ok {
		return fault.Errorf(fault.Invalid, "the server accepts slices of any epoch")
	}
	return c.write(peer.IsAnswer, func() error { return at.EndSlices(ctx, table, parent, below) })
}

// HighestRank implements peer.SealedRanker.
func (c *conn) HighestRank(ctx context.Context, table string, id point.PartitionID) (highest point.Stamp, err error) {
	at, ok := c.peer.(peer.SealedRanker)
	if !ok {
		return 0, fault.Errorf(fault.Invalid, "the server does not report the ranks of partitions")
	}
	err = c.write(peer.IsAnswer, func() error { highest, err = at.HighestRank(ctx, table, id); return err })
	return highest, err
}

// OpenSnapshot implements peer.Snapshots.
func (c *conn) OpenSnapshot(ctx context.Context, table string, id point.PartitionID) (snap peer.Snapshot, err error) {
	at, ok := c.peer.(peer.Snapshots)
	if !ok {
		return nil, fault.Errorf(fault.Invalid, "the server makes no snapshots")
	}
	err = c.call(func() error { snap, err = at.OpenSnapshot(ctx, table, id); return err })
	return snap, err
}

// StagedFrames implements peer.Snapshots.
func (c *conn) StagedFrames(ctx context.Context, table string, give func(frame []byte) error) error {
	at, ok := c.peer.(peer.Snapshots)
	if !ok {
		return fault.Errorf(fault.Invalid, "the server makes no snapshots")
	}
	var refused error // by give: it says nothing about the server
	err := c.call(func() error {
		err := at.StagedFrames(ctx, table, func(frame []byte) error {
			refused = give(frame)
			return refused
		})
		if refused != nil {
			return nil
		}
		return err
	})
	return cmp.Or(refused, err)
}

// Change implements peer.Metadata.
func (c *conn) Change(ctx context.Context, ch *peer.Change) (done *peer.Changed, err error) {
	err = c.call(func() (err error) { done, err = c.peer.Change(ctx, ch); return err })
	return done, err
}

// Store implements peer.Metadata.
func (c *conn) Store(ctx context.Context, f *peer.File) error {
	return c.call(func() error { return c.peer.Store(ctx, f) })
}

// Fetch implements peer.Metadata.
func (c *conn) Fetch(ctx context.Context, q *peer.FileQuery) (f *peer.File, err error) {
	err = c.call(func() (err error) { f, err = c.peer.Fetch(ctx, q); return err })
	return f, err
}
