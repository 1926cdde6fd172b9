package server

import (
	"context"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Replay is a line of three: one goroutine reads and checks the log, as many as there are processors decode frames in any
// order, and as many apply them, each placement's in the order of its log.
//
//	Recover ─▶ task ─┬─▶ decode ─▶ decoder, decoder, … ─▶ task.decoded
//	                 └─▶ apply[placement] ────────────────▶ waits until decoded, then ReplayFrame ─▶ free ─▶ next task
//
// Most stores have one partition that matters, the one of today: decoding it in parallel with applying halves the time to start.

// tasksPerWorker bounds the records read ahead, and with them the frames in memory.
const tasksPerWorker = 32

// task is one record on its way.
type task struct {
	p       *partition.Partition
	rec     []byte
	frame   frame.Frame
	decoded chan error // one for each rec
}

// No queue can be full, as each has room for all tasks: so the one goroutine that hands them out in order cannot be
// held up by one placement while another has none, and no two goroutines wait for each other. What bounds memory is
// free.
type replayer struct {
	free   chan *task
	decode chan *task
	apply  []chan *task
}

func newReplayer(workers int) *replayer {
	n := tasksPerWorker * workers
	r := &replayer{free: make(chan *task, n), decode: make(chan *task, n), apply: make([]chan *task, workers)}
	for range n {
		r.free <- &task{decoded: make(chan error, 1)}
	}
	for i := range r.apply {
		r.apply[i] = make(chan *task, n) // holds all tasks there are: handing over never waits
	}
	return r
}

// take passes a record to the decoders; for one goroutine.
func (r *replayer) take(ctx context.Context, p *partition.Partition, rec []byte) error {
	select {
	case t := <-r.free:
		t.p, t.rec = p, rec
		r.decode <- t
		// One queue for a placement, always the same: its frames are applied in the order of the log, since each names
		// its predecessor.
		r.apply[uint64(p.Identity().Placement)%uint64(len(r.apply))] <- t
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end marks the end of the records.
func (r *replayer) end() {
	close(r.decode)
	for _, q := range r.apply {
		close(q)
	}
}

func (r *replayer) decodeAll() error {
	var d frame.Decoder
	for t := range r.decode {
		// The frame's memory is the task's, which goes back to free only after ReplayFrame copied the parts that it
		// keeps.
		t.decoded <- d.Decode(t.rec, &t.frame)
	}
	return nil
}

func (r *replayer) applyAll(ctx context.Context, q <-chan *task) error {
	for t := range q {
		if err := <-t.decoded; err != nil {
			id := t.p.Identity()
			return fault.Annotate(err, "partition %s/%d", id.Table, id.Partition)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.p.ReplayFrame(&t.frame); err != nil {
			return err
		}
		t.p, t.rec = nil, nil
		r.free <- t
	}
	return nil
}

// recover replays the records of the log that no segment holds. Records of a placement that was being dropped are
// skipped: its rows were deleted by order. Records of a placement without an entry in the catalogue are counted, and
// stay.
func (s *Server) recover(ctx context.Context) error {
	start := time.Now()
	placed := map[point.PlacementID]*partition.Partition{}
	flushed := map[point.PlacementID]point.Serial{}
	for _, t := range s.tables() {
		for _, p := range t.all() {
			placed[p.Identity().Placement] = p
			flushed[p.Identity().Placement] = p.Flushed()
		}
	}
	for _, id := range s.dropping {
		// A drop that a crash cut short is finished after the replay (tidy).
		flushed[id] = point.Serial{Epoch: math.MaxUint64, Seq: math.MaxUint64} // pins no log file
	}
	s.unknown = map[point.PlacementID]int{}
	r := newReplayer(s.deps.Processors)
	g, ctx := errgroup.WithContext(ctx)
	for _, q := range r.apply {
		g.Go(r.decodeAll)
		g.Go(func() error { return r.applyAll(ctx, q) })
	}
	var records, bytes int
	g.Go(func() error {
		defer r.end()
		released := func(id point.PlacementID) point.Serial { return flushed[id] }
		return s.deps.Brick.Recover(released, func(id point.PlacementID, _ point.Serial, rec []byte) error {
			p, ok := placed[id]
			if !ok {
				s.unknown[id]++
				return nil
			}
			records, bytes = records+1, bytes+len(rec)
			return r.take(ctx, p, rec)
		})
	})
	if err := g.Wait(); err != nil {
		return fault.Annotate(err, "replay the log")
	}
	for _, t := range s.tables() {
		t.came = t.index.Came() // Run enters them at once
	}
	s.deps.Log.Info("log replayed", "records", records, "bytes", bytes, "partitions", len(placed), "took", time.Since(start).Round(time.Millisecond))
	return nil
}
