package partition

import (
	"context"
	"errors"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/series"
)

// Rows are one insert's rows by the server's series refs; row i is (Refs[i], Times[i], Values[i]). The caller owns the columns; they are not kept.
type Rows struct {
	// Stamp is the rank that a gateway assigned. The partition raises it above all ranks it accepted before, so that a row acked later
	// wins, whatever the gateways' clocks say.
	Stamp point.Stamp
	// Foreign rows keep their rank: the partition that accepted them first ordered them.
	Foreign bool
	// Missing accepts only the foreign rows that the partition does not have with that rank or a higher one: they were another partition's, and come after rows
	// that were written here since.
	Missing bool
	// Once refuses a stamp that was accepted before (peer.NewSeen): a gateway repeats an insert when it gets no answer. It also refuses one that is late
	// (peer.NewLate), if Now is the servers' time and not 0.
	Once  bool
	Now   point.Nanos
	Level point.Level
	// Soon says that the writer can keep the rows elsewhere: it does not wait for copies on servers that are away. The error is Unavailable, and the rows are kept here.
	Soon bool
	// Epoch is the epoch of the lease that the caller checked; 0: any epoch in which the partition is led.
	Epoch point.Epoch
	// Waits is called before Append waits for a disk, perhaps more than once. Nil: no callback.
	Waits func()

	Refs   []series.Ref
	Times  []point.Nanos
	Values []float64

	HistRefs []series.Ref // of Hists
	Hists    []point.HistRow

	ExemplarRefs []series.Ref // of Exemplars
	Exemplars    []point.ExemplarRow
}

// appender is the scratch of one Append.
type appender struct {
	serial point.Serial // of the frame
	chain  Followers    // that the frame was passed to; nil: none
	newest point.Stamp  // of the deletions that foreign rows were compared with
	beside *headRef     // the head that they were compared with and may be added to; nil: any

	enc   frame.Encoder
	frame frame.Frame
	buf   []byte
	fresh numbering // series that are new to the partition, in the order of their first row
}

// Append logs the rows as one frame (C94), makes them readable and returns when they are as safe as the level demands. Errors are
// Stale (dropped, led in another epoch or not at all, a series of another column), Unavailable (fenced, read-only), Throttled (too
// many series, log full), TooLarge (more than a frame holds: send it in pieces) or Invalid (columns of unequal length). After an
// error no row of it is acked.
func (p *Partition) Append(r *Rows) error {
	l, err := p.enter(r)
	if err != nil {
		return err
	}
	l.handOn()
	return l.wait(r)
}

// AppendAll is Append of several frames of rows, in their order, which waits for all at once. Their levels are equal. After an error no row of any is acked.
func (p *Partition) AppendAll(all []*Rows) (err error) {
	frames, of := make([]logged, 0, len(all)), make([]*Rows, 0, len(all)) // without those of which no row was logged: there is nothing to wait for
	for _, r := range all {
		l, failed := p.enter(r)
		if err = failed; err != nil {
			break
		}
		if l.frame {
			frames, of = append(frames, l), append(of, r)
		}
	}
	last := func(i int) bool { return i == len(frames)-1 || frames[i].chain != frames[i+1].chain } // of its chain, which nearly always is one
	for i := range frames {
		if last(i) {
			frames[i].handOn() // it sends all that was passed to it, also what came before an error
		}
	}
	for i := range frames {
		if err == nil && last(i) {
			err = frames[i].wait(of[i]) // for those before it, too
		}
	}
	return err
}

// enter logs the rows and makes them readable.
func (p *Partition) enter(r *Rows) (logged, error) {
	if r.Foreign {
		return p.enterForeign(r)
	}
	return p.enqueueRows(r, 0, nil)
}

// logged is a frame on its way to the disk and the copies. The zero logged had no rows.
type logged struct {
	frame  bool
	own    brick.Wait
	serial point.Serial
	chain  Followers // nil: none
}

// handOn has the chain send the frame.
func (l *logged) handOn() {
	if l.chain != nil {
		l.chain.HandOn()
	}
}

// wait returns when the frame is as safe as the level of its rows says.
func (l *logged) wait(r *Rows) error {
	if !l.frame || r.Level == point.Received {
		return nil
	}
	r.waits()
	switch {
	case l.chain == nil || r.Level != point.All:
		return l.own.Wait()
	case r.Soon:
		return l.chain.AwaitSoon(context.Background(), l.serial)
	default:
		return l.chain.Await(context.Background(), l.serial) // its own fsync is one of those waited for
	}
}

func (r *Rows) waits() {
	if r.Waits != nil {
		r.Waits()
	}
}

// enqueueRows is enter without a look at deletions and at rows that are here. newest is the highest rank of the deletions that foreign rows were compared with, beside
// the newest head of the rows: errDeleted says that there is a newer deletion, errFrozen that there is a newer head.
func (p *Partition) enqueueRows(r *Rows, newest point.Stamp, beside *headRef) (logged, error) {
	if len(r.Refs)+len(r.Hists)+len(r.Exemplars) == 0 {
		return logged{}, nil // an empty frame would be worth an fsync and a place in the log
	}
	a := p.frames.Get().(*appender)
	a.newest, a.beside = newest, beside
	wait, err := brick.Wait{}, errCold
	for err == errCold {
		if err = p.ready(r.waits); err == nil {
			wait, err = p.enqueue(a, r)
		}
		a.reset()
	}
	l := logged{frame: true, own: wait, serial: a.serial, chain: a.chain}
	a.chain, a.beside = nil, nil
	p.frames.Put(a)
	return l, err
}

// errDeleted says that a deletion came after foreign rows were compared with those before.
var errDeleted = errors.New("a deletion came meanwhile")

// errFrozen says that a head was frozen after foreign rows were compared with those that are here.
var errFrozen = errors.New("a head was frozen meanwhile")

// errCold says that the partition cooled between the check and the lock.
var errCold = errors.New("the partition went cold")

// enqueue assigns the frame its serial and its place in the log and applies it, in one order for all frames.
//
// A frame without new series is encoded before a lock is acquired. A frame that brings series must be encoded under applyMu: a
// definition must stand in the log before the first row that needs it.
func (p *Partition) enqueue(a *appender, r *Rows) (brick.Wait, error) {
	f := &a.frame
	f.Kind, f.Stamp, f.Foreign = frame.Rows, r.Stamp, r.Foreign
	f.Times, f.Values = r.Times, r.Values
	x := p.ids.Load()
	known := mapIDs(x, f, r)
	if known {
		f.FirstDef = point.DenseID(x.len()) // the table only grows, so ids that were found are below it
		if err := a.encode(); err != nil {
			return brick.Wait{}, err
		}
	}

	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.mayEnterLocked(x, a, r)
	if err == nil && !known {
		p.unlocked(func() { err = p.define(x, a, r) })
	}
	if err != nil {
		return brick.Wait{}, err
	}
	if r.Once {
		if newest, late := p.mu.seen.Late(f.Stamp, r.Now); r.Now != 0 && late {
			return brick.Wait{}, peer.NewLate(newest)
		}
		if !p.mu.seen.Take(f.Stamp) {
			return brick.Wait{}, peer.NewSeen()
		}
	}
	if !f.Foreign {
		f.Stamp = p.mu.ranks.Next(f.Stamp)
	} else if !r.Missing { // a late insert would be ranked above them, too
		p.mu.seen.Observe(f.Stamp)
	}
	wait, err := p.logLocked(f, a.buf)
	if err != nil {
		return brick.Wait{}, err
	}
	if !known {
		p.deps.Index.Retain(a.fresh.refs...)
		x.put(a.fresh.refs...)
	}
	p.mu.wait = wait
	p.applyLocked(f, time.Now())
	p.passLocked(f, a.buf, wait)
	a.serial, a.chain = f.Serial, p.mu.chain
	return wait, nil
}

// mayEnterLocked returns why a frame may not be added now. Its reasons stay as they are while applyMu is held.
func (p *Partition) mayEnterLocked(x *ids, a *appender, r *Rows) error {
	switch {
	case p.mu.dropped:
		return p.gone()
	case !p.mu.warm || p.ids.Load() != x:
		return errCold // also if it is warm again: the encoded frame uses other ids
	case p.mu.epoch == 0 || r.Epoch != 0 && r.Epoch != p.mu.epoch:
		return p.notLed(r.Epoch, p.mu.epoch)
	case r.Foreign && p.newestDeletionLocked() != a.newest:
		return errDeleted
	case a.beside != nil && p.mu.active != a.beside:
		return errFrozen
	}
	return nil
}

// logLocked gives a frame, encoded in buf and with its rank, the next serial and appends it to the log.
func (p *Partition) logLocked(f *frame.Frame, buf []byte) (brick.Wait, error) {
	f.Prev = p.mu.last
	f.Serial = point.Serial{Epoch: p.mu.epoch, Seq: p.mu.last.Seq + 1}
	frame.SetSerial(buf, f.Serial, f.Prev, f.Stamp)
	return p.deps.Brick.Append(p.ident.Placement, p.mu.epoch, f.Serial, buf)
}

// encode fills the buffer with the frame. Errors are TooLarge and Invalid.
func (a *appender) encode() error {
	if err := a.frame.Check(); err != nil {
		return err
	}
	a.buf = a.enc.Append(a.buf[:0], &a.frame)
	return nil
}

// mapIDs fills the frame's ids from the published table; false when a series is new to the partition.
func mapIDs(x *ids, f *frame.Frame, r *Rows) bool {
	var known, ok bool
	f.IDs, known = x.dense.Append(f.IDs[:0], r.Refs)
	f.Hists = f.Hists[:0]
	for i, h := range r.Hists {
		var id point.DenseID
		id, ok = x.dense.Get(r.HistRefs[i])
		known = known && ok
		f.Hists = append(f.Hists, frame.HistRow{ID: id, Time: h.Time, H: h.H})
	}
	f.Exemplars = f.Exemplars[:0]
	for i, e := range r.Exemplars {
		var id point.DenseID
		id, ok = x.dense.Get(r.ExemplarRefs[i])
		known = known && ok
		f.Exemplars = append(f.Exemplars, frame.ExemplarRow{ID: id, Time: e.Time, Value: e.Value, Labels: e.Labels})
	}
	return known
}

// define assigns dense ids to the new series, in the order of their rows, and encodes the frame with their
// definitions. The ids are published only after the frame is in the log. applyMu is held.
func (p *Partition) define(x *ids, a *appender, r *Rows) error {
	f := &a.frame
	f.FirstDef = point.DenseID(x.len())
	a.fresh.reset()
	dense := func(ref series.Ref) point.DenseID {
		if id, ok := x.dense.Get(ref); ok {
			return id
		}
		if x.quiet != nil {
			if id, ok := p.revive(x, ref); ok {
				return id
			}
		}
		return f.FirstDef + point.DenseID(a.fresh.number(ref))
	}
	for i, ref := range r.Refs {
		f.IDs[i] = dense(ref)
	}
	for i, ref := range r.HistRefs {
		f.Hists[i].ID = dense(ref)
	}
	for i, ref := range r.ExemplarRefs {
		f.Exemplars[i].ID = dense(ref)
	}
	for _, ref := range a.fresh.refs {
		l := p.deps.Index.Labels(ref)
		if !p.ident.whole() && !p.mayHold(l) {
			return fault.Errorf(fault.Stale, "partition %s/%d: %s does not lie in its column of the ring; route it anew by the newest map", p.ident.Table, p.ident.Partition, l)
		}
		f.Defs = append(f.Defs, l)
	}
	if n := x.len() + len(a.fresh.refs); n > p.settings.SeriesMax {
		return fault.Errorf(fault.Throttled, "partition %s/%d would hold %d series, at most %d are taken", p.ident.Table, p.ident.Partition, n, p.settings.SeriesMax)
	}
	return a.encode()
}

// mayHold reports whether a series lies in the partition's column of the ring, as far as that is known.
func (p *Partition) mayHold(l point.Labels) bool {
	at, known := l.RingPoint(), true
	if p.deps.Point != nil {
		at, known = p.deps.Point(l)
	}
	return !known || p.ident.contains(at)
}

// bufferKept bounds the buffer that a pooled appender keeps, in bytes.
const bufferKept = 4 << 20

func (a *appender) reset() {
	if cap(a.buf) > bufferKept {
		a.buf = nil
	}
	clear(a.frame.Defs)
	clear(a.frame.Hists)
	clear(a.frame.Exemplars)
	a.frame = frame.Frame{
		IDs: a.frame.IDs[:0], Defs: a.frame.Defs[:0], Hists: a.frame.Hists[:0], Exemplars: a.frame.Exemplars[:0],
	}
}
