package runner

import (
	"context"
	"sync"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/replica"
	"github.com/spillwaydb/spillway/storage/segment"
)

// unfinishedSuffix marks the file of a segment that is arriving; a start removes it, since it ends with segment.TempSuffix.
// So a crash at any time before the adoption costs the bytes received, and no segment: nothing refers to the file.
const unfinishedSuffix = ".incoming" + segment.TempSuffix

// fileOf names an unfinished file.
type fileOf struct {
	at replica.Key
	id point.SegmentID
}

// slotOf names a transfer.
type slotOf struct {
	at   replica.Key
	from lease.Member
	slot uint64
}

// incoming is a segment on its way to a placement: its unfinished file, and the pieces that are not written yet.
//
//	link ──push──▶ pieces ──▶ run: written at their offset, then `Came` ──▶ all here and committed: fsync, then `Committed`
//
// Its end: run ends when the file is whole and synced, when a write fails, or when stop is called (a newer transfer of
// the same segment, Discard, the end of the copier); done is closed after the file is. All that reads, adopts, removes
// or reopens the file waits for done first.
type incoming struct {
	// Constant.
	c       *Copier
	slot    slotOf
	epoch   point.Epoch // of the sender
	segment replica.Segment
	path    string
	ctx     context.Context
	stop    context.CancelFunc
	wake    chan struct{} // 1 when there is work
	done    chan struct{} // closed when the file is closed

	mu struct {
		sync.Mutex
		// Their memory is the link's until data.Done is called, exactly once for each: a piece that is dropped must be
		// released too, or the link's window stays smaller for ever.
		pieces    []piece // bounded by the link's window
		committed bool
		over      bool // no piece is accepted any more
	}

	// Owned by run.
	file vfs.File
	upto uint64
	// Reports are spaced (syncBytes, or a second): the machine needs them for its deadline alone, so that a transfer
	// that goes on is not ended.
	reported uint64    // of upto, to the machine
	at       time.Time // when it was reported last
}

type piece struct {
	offset uint64
	data   peer.Body
}

func newIncoming(c *Copier, e replica.Accept) *incoming {
	f := &incoming{c: c, slot: slotOf{e.At, e.To, e.Slot}, epoch: e.Epoch, segment: e.Segment, upto: e.Offset, reported: e.Offset,
		path: c.deps.Brick.SegmentPath(e.At.Placement, e.Segment.ID) + unfinishedSuffix, wake: make(chan struct{}, 1), done: make(chan struct{})}
	f.ctx, f.stop = context.WithCancel(c.ctx)
	return f
}

// push queues a piece that arrived; it does not wait.
func (f *incoming) push(offset uint64, data peer.Body) {
	f.mu.Lock()
	over := f.mu.over
	if !over {
		f.mu.pieces = append(f.mu.pieces, piece{offset, data})
	}
	f.mu.Unlock()
	if over {
		data.Done()
		return
	}
	f.poke()
}

// commit notes that the sender has sent all bytes. Its message overtakes them.
// Messages go before pieces on a link. So the file is finished only when the commit is here and all bytes are.
func (f *incoming) commit() {
	f.mu.Lock()
	f.mu.committed = true
	f.mu.Unlock()
	f.poke()
}

func (f *incoming) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *incoming) take() (pieces []piece, committed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pieces, f.mu.pieces = f.mu.pieces, nil
	return pieces, f.mu.committed
}

// run writes the file until all of it is here, or until it is stopped.
func (f *incoming) run() {
	defer close(f.done)
	defer f.close()
	err := f.open()
	if err == nil {
		from := f.upto
		f.post(func() { f.accepted(from) })
		err = f.receive()
	}
	if err != nil && f.ctx.Err() == nil {
		f.c.deps.Log.Warn("a segment of the leader cannot be written", "file", f.path, "error", err)
		f.report(replica.Unwritten{From: f.slot.from, To: f.slot.at, Slot: f.slot.slot})
	}
}

// report gives an input to the machine.
func (f *incoming) report(in replica.ReceiverInput) {
	f.post(func() { f.c.receive(in) })
}

// post has the loop call what, unless another transfer of the segment has begun meanwhile, or its file is discarded. The machine could not distinguish the
// two: each sender begins with slot 1, so the same leader's offer in another epoch may have the same number.
func (f *incoming) post(what func()) {
	f.c.post(func() {
		if f.c.files[fileOf{f.slot.at, f.segment.ID}] == f {
			what()
		}
	})
}

// accepted asks the sender for the bytes.
func (f *incoming) accepted(offset uint64) {
	f.c.reply(f.slot.from, f.slot.at, f.epoch, &peer.SegmentAccept{Slot: f.slot.slot, Offset: offset})
}

// open opens the file where an earlier transfer left it, or makes a new one.
// An earlier transfer of this process, that is: its bytes up to the offset were written, and are verified as a whole
// before the segment is used.
func (f *incoming) open() (err error) {
	b := f.c.deps.Brick
	if err := b.MakeSegmentDir(f.slot.at.Placement); err != nil {
		return err
	}
	if f.upto == 0 {
		if err := b.FS().Remove(f.path); err != nil && !oserror.IsNotExist(err) {
			return fault.Wrap(err, fault.Unavailable, "remove %s", f.path)
		}
	}
	f.file, err = b.FS().OpenReadWrite(f.path, vfs.WriteCategoryUnspecified)
	return fault.Wrap(err, fault.Unavailable, "open %s", f.path)
}

func (f *incoming) receive() error {
	for {
		select {
		case <-f.ctx.Done():
			return f.ctx.Err()
		case <-f.wake:
		}
		pieces, committed := f.take()
		for i, p := range pieces {
			err := f.write(p)
			p.data.Done()
			if err != nil {
				letGo(pieces[i+1:])
				return err
			}
		}
		if committed && f.upto == f.segment.Size {
			return f.finish()
		}
	}
}

// write writes a piece. One that does not follow the bytes that are here is of an earlier try.
// The rate is paid before: many servers may send to this one, each at its own rate. Meanwhile their links' windows fill, and they wait.
// SyncTo starts writing to the disk without waiting for it where the platform can: a file of gigabytes would else be
// written by the one fsync at its end.
func (f *incoming) write(p piece) error {
	data := p.data.Bytes()
	f.c.metrics.receivedBytes.Add(float64(len(data)))
	if p.offset != f.upto || f.upto+uint64(len(data)) > f.segment.Size {
		return nil
	}
	if err := f.c.receives.WaitN(f.ctx, len(data)); err != nil {
		return fault.Wrap(err, fault.Canceled, "receive %s", f.path)
	}
	f.c.copied.Add(uint64(len(data)))
	if _, err := f.file.WriteAt(data, int64(p.offset)); err != nil {
		return fault.Wrap(err, fault.Unavailable, "write %s", f.path)
	}
	f.upto += uint64(len(data))
	if now := time.Now(); f.upto-f.reported >= syncBytes || now.Sub(f.at) >= time.Second {
		if err := f.syncTo(); err != nil {
			return fault.Wrap(err, fault.Unavailable, "sync %s", f.path)
		}
		f.came()
		f.at = now
	}
	return nil
}

// syncBytes is how much is passed to the disk at a time, and one file does so at a time: an fsync of the log waits behind all that the disk
// has to write. Larger: it waits for longer (docs/proofs/replication.md, Splits and drains). Smaller: more calls.
const syncBytes = 256 << 10

func (f *incoming) syncTo() error {
	f.c.syncing.Lock()
	defer f.c.syncing.Unlock()
	_, err := f.file.SyncTo(int64(f.upto))
	return err
}

// came reports the progress to the machine.
func (f *incoming) came() {
	f.reported = f.upto
	f.report(replica.Came{From: f.slot.from, To: f.slot.at, Slot: f.slot.slot, Upto: f.upto})
}

// finish makes the file durable and reports that it is whole.
// Came goes first: the machine accepts a commit only for a transfer with all its bytes.
func (f *incoming) finish() error {
	if err := f.file.Sync(); err != nil {
		return fault.Wrap(err, fault.Unavailable, "sync %s", f.path)
	}
	f.came()
	f.report(replica.Committed{From: f.slot.from, To: f.slot.at, Slot: f.slot.slot})
	return nil
}

// close closes the file and releases the pieces that were not written.
func (f *incoming) close() {
	f.mu.Lock()
	f.mu.over = true
	pieces := f.mu.pieces
	f.mu.pieces = nil
	f.mu.Unlock()
	letGo(pieces)
	if f.file != nil {
		if err := f.file.Close(); err != nil {
			f.c.deps.Log.Warn("a file is not closed", "file", f.path, "error", err) // its bytes are verified before they are used
		}
	}
}

func letGo(pieces []piece) {
	for _, p := range pieces {
		p.data.Done()
	}
}

// remove removes the file.
func (f *incoming) remove() {
	if err := f.c.deps.Brick.FS().Remove(f.path); err != nil && !oserror.IsNotExist(err) {
		f.c.deps.Log.Warn("an unfinished segment is not removed; the next start does", "file", f.path, "error", err)
	}
}
