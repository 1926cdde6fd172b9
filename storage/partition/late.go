package partition

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
)

// A placement that follows logs its leader's frames at once and applies them late: its heads are built from the log when they are needed.
// In the steady state they never are: the leader's segment replaces the frames first.
//
//	Follow ─▶ log f1 … f9 │ f10 f11 FREEZE12 f13      late: in the log, counted, not in the heads
//	          └ applied ──┘ └── late ──────────┘
//	View, Lead, Cut, a deletion, lateMost ─▶ catchUp: late frames are read from the log and applied
//	Adopt(ends 12) ────────────────────────▶ f10 … FREEZE12 are dropped unread
//
// Invariants:
//   - Every frame behind applied, up to last, is in the log: it is released only up to the frames that segments hold.
//   - Heads, ids and deletions are those of the frames up to applied, as a start would make them of a log that ends there.

// late are frames in the log that the heads lack.
type late struct {
	sums
	ends  []point.EpochEnd
	marks []mark // the FREEZEs among them, oldest first
}

type sums struct {
	frames, rows int
	cost         int64
}

// mark is a FREEZE: the sums of the late frames up to it.
type mark struct {
	sums
	serial point.Serial
}

func (a *sums) add(b sums) {
	a.frames, a.rows, a.cost = a.frames+b.frames, a.rows+b.rows, a.cost+b.cost
}

func (a *sums) drop(b sums) {
	a.frames, a.rows, a.cost = a.frames-b.frames, a.rows-b.rows, a.cost-b.cost
}

const (
	// lateDue is the cost of late frames at which Maintain applies the oldest ones, down to lateKept. It bounds how long a change of leaders and the
	// first read last: about 0.5 s, since a row costs some 60 ns.
	lateDue  = 56 << 20
	lateKept = lateDue / 8 * 7
	// lateMost is the cost at which frames are not accepted before the others are applied.
	lateMost = 2 * lateDue
	// nothing may be left late.
	nothing = math.MinInt64 / 2
	// lateRowCost is the cost of a row in a late frame beside its bytes.
	lateRowCost = 4
)

func oneLate(rows, bytes int) sums { return sums{1, rows, int64(rows)*lateRowCost + int64(bytes)} }

// take adds a frame of so many bytes.
func (l *late) take(h *frame.Head, bytes int) {
	l.add(oneLate(h.Rows+h.Hists, bytes))
	if n := len(l.ends); n > 0 && l.ends[n-1].Epoch == h.Serial.Epoch {
		l.ends[n-1].Seq = h.Serial.Seq
	} else {
		l.ends = append(l.ends, point.EpochEnd(h.Serial))
	}
	if h.Kind == frame.Freeze {
		l.marks = append(l.marks, mark{l.sums, h.Serial})
	}
}

// applied removes the oldest frame.
func (l *late) applied(of sums) {
	l.drop(of)
	for i := range l.marks {
		l.marks[i].drop(of)
	}
}

// without returns the rest when the oldest, up to a serial, are dropped. Without a FREEZE there, more are counted than are left.
func (l late) without(upTo point.Serial) late {
	n := 0
	for n < len(l.marks) && !upTo.Less(l.marks[n].serial) {
		n++
	}
	if n == 0 {
		return l
	}
	at := l.marks[n-1]
	l.drop(at.sums)
	l.marks = slices.Clone(l.marks[n:])
	for i := range l.marks {
		l.marks[i].drop(at.sums)
	}
	return l
}

// isLateLocked reports whether the heads lack frames of the log.
func (p *Partition) isLateLocked() bool { return p.mu.applied != p.mu.last }

// appliedLocked notes the newest frame in the heads or, after an adoption, in segments.
func (p *Partition) appliedLocked(s point.Serial) {
	p.mu.applied = s
	if p.mu.last.Less(s) {
		p.mu.last = s
	}
	switch {
	case !p.isLateLocked():
		p.mu.late = late{}
	case len(p.mu.late.marks) > 0:
		p.mu.late = p.mu.late.without(s)
	}
}

// followLate logs a frame that is applied later.
func (p *Partition) followLate(sender point.Epoch, h *frame.Head, rec []byte) (brick.Wait, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fitsLocked(sender, h.Serial, h.Prev); err != nil {
		return brick.Wait{}, err
	}
	wait, err := p.deps.Brick.Append(p.ident.Placement, sender, h.Serial, rec)
	if err != nil {
		return brick.Wait{}, err
	}
	p.deps.Metrics.copied.Add(uint64(h.Rows + h.Hists))
	p.mu.late.take(h, len(rec))
	p.mu.last, p.mu.held, p.mu.lastWrite = h.Serial, max(p.mu.held, h.Serial.Epoch), time.Now()
	p.mu.ranks.Observe(h.Stamp)
	return wait, nil
}

// LogsOnly reports whether Follow would only log a frame, and waits for no disk and no other work.
func (p *Partition) LogsOnly(h *frame.Head) bool { return p.appliesLate(h) }

// appliesLate reports whether a frame may be applied late: one that changes no segment, while not too many are late.
func (p *Partition) appliesLate(h *frame.Head) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return h.Kind != frame.Delete && p.mu.late.cost < lateMost
}

// catchUp applies all frames that were in the log when it was called. Errors are those of the log, and Corrupt; the frames up to the one that
// failed are applied. The flush lock is not held.
func (p *Partition) catchUp() error {
	p.mu.Lock()
	late := p.isLateLocked()
	p.mu.Unlock()
	if !late {
		return nil
	}
	p.lateMu.Lock()
	defer p.lateMu.Unlock()
	return p.catchUpOrdered(nothing)
}

// catchUpDue applies the oldest late frames if there are many.
func (p *Partition) catchUpDue() error {
	p.mu.Lock()
	due := p.mu.late.cost >= lateDue
	p.mu.Unlock()
	if !due {
		return nil
	}
	p.lateMu.Lock()
	defer p.lateMu.Unlock()
	p.deps.Writes.Begin()
	defer p.deps.Writes.End()
	return p.catchUpOrdered(lateKept)
}

var errEnough = errors.New("enough")

// catchUpOrdered applies late frames until at most kept of their cost is left. lateMu is held.
func (p *Partition) catchUpOrdered(kept int64) error {
	p.mu.Lock()
	applied, target, over := p.mu.applied, p.mu.last, p.mu.late.cost-kept
	idle := !p.isLateLocked() || p.mu.dropped || p.mu.damaged != nil
	p.mu.Unlock()
	if idle {
		return nil
	}
	fo := followers.Get().(*follower)
	defer followers.Put(fo)
	defer fo.frame.Reset()
	err := p.deps.Brick.Replay(p.ident.Placement, applied, func(s point.Serial, rec []byte) error {
		if target.Less(s) || over <= 0 {
			return errEnough
		}
		if err := fo.decoder.Decode(rec, &fo.frame); err != nil {
			return err
		}
		of := oneLate(fo.frame.Samples(), len(rec))
		over -= of.cost
		return p.applyLate(fo, of)
	})
	if err != nil && !errors.Is(err, errEnough) {
		return fault.Annotate(err, "partition %s/%d: apply frames of the log", p.ident.Table, p.ident.Partition)
	}
	return nil
}

// applyLate makes a frame part of the heads.
func (p *Partition) applyLate(fo *follower, of sums) error {
	fo.refs = p.deps.Index.InternAll(fo.frame.Defs, fo.refs[:0]) // before the lock: it hashes
	err := errCold
	for err == errCold {
		if err = p.warm(); err == nil {
			err = p.applyWarm(fo, of)
		}
	}
	if err != nil {
		p.deps.Index.Release(fo.refs...)
	}
	return err
}

// applyWarm owns the references of the definitions, unless it fails.
func (p *Partition) applyWarm(fo *follower, of sums) error {
	f := &fo.frame
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.ids.Load()
	switch {
	case p.mu.dropped:
		return p.gone()
	case !p.mu.warm:
		return errCold
	case f.Prev != p.mu.applied:
		return fault.Errorf(fault.Corrupt, "frame %v follows %v in the log, but %v was applied last: log frames are missing", f.Serial, f.Prev, p.mu.applied)
	}
	if err := p.numbered(f, x.len()); err != nil {
		return err
	}
	x.put(fo.refs...)
	p.mu.late.applied(of)
	written, now := p.mu.lastWrite, time.Now()
	p.takeLocked(f, brick.Wait{}, now) // its fsync was waited for when it was read
	if p.mu.lastWrite.Equal(now) {     // no frame came meanwhile
		p.mu.lastWrite = written
	}
	return nil
}
