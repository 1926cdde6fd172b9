package runner

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/deliver"
	"github.com/spillwaydb/spillway/storage/unload"
)

const (
	rowBytes    = 24 // time, value and rank
	seriesBytes = 64 // and its labels, where they are defined in a frame
	// frameRowsMax and frameBytesMax bound a frame that is sent: a gateway sends frames of this size too.
	frameRowsMax  = 8192
	frameBytesMax = 1 << 20
	// sendsMax is how many frames of a slice are on their way at a time. They share the fsyncs of their leaders.
	sendsMax = 16
)

// slice is the rows of a range of times.
type slice struct {
	bytesMax int64 // 0: any number
	loan     *budget.Loan
	release  func() // gives the place back; nil: it has none
	once     sync.Once

	rows   int
	bytes  int64
	at, of int // the series that came last, of so many
	// The two earliest times of rows that came: rows of one time go together.
	first, second point.Nanos
	times         int // how many of the two there are
	number        int // of series so far
	newest        point.Stamp
	unit          point.Stamp               // by how much ranks may differ that go in one frame
	open          map[point.Stamp]*building // by rank, in units of it
	frames        []*frame.Frame            // that are full
}

// rankUnit is by how much ranks may differ that go in one frame, with the highest of them: 0.13 s. Requests are of some dozens of rows, and a frame for each would cost many times
// what its rows do.
// 2^27 ns are 0.134 s: ranks begin with the time in nanoseconds at which a gateway received the row. Rows of one frame
// all arrive with its highest rank, so that a row could win over one of the same series and time that was written up to
// that much later at the heir; Gather with exact leaves that out.
const rankUnit = 1 << 27

// building is a frame that gets rows.
type building struct {
	frame  frame.Frame
	number int // of the series that came last, in the slice
	rows   int
	bytes  int // of the parts without a fixed size
}

// errFull ends the reading of a slice that has more rows than fit.
var errFull = errors.New("the slice is full")

// errHeirs puts a slice off.
var errHeirs = errors.New("a partition that takes over unloads itself, and goes first")

// close lets go of the memory. It may be called again.
func (s *slice) close() {
	if s == nil {
		return
	}
	s.once.Do(func() {
		s.loan.Close()
		if s.release != nil {
			s.release()
		}
	})
}

// take adds the rows of a series.
// Order matters: the size is checked against the slice's bound, then borrowed, and only then memory is used. After
// errFull the slice is thrown away, and the share of series seen says how much narrower the next try must be (sized).
func (s *slice) take(x *Series) error {
	s.at, s.of = x.At, x.Of
	s.see(len(x.Run.Times), func(i int) point.Nanos { return x.Run.Times[i] })
	s.see(len(x.Run.Hists), func(i int) point.Nanos { return x.Run.Hists[i].Time })
	s.see(len(x.Exemplars), func(i int) point.Nanos { return x.Exemplars[i].Time })
	before := s.bytes
	s.bytes += int64(seriesBytes + len(x.Labels) + rowBytes*len(x.Run.Times))
	for i := range x.Run.Hists {
		s.bytes += int64(rowBytes + len(x.Run.Hists[i].H))
	}
	for i := range x.Exemplars {
		s.bytes += int64(rowBytes + len(x.Exemplars[i].Labels))
	}
	if s.bytesMax > 0 && s.bytes > s.bytesMax {
		return errFull
	}
	if err := s.loan.Take(2 * (s.bytes - before)); err != nil { // as they were read, and in frames
		return err
	}
	s.number++
	r := &x.Run
	s.rows += r.Len()
	for i, t := range r.Times {
		b := s.place(r.Ranks[i], x, 0)
		b.frame.IDs = append(b.frame.IDs, b.last())
		b.frame.Times, b.frame.Values = append(b.frame.Times, t), append(b.frame.Values, r.Values[i])
	}
	for i := range r.Hists {
		h := &r.Hists[i]
		b := s.place(r.HistRanks[i], x, len(h.H))
		b.frame.Hists = append(b.frame.Hists, frame.HistRow{ID: b.last(), Time: h.Time, H: h.H})
	}
	for i := range x.Exemplars { // of no rank: none replaces another
		e := &x.Exemplars[i]
		b := s.place(max(s.newest, 1), x, len(e.Labels))
		b.frame.Exemplars = append(b.frame.Exemplars, frame.ExemplarRow{ID: b.last(), Time: e.Time, Value: e.Value, Labels: e.Labels})
	}
	return nil
}

// see notes the two earliest times of rows that come in the order of their times.
func (s *slice) see(n int, at func(int) point.Nanos) {
	for i := range n {
		switch t := at(i); {
		case s.times == 0:
			s.first, s.times = t, 1
		case t == s.first:
		case t < s.first:
			s.first, s.second, s.times = t, s.first, 2
		case s.times == 1 || t < s.second:
			s.second, s.times = t, 2
			return
		default:
			return
		}
	}
}

// narrower returns where the next try of a slice that was too full ends: where its rows fit by the density seen so far, and behind those of one time at least.
// Where these alone are too many, it ends before them, and what follows begins with them.
func (s *slice) narrower(from, end point.Nanos) point.Nanos {
	next := s.first + point.Nanos(min(s.fits(), 0.5)*(float64(end)-float64(s.first)))
	switch {
	case s.times == 2:
		return max(next, s.second)
	case s.first > from:
		return s.first
	}
	return from + 1
}

// fits is how many slices' worth of rows fit in one of this width, by the series that were seen; they are much alike.
func (s *slice) fits() float64 {
	share := float64(s.at+1) / float64(s.of)
	return 0.75 * float64(s.bytesMax) / max(float64(s.bytes)/share, 1)
}

// place returns the frame for a row of a rank, or of about that rank, in which its series is defined last.
func (s *slice) place(rank point.Stamp, x *Series, more int) *building {
	s.newest = max(s.newest, rank)
	at := rank / s.unit
	b := s.open[at]
	if b != nil && (b.rows >= frameRowsMax || b.bytes+more > frameBytesMax) {
		s.frames, b = append(s.frames, &b.frame), nil
	}
	if b == nil {
		b = &building{frame: frame.Frame{Kind: frame.Rows, Foreign: true, Stamp: rank}}
		s.open[at] = b
	}
	b.frame.Stamp = max(b.frame.Stamp, rank)
	if b.number != s.number {
		b.number = s.number
		b.frame.Defs = append(b.frame.Defs, x.Labels)
		b.bytes += len(x.Labels)
	}
	b.rows++
	b.bytes += more
	return b
}

// last is the number of the series that was defined last.
func (b *building) last() point.DenseID { return point.DenseID(len(b.frame.Defs) - 1) }

// finish ends the frames, in the order of their ranks.
func (s *slice) finish() {
	for _, b := range s.open {
		s.frames = append(s.frames, &b.frame)
	}
	s.open = nil
	slices.SortStableFunc(s.frames, func(a, b *frame.Frame) int { return cmp.Compare(a.Stamp, b.Stamp) })
}

// read answers a ReadSlice.
func (m *mover) read(e unload.ReadSlice) {
	s, to, err := m.readSlice(e.From, e.To)
	if err != nil {
		if m.ctx.Err() == nil && err != errHeirs {
			m.u.metrics.failed.Inc()
			m.u.deps.Log.Warn("rows of a partition that unloads could not be read; it is tried again", "partition", m.p.String(), "error", err)
		}
		m.send(input{Input: unload.Unread{ID: e.ID}})
		return
	}
	// A slice of exemplars alone is sent too.
	if !m.send(input{Input: unload.Read{ID: e.ID, To: to, Rows: len(s.frames), Bytes: s.bytes}, slice: s}) {
		s.close()
	}
}

// readSlice reads the rows of the times from from on, up to a time that it chooses.
func (m *mover) readSlice(from, to point.Nanos) (*slice, point.Nanos, error) {
	select {
	case m.u.slots <- struct{}{}:
	case <-m.ctx.Done():
		return nil, 0, m.ctx.Err()
	}
	release := func() { <-m.u.slots }
	if tm, _ := m.u.deps.Ways.Map(m.p.Table); tm == nil || !m.heirsTake(tm) {
		release()
		return nil, 0, errHeirs
	}
	if err := m.pay(); err != nil {
		release()
		return nil, 0, err
	}
	for end := m.reach(from, to); ; {
		ctx, loan, err := m.u.deps.Borrow(m.ctx)
		if err != nil {
			release()
			return nil, 0, err
		}
		s := &slice{bytesMax: m.u.settings.Machine.SliceBytes, loan: loan, unit: rankUnit, open: map[point.Stamp]*building{}}
		if end == from+1 { // one time's rows go together, whatever their size
			s.bytesMax = 0
		}
		err = m.u.deps.Partitions.Rows(ctx, m.p, m.epoch, from, end-1, s.take)
		m.sized(s, from, end)
		if err == nil {
			s.finish()
			s.release = release
			return s, end, nil
		}
		s.close()
		if !errors.Is(err, errFull) {
			release()
			return nil, 0, err
		}
		end = s.narrower(from, end)
	}
}

// heirsTake reports whether, by a map, the partition unloads and its heirs accept rows. One that unloads itself goes first: its rows are
// newer, and where they lie beside other rows the old ones would win.
func (m *mover) heirsTake(tm *topology.Map) bool {
	at, ok := tm.ByID(m.p.ID)
	return ok && at.State == topology.Unload && !slices.ContainsFunc(at.Into, func(id point.PartitionID) bool {
		heir, ok := tm.ByID(id)
		return !ok || !heir.Accepts()
	})
}

// pay waits until the bytes read last are within the rate.
func (m *mover) pay() error {
	m.mu.Lock()
	owed := min(m.mu.owed, int64(m.u.limit.Burst()))
	m.mu.owed = 0
	m.mu.Unlock()
	return m.u.limit.WaitN(m.ctx, int(owed))
}

// reach returns the end of a slice: as wide as the one before suggests, from the first row on.
func (m *mover) reach(from, to point.Nanos) point.Nanos {
	lo, hi, ok := m.u.deps.Partitions.Bounds(m.p)
	if !ok {
		return to
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	begin := max(from, lo)
	if m.mu.width == 0 || begin > hi || m.mu.width > hi-begin {
		return to
	}
	return min(to, max(begin, from)+max(m.mu.width, 1))
}

// sized learns the width of the next slice from the rows of one.
func (m *mover) sized(s *slice, from, end point.Nanos) {
	lo, hi, ok := m.u.deps.Partitions.Bounds(m.p)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.owed += s.bytes
	width := min(end, hi+1) - max(from, lo)
	switch {
	case !ok || width <= 0:
		return
	case s.of == 0: // between times
		m.mu.width = 2 * min(max(width, m.mu.width), math.MaxInt64/4)
		return
	case s.bytesMax == 0: // a single time says nothing of the distance between times
		return
	}
	next := float64(width) * s.fits()
	if s.bytes > s.bytesMax {
		next = min(next, float64(width)/2)
	}
	m.mu.width = max(1, point.Nanos(min(next, float64(math.MaxInt64/4))))
}

// deliver sends the rows of a slice, and reports whether all are acked.
func (m *mover) deliver(s *slice) bool {
	ctx, cancel := context.WithTimeout(m.ctx, m.u.settings.Machine.SendWithin)
	defer cancel()
	tm, _ := m.u.deps.Ways.Map(m.p.Table)
	if tm == nil || !m.heirsTake(tm) {
		return false
	}
	from := deliver.Slice{Partition: m.p.ID, Epoch: m.epoch, Leader: func(heir *topology.Partition) (topology.ServerID, point.Epoch, error) {
		return m.u.deps.Ways.HeirLeader(m.p, m.epoch, heir)
	}}
	var g errgroup.Group
	g.SetLimit(sendsMax)
	for _, f := range s.frames {
		g.Go(func() error {
			scratch := deliver.Of(f)
			defer scratch.Put()
			expired, err := m.u.out.Slice(ctx, m.p.Table, tm, &from, scratch)
			m.u.metrics.expired.Add(float64(expired))
			return err
		})
	}
	err := g.Wait()
	switch {
	case err == nil:
	case fault.Is(err, fault.Invalid), fault.Is(err, fault.TooLarge):
		m.u.deps.Log.Error("a partition that takes over refuses rows for good; they stay in the one that unloads, and are sent again", "partition", m.p.String(), "error", err)
	default:
		m.u.deps.Log.Debug("rows of a partition that unloads were not all taken; they are sent again", "partition", m.p.String(), "error", err)
	}
	return err == nil
}
