package server

import (
	"context"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/trace"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/staging"
	"github.com/spillwaydb/spillway/storage/staging/runner"
)

var _ peer.Together = (*stream)(nil)

// InsertTogether implements peer.Together.
func (st *stream) InsertTogether(ctx context.Context, all []*peer.Insert) error {
	if err := peer.CheckTogether(all); err != nil {
		return st.s.named(st.t.name, err)
	}
	if st.s.deps.Writes != nil {
		used, waits := st.s.deps.Writes.Until(), peer.Waiting(ctx)
		defer used()
		ctx = peer.WithWaiting(ctx, func() { used(); waits() })
	}
	return st.s.named(st.t.name, st.insertAll(ctx, all))
}

func (st *stream) insertAll(ctx context.Context, all []*peer.Insert) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	st.life.RLock()
	defer st.life.RUnlock()
	if st.closed {
		return errClosed
	}
	switch all[0].Staging.Do {
	case peer.Stage:
		ctx, span := trace.Step(ctx, "stage")
		err := st.stageAll(ctx, all)
		span.End(err)
		return err
	case peer.Forget:
		return st.forgetAll(all)
	}
	return st.forwardAll(ctx, all)
}

// stageAll is stage of several frames.
func (st *stream) stageAll(ctx context.Context, all []*peer.Insert) error {
	to := st.s.deps.Staging
	if to == nil {
		return errNoStaging
	}
	frames := make([]runner.Staged, 0, len(all))
	rows := st.scratches(len(all))
	defer st.putScratches(rows)
	for i, in := range all {
		if err := st.s.timely(in.Stamp); err != nil {
			return err
		}
		if err := st.translate(rows[i], in); err != nil {
			return err
		}
		c := containers.Get().(*container)
		defer c.put()
		frames = append(frames, runner.Staged{Of: in.Staging, Frame: c.fill(st.t.index, rows[i])})
	}
	peer.Waiting(ctx)()
	return to.StageAll(ctx, st.t.name, all[0].MapSeq, frames)
}

func (st *stream) forgetAll(all []*peer.Insert) error {
	to := st.s.deps.Staging
	if to == nil {
		return errNoStaging
	}
	ids := make([]staging.ID, 0, len(all))
	for _, in := range all {
		ids = append(ids, staging.ID{Stamp: in.Stamp, Nonce: in.Staging.Nonce})
	}
	return to.Forget(ids...)
}

// forwardAll appends rows that others ordered, frame by frame, as each has its own rank, with one wait for the disk and the copies. The order of the checks is
// that of insert.
func (st *stream) forwardAll(ctx context.Context, all []*peer.Insert) error {
	defer st.s.enterUnnamed(st.t.name, all[0])() // they are of one
	bytes := 0
	for _, in := range all {
		bytes += bytesOf(in)
	}
	pa, p, err := st.lead(ctx, all[0], bytes)
	if err != nil {
		return err
	}
	defer pa.gate.leave()
	leave, err := st.s.enterSlice(st.t.name, all[0])
	if err != nil {
		return err
	}
	defer leave()
	rows := st.scratches(len(all))
	defer st.putScratches(rows)
	for i, in := range all {
		r := rows[i]
		if err := st.translate(r, in); err != nil {
			return err
		}
		r.Epoch, r.Waits = pa.epoch, peer.Waiting(ctx)
		r.Foreign, r.Missing = true, in.Staging.Do == peer.Inherit
	}
	_, span := trace.Step(ctx, "append")
	err = p.AppendAll(rows)
	span.End(err)
	if err != nil {
		return err
	}
	st.s.accepted(pa, peer.RowsOf(all))
	return st.s.confirm(st.t, pa)
}

func (st *stream) scratches(n int) []*partition.Rows {
	rows := make([]*partition.Rows, n)
	for i := range rows {
		rows[i] = st.scratch.Get().(*partition.Rows)
	}
	return rows
}

// putScratches keeps the scratches' own columns alone: the others are the caller's.
func (st *stream) putScratches(rows []*partition.Rows) {
	for _, r := range rows {
		*r = partition.Rows{Refs: r.Refs, HistRefs: r.HistRefs, ExemplarRefs: r.ExemplarRefs}
		st.scratch.Put(r)
	}
}
