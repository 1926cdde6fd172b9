package server

import (
	"context"
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/trace"
	"github.com/spillwaydb/spillway/storage/paged"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/series"
)

// stream is one gateway's stream into one table: its numbers for series, and their refs.
//
// Lock order: life, then define, then the index's own. The refs map is read without a lock by inserts, and grows under
// define: a number is published before the caller of Define may use it.
type stream struct {
	s    *Server
	t    *table
	refs paged.Map[point.SeriesID, series.Ref]

	// life is held for reading by Define and Insert, across the fsync, and for writing by Close: refs are valid until Close.
	life   sync.RWMutex
	closed bool

	define struct {
		sync.Mutex // one Define at a time; acquired after life
		ids        []point.SeriesID
		labels     []point.Labels
		refs       []series.Ref
	}
	scratch sync.Pool // *partition.Rows
	gated   gateQueue // inserts that wait at closed gates
}

var _ peer.Stream = (*stream)(nil)

// OpenStream implements peer.Storage.
func (s *Server) OpenStream(_ context.Context, name string) (peer.Stream, error) {
	if _, ok := s.deps.Maps.Get(name); !ok {
		return nil, fault.Errorf(fault.Stale, "table %q is not known here", name)
	}
	st := &stream{s: s, t: s.tableOrNew(name)}
	st.scratch.New = func() any { return new(partition.Rows) }
	return st, nil
}

// Define implements peer.Stream. The stream holds a reference on every series it defined until it is closed.
func (st *stream) Define(_ context.Context, defs []peer.Def) error {
	st.life.RLock()
	defer st.life.RUnlock()
	if st.closed {
		return errClosed
	}
	st.define.Lock()
	defer st.define.Unlock()
	for part := range slices.Chunk(defs, defineSection) {
		if _, err := st.defineLocked(part, true); err != nil {
			return err
		}
	}
	return nil
}

// defineSection bounds the scratch of a stream.
const defineSection = 2048

// defineLocked defines series. Where makes is false those that are not there are refused.
// Labels are interned before a number is published, in one call for all. Each number put holds one reference of the
// index, which Close releases; a number that is defined twice keeps the first. Errors are
// Throttled.
func (st *stream) defineLocked(defs []peer.Def, makes bool) (refused []point.SeriesID, err error) {
	s := &st.define
	s.ids, s.labels = s.ids[:0], s.labels[:0]
	for _, d := range defs {
		if int(d.ID) >= st.s.settings.StreamSeriesMax {
			return nil, fault.Errorf(fault.Throttled, "series number %d: a stream defines at most %d", d.ID, st.s.settings.StreamSeriesMax)
		}
		if _, ok := st.refs.Get(d.ID); !ok {
			s.ids, s.labels = append(s.ids, d.ID), append(s.labels, d.Labels)
		}
	}
	if makes {
		s.refs = st.t.index.InternAll(s.labels, s.refs[:0])
	} else {
		s.refs = st.t.index.TakeAll(s.labels, s.refs[:0])
	}
	for i, ref := range s.refs {
		if ref == series.None {
			refused = append(refused, s.ids[i])
			continue
		}
		if _, ok := st.refs.Get(s.ids[i]); ok { // defined twice in one call
			st.t.index.Release(ref)
			continue
		}
		st.refs.Put(s.ids[i], ref)
	}
	clear(s.labels) // a scratch keeps no series
	return refused, nil
}

// Insert implements peer.Stream.
func (st *stream) Insert(ctx context.Context, in *peer.Insert) error {
	if st.s.deps.Writes != nil {
		used, waits := st.s.deps.Writes.Until(), peer.Waiting(ctx)
		defer used()
		ctx = peer.WithWaiting(ctx, func() { used(); waits() })
	}
	return st.s.named(st.t.name, st.insert(ctx, in))
}

// The order of the checks, cheapest first, and the case against each other order:
//
//	memory     Throttled before anything is done: a table over its share must not fill the log either
//	enter      lease, gate, lease: from here on a hand-over waits for this insert
//	led        the partition, made by its first row and led in this epoch
//	timely     the stamp against the servers' clocks; one that was accepted too early would win for ever
//	Stalled    rows that the gateway can stage elsewhere need not wait for a copy that is away
//	Append     log, fsync, copies
//	confirm    the lease again, after all waits: a new leader may have acked other rows meanwhile
//
// An error after Append leaves rows that are kept and not acked; a second try with the same stamp is recognised (Once).
func (st *stream) insert(ctx context.Context, in *peer.Insert) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	st.life.RLock()
	defer st.life.RUnlock()
	if st.closed {
		return errClosed
	}
	if in.Staging != nil && in.Staging.Do != peer.Forward && in.Staging.Do != peer.Inherit {
		ctx, span := trace.Step(ctx, "stage")
		err := st.stage(ctx, in)
		span.End(err)
		return err
	}
	defer st.s.enterUnnamed(st.t.name, in)()
	pa, p, err := st.lead(ctx, in, bytesOf(in))
	if err != nil {
		return err
	}
	defer pa.gate.leave()
	forwarded := in.Staging != nil // its rank was checked where it was first accepted, and is kept
	if !forwarded {
		if err := st.s.timely(in.Stamp); err != nil {
			return err
		}
	}
	soon := !forwarded && in.Level == point.All && st.s.deps.Staging != nil // the gateway stages them
	if soon && st.s.kept(st.t.name, in.Partition) {
		if err := st.s.deps.Chains.Stalled(lease.Partition{Table: st.t.name, ID: in.Partition}); err != nil {
			return err
		}
	}
	leave, err := st.s.enterSlice(st.t.name, in)
	if err != nil {
		return err
	}
	defer leave()
	r := st.scratch.Get().(*partition.Rows)
	if err = st.translate(r, in); err == nil {
		// Foreign rows keep the rank that they came with; Once refuses a stamp that was accepted before, that of a
		// second try; Missing rows give way to those that are here with their rank or a higher one.
		r.Epoch, r.Waits = pa.epoch, peer.Waiting(ctx)
		r.Foreign, r.Once, r.Missing = forwarded, !forwarded, forwarded && in.Staging.Do == peer.Inherit
		r.Soon, r.Now = soon, st.s.now()
		_, span := trace.Step(ctx, "append") // to the log, with its fsync, and to the copies
		err = p.Append(r)
		span.End(err)
	}
	if err == nil {
		st.s.accepted(pa, len(in.IDs)+len(in.Hists))
		err = st.s.confirm(st.t, pa)
	}
	// The scratch keeps its own columns alone: a pool that kept the caller's would write into memory that the link
	// reuses.
	*r = partition.Rows{Refs: r.Refs, HistRefs: r.HistRefs, ExemplarRefs: r.ExemplarRefs} // the columns are the caller's
	st.scratch.Put(r)
	return err
}

// lead enters the partition of an insert of some bytes, whose gate the caller leaves.
func (st *stream) lead(ctx context.Context, in *peer.Insert, bytes int) (pass, *partition.Partition, error) {
	if err := st.t.heads.admit(); err != nil {
		st.s.metrics.throttled.Inc()
		return pass{}, nil, err
	}
	pa, err := st.s.enter(ctx, st.t, in.Partition, in.Level, &st.gated, bytes)
	if err != nil {
		return pass{}, nil, err
	}
	if err := underItsLease(st.t.name, in, pa); err != nil { // before a first row is expected
		pa.gate.leave()
		return pass{}, nil, err
	}
	p, err := st.s.led(ctx, st.t, pa)
	if err != nil {
		pa.gate.leave()
	}
	return pa, p, err
}

// translate turns stream numbers into refs.
func (st *stream) translate(r *partition.Rows, in *peer.Insert) error {
	r.Stamp, r.Level = in.Stamp, in.Level
	r.Times, r.Values = in.Times, in.Values
	r.Hists, r.Exemplars = in.Hists, in.Exemplars
	var ok bool
	if r.Refs, ok = st.refs.Append(r.Refs[:0], in.IDs); !ok {
		return errUndefined
	}
	r.HistRefs = r.HistRefs[:0]
	for _, h := range in.Hists {
		ref, ok := st.refs.Get(h.ID)
		if !ok {
			return errUndefined
		}
		r.HistRefs = append(r.HistRefs, ref)
	}
	r.ExemplarRefs = r.ExemplarRefs[:0]
	for _, e := range in.Exemplars {
		ref, ok := st.refs.Get(e.ID)
		if !ok {
			return errUndefined
		}
		r.ExemplarRefs = append(r.ExemplarRefs, ref)
	}
	return nil
}

var errClosed = fault.Errorf(fault.Unavailable, "the stream is closed")

var errUndefined = fault.Errorf(fault.Internal, "a row names a series that its stream did not define")

// Close implements peer.Stream.
func (st *stream) Close() error {
	st.life.Lock()
	defer st.life.Unlock()
	if !st.closed {
		st.closed = true
		st.refs.Each(func(_ point.SeriesID, ref series.Ref) { st.t.index.Release(ref) })
	}
	return nil
}
