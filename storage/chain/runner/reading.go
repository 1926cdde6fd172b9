package runner

import (
	"context"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
)

// logReads bounds the memory in which frames are read from the log for members that are behind, and for comparisons of copies, of all
// partitions: each read has a window of brick.ReadBytes. Beyond the bound reads wait, in the order in which they came; none is refused.
//
//	room on the link ─▶ fsync ─▶ a read ─▶ log ─▶ queue of the link, in that room
//
// Room on the link is reserved before a read begins, so that a server that reads slowly holds no window. A read then waits for the disk alone, and no cycle of
// waits can arise.
type logReads struct {
	underWay chan struct{} // one for each
	held     budget.Held
}

// readBytes bounds the memory of reads, unless Deps.ReadBytes does.
const readBytes = 64 << 20

func newLogReads(most int64) *logReads {
	return &logReads{underWay: make(chan struct{}, max(1, most/brick.ReadBytes))}
}

// do calls read when there is memory for its window, and before that synced, which waits until the frames are durable: that lasts as long
// as an fsync, and needs no window. The error is that of either, or of ctx.
func (r *logReads) do(ctx context.Context, synced, read func() error) error {
	if err := synced(); err != nil {
		return err
	}
	select {
	case r.underWay <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.held.Add(brick.ReadBytes)
	defer func() {
		r.held.Add(-brick.ReadBytes)
		<-r.underWay
	}()
	return read()
}

// ReadFrames calls f with the frames of a placement behind a serial and up to another, as they stand in its log, once they are durable and
// there is memory to read them. rec is valid until f returns, and f must wait for nothing.
func (c *Chains) ReadFrames(ctx context.Context, at *partition.Partition, after, upto point.Serial, f func(s point.Serial, rec []byte) error) error {
	return c.reads.do(ctx, func() error { return at.AwaitFramesUpTo(after, upto) }, func() error {
		longest := int64(0) // of a frame, beside the window
		defer func() { c.reads.held.Add(-longest) }()
		return at.EachFrameUpTo(after, upto, func(s point.Serial, rec []byte) error {
			if n := int64(len(rec)); n > longest {
				c.reads.held.Add(n - longest)
				longest = n
			}
			return f(s, rec)
		})
	})
}

// ReadingBytes is the memory of reads of the logs for members that are behind, and of ReadFrames.
func (c *Chains) ReadingBytes() int64 { return c.reads.held.Load() }

// OnReadingGrowth registers f, which is called with the coming value of ReadingBytes each time before it grows.
func (c *Chains) OnReadingGrowth(f func(to int64)) { c.reads.held.OnGrowth(f) }
