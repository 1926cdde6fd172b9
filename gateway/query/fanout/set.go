package fanout

import (
	"cmp"
	"context"
	"sync"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Bounds of a batch: one is read ahead from each server while the one before is merged.
const (
	aheadSeries = 64
	aheadRows   = 1 << 16 // or one series, if it has more
)

// Select implements query.Source. The set owns the context of all questions until it is closed: servers send their series under it. Staged rows are asked for first:
// rows that are forwarded meanwhile are then found in both places, and not in neither.
func (s *Source) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	whole, cancel := context.WithCancel(ctx)
	set := &set{ctx: ctx, cancel: cancel, q: q, loan: budget.LoanOf(ctx)}
	r := &request{
		table: q.Table, partitions: q.Partitions, lo: q.Lo, hi: q.Hi, matchers: q.Matchers,
		begin: func() { set.closeReaders() },
		ask: func(ctx context.Context, g *group, st peer.Storage) (answer, error) {
			rd, err := open(ctx, g, q, st)
			if err != nil {
				return answer{}, err
			}
			return answer{keep: func() { set.readers = append(set.readers, rd) }, drop: func() { rd.close() }}, nil
		},
	}
	var staged []*reader
	var err error
	if at := s.stagedFor(ctx, q); len(at) > 0 {
		staged, err = s.openStaged(whole, at, q)
		r.ranked = len(staged) > 0
	}
	if err == nil {
		_, err = s.fan(whole, r)
	}
	set.readers = append(set.readers, staged...)
	if err != nil {
		set.closeReaders()
		cancel()
		return nil, err
	}
	set.start()
	return set, nil
}

// open asks a server and returns a reader at the first series, which shows that the server answers: until then all servers can be asked again.
func open(ctx context.Context, g *group, q *peer.Select, st peer.Storage) (*reader, error) {
	in, err := st.Select(ctx, g.ask(q))
	if err != nil {
		return nil, err
	}
	rd := &reader{group: g, in: in}
	opened := false
	defer func() {
		if !opened { // also after a panic
			rd.close()
		}
	}()
	if !in.Next() {
		rd.ended = true
		if err := in.Err(); err != nil {
			return nil, err
		}
	}
	opened = true
	return rd, nil
}

// set merges the series of several servers into one set. One goroutine at a time, as all series sets.
type set struct {
	// Constant after start.
	ctx     context.Context // of the asker
	cancel  context.CancelFunc
	q       *peer.Select
	loan    *budget.Loan // has the series that are read ahead
	readers []*reader

	heads   []*reader // a heap by labels of those that have a series
	merger  peer.Merger
	sources []peer.Source
	at      *peer.Series
	series  int
	samples int
	err     error
	closed  bool
}

// start begins to read ahead, unless there is nothing to merge: of one server no series waits for another's, and its set is read by the asker's own goroutine.
func (s *set) start() {
	n := 0
	for _, r := range s.readers {
		if !r.ended {
			n++
		}
	}
	for _, r := range s.readers {
		if r.ended {
			continue
		}
		r.ctx, r.turn = s.ctx, lane.Of(s.ctx)
		if n > 1 {
			r.start(s.loan)
		}
		s.push(r)
	}
}

// Next implements peer.SeriesSet.
func (s *set) Next() bool {
	// Behind the limit a server that has more is silent, so the others' rows there are not all.
	limited := s.q.LabelsOnly && s.q.Limit > 0 && s.series == s.q.Limit
	if s.err != nil || len(s.heads) == 0 || limited {
		s.at = nil
		return false
	}
	s.sources = s.sources[:0]
	first := s.heads[0].at()
	for len(s.heads) > 0 && s.heads[0].at().Labels == first.Labels {
		r := s.pop()
		s.sources = append(s.sources, peer.Source{Series: r.at(), Layer: r.group.layer})
		if r.advance() {
			if r.at().Labels.Compare(first.Labels) <= 0 {
				return s.fail(fault.Errorf(fault.Corrupt, "server %s sends series out of order: %v after %v", r.group.server, r.at().Labels, first.Labels))
			}
			s.push(r)
		} else if r.err != nil && !s.goesOn(r) {
			return s.fail(fault.Annotate(r.err, "server %s, while it sent series", r.group.server))
		}
	}
	s.at = first
	if len(s.sources) > 1 {
		s.at = s.merger.Merge(s.sources)
	}
	return s.count()
}

// goesOn reports whether the answer may go without the rest of a server's series.
func (s *set) goesOn(r *reader) bool {
	if !query.Partial(s.ctx) || s.ctx.Err() != nil || !curable(r.err) {
		return false
	}
	query.Warn(s.ctx, "the answer is not whole: server "+string(r.group.server)+" broke off: "+r.err.Error())
	return true
}

func (s *set) fail(err error) bool {
	s.at, s.err = nil, err
	if fault.Is(err, fault.Stale) { // too late to ask another server
		s.err = fault.Wrap(err, fault.Unavailable, "try again")
	}
	return false
}

// count enforces on the sum the bounds that each server enforced on its own answer.
func (s *set) count() bool {
	s.series++
	s.samples += len(s.at.Times) + len(s.at.Hists)
	switch {
	case s.q.SeriesMax > 0 && s.series > s.q.SeriesMax:
		return s.fail(fault.Errorf(fault.TooLarge, "the selector matches more than %d series; make it narrower or raise the limit on series of a query", s.q.SeriesMax))
	case s.q.SamplesMax > 0 && s.samples > s.q.SamplesMax:
		return s.fail(fault.Errorf(fault.TooLarge, "the query reads more than %d samples; make it narrower or raise the limit on samples of a query", s.q.SamplesMax))
	}
	return true
}

// At implements peer.SeriesSet.
func (s *set) At() *peer.Series { return s.at }

// Err implements peer.SeriesSet.
func (s *set) Err() error { return s.err }

// Close implements peer.SeriesSet. It cancels before it waits for the readers: one of them may be in the middle of a wait for its server.
func (s *set) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.cancel()
	return s.closeReaders()
}

func (s *set) closeReaders() (err error) {
	for _, r := range s.readers {
		if cerr := r.close(); err == nil && !fault.Is(cerr, fault.Canceled) { // our own cancel
			err = cerr
		}
	}
	s.readers, s.heads = nil, nil
	return err
}

// The heap. Readers with equal labels lie in any order: Next removes all of them before it merges.

func (s *set) push(r *reader) {
	s.heads = append(s.heads, r)
	for i := len(s.heads) - 1; i > 0; {
		up := (i - 1) / 2
		if s.heads[i].at().Labels.Compare(s.heads[up].at().Labels) >= 0 {
			return
		}
		s.heads[i], s.heads[up] = s.heads[up], s.heads[i]
		i = up
	}
}

func (s *set) pop() *reader {
	top, last := s.heads[0], len(s.heads)-1
	s.heads[0] = s.heads[last]
	s.heads = s.heads[:last]
	for i := 0; ; {
		least := i
		for _, down := range []int{2*i + 1, 2*i + 2} {
			if down < last && s.heads[down].at().Labels.Compare(s.heads[least].at().Labels) < 0 {
				least = down
			}
		}
		if least == i {
			return top
		}
		s.heads[i], s.heads[least] = s.heads[least], s.heads[i]
		i = least
	}
}

// reader reads one server's series, in a goroutine of its own once it was started.
//
//	inner set ──loop──▶ batch, batch ──advance──▶ at
type reader struct {
	// Constant.
	group *group
	loan  *budget.Loan // once started

	// Owned by loop once started.
	in      peer.SeriesSet
	started bool
	batches chan batch
	quit    chan struct{}
	done    sync.WaitGroup

	// Owned by the set.
	ctx    context.Context // of the asker
	turn   *lane.Turn      // the asker's; it is left to others while the server is waited for
	ready  []*peer.Series
	booked int64 // bytes of the batch that ready is of
	ended  bool
	err    error
}

type batch struct {
	series []*peer.Series
	bytes  int64 // that are booked
	err    error // after the series
}

// start hands the inner set, which stands at a series, to a goroutine: from now on no other may touch it until close has waited for that.
func (r *reader) start(loan *budget.Loan) {
	r.started, r.loan = true, loan
	r.ready = []*peer.Series{r.in.At()}
	r.batches, r.quit = make(chan batch), make(chan struct{})
	r.done.Go(r.loop)
}

// loop reads batches until the end, an error or close. The channel has no room, so that one batch is read ahead while the one before is merged, and no more. The
// memory of a batch is given back by the goroutine that has it: the asker's, once its last series was returned, or this one after close.
func (r *reader) loop() {
	defer close(r.batches)
	for {
		b := r.read()
		if err := r.loan.TakeSoon(b.bytes); err != nil {
			b = batch{err: fault.Annotate(err, "series are read ahead of a merge")}
		}
		select {
		case r.batches <- b:
		case <-r.quit:
			r.loan.Give(b.bytes)
			return
		}
		if b.err != nil || len(b.series) == 0 {
			return
		}
	}
}

func (r *reader) read() (b batch) {
	for rows := 0; len(b.series) < aheadSeries && rows < aheadRows; {
		if !r.in.Next() {
			b.err = r.in.Err()
			return b
		}
		s := r.in.At()
		b.series = append(b.series, s)
		rows += len(s.Times) + len(s.Hists)
		b.bytes += bytesOf(s)
	}
	return b
}

// bytesOf is the memory of a series: times, values and ranks, histograms, and labels.
func bytesOf(s *peer.Series) int64 {
	n := int64(16*len(s.Times) + 8*len(s.Ranks) + 8*len(s.HistRanks) + 100 + len(s.Labels))
	for i := range s.Hists {
		n += int64(40 + len(s.Hists[i].H))
	}
	return n
}

// at is the series that the reader stands at.
func (r *reader) at() *peer.Series {
	if !r.started {
		return r.in.At()
	}
	return r.ready[0]
}

// advance moves on; false at the end, which may be an error.
func (r *reader) advance() bool {
	if r.ended {
		return false
	}
	if !r.started {
		return r.next()
	}
	r.ready[0] = nil // the asker owns the series returned, and this list would keep it alive until the batch ends
	if r.ready = r.ready[1:]; len(r.ready) > 0 {
		return true
	}
	if r.err == nil {
		b, err := r.batch()
		r.loan.Give(r.booked) // its series are the caller's, which books those that stay
		r.ready, r.booked, r.err = b.series, b.bytes, cmp.Or(err, b.err)
	}
	r.ended = len(r.ready) == 0
	return !r.ended
}

// next moves the inner set on, and leaves the asker's turn to others if that waits for the server.
func (r *reader) next() bool {
	if in, ok := r.in.(interface{ Ready() bool }); !ok || in.Ready() {
		r.ended = !r.in.Next()
	} else {
		r.err = r.turn.Aside(r.ctx, func() { r.ended = !r.in.Next() })
	}
	if r.ended || r.err != nil {
		r.ended, r.err = true, cmp.Or(r.in.Err(), r.err)
	}
	return !r.ended
}

// batch returns the series read ahead, and leaves the asker's turn to others if there is nothing yet.
func (r *reader) batch() (b batch, err error) {
	select {
	case b = <-r.batches:
		return b, nil
	default:
	}
	err = r.turn.Aside(r.ctx, func() { b = <-r.batches })
	return b, err
}

// close ends the goroutine and closes the inner set.
func (r *reader) close() error {
	if r.started {
		close(r.quit)
		r.done.Wait()
		r.loan.Give(r.booked)
	}
	return r.in.Close()
}
