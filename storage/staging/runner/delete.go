package runner

import (
	"context"
	"errors"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// deletePeriod is the time between looks at frames that are on their way when a deletion begins. Nearly always there are none, or they arrive in milliseconds.
const deletePeriod = 5 * time.Millisecond

// errHoldEnded refuses a deletion: rows that it would have removed may be in partitions that deleted before.
var errHoldEnded = fault.Errorf(fault.Unavailable, "staged rows were held for the deletion, and are not any more")

// Hold has the frames of q's table with times in its range stay here until Release, and waits for those on their way. It ends by itself unless it is renewed (staging.HoldFor). Errors are Unavailable.
func (s *Store) Hold(ctx context.Context, q *Query) error {
	s.mu.Lock()
	onWay, err := s.mu.machine.Hold(time.Now(), q.Hold, q.Table, q.Lo, q.Hi)
	s.mu.Unlock()
	if err == nil {
		err = s.arrived(ctx, onWay)
	}
	return err
}

// Renew prolongs a hold. Errors are Unavailable: it has ended.
func (s *Store) Renew(id uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.machine.Renew(time.Now(), id) {
		return errHoldEnded
	}
	return nil
}

// Release ends a hold, if it lasts.
func (s *Store) Release(id uint64) {
	s.mu.Lock()
	s.mu.machine.Release(id)
	s.mu.Unlock()
	s.rouse()
}

// Delete removes the matching rows from the frames held here, durably. When it returns no frame here has one that was acked before the call, and none comes back
// after a crash. Exemplars stay, as in partitions. Errors are Unavailable, of a hold that ended too, and those of ctx; some rows may be deleted then, and calling it again is right.
//
// The order of the steps, and the history that each prevents:
//
//	BeginDelete   no frame of the table leaves from here on: else one could pass the deletion on its way to a partition that deleted before
//	arrived       frames on their way come to their partition, to the other holder, or back: until then their rows are in neither place
//	rewrite       each frame is logged with fewer rows, or forgotten
//	settle        one fsync for all of them: before it, a power cut brings the deleted rows back
//	release       files of the older records may go: before settle they hold the only durable copy of the rows that stay
//	EndDelete     forwarding goes on
func (s *Store) Delete(ctx context.Context, q *Query) error {
	s.mu.Lock()
	if q.Hold != 0 && !s.mu.machine.Holds(time.Now(), q.Hold) {
		s.mu.Unlock()
		return errHoldEnded
	}
	onWay := s.mu.machine.BeginDelete(q.Table, q.Lo, q.Hi)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.mu.machine.EndDelete(q.Table)
		s.mu.Unlock()
		s.rouse()
	}()
	if err := s.arrived(ctx, onWay); err != nil {
		return err
	}
	s.rewriting.Lock()
	defer s.rewriting.Unlock()
	rows, replaced, err := s.deleteAll(q)
	if settled := s.settle(); settled != nil {
		return errors.Join(err, settled)
	}
	free := false
	for _, old := range replaced { // only now: the frames without the rows are durable in files of their own
		free = s.journal.release(old) || free
	}
	if free {
		err = errors.Join(err, s.journal.tidy(false))
	}
	s.metrics.deleted.Add(float64(rows))
	return err
}

// deleteAll removes the matching rows from all frames. It returns how many, and the files of the records that newer
// ones replace, which are to be released once the journal is settled; rewriting is held.
func (s *Store) deleteAll(q *Query) (rows int, replaced []*file, err error) {
	for _, h := range s.overlapping(q.Table, q.Lo, q.Hi, nil) {
		n, old, err := s.deleteFrom(h.ID, q)
		if old != nil {
			replaced = append(replaced, old)
		}
		if err != nil {
			return rows, replaced, err
		}
		rows += n
	}
	return rows, replaced, nil
}

// settle makes durable which frames are held, also of records that are being appended now: a partition does not hide a row that arrives after a deletion.
func (s *Store) settle() error {
	s.forgetting.Lock()
	defer s.forgetting.Unlock()
	return s.journal.settle()
}

// arrived waits until frames are on their way no more.
// It polls: whatever ends a frame's way (an insert, a timeout, a restage) would otherwise have to signal each deletion,
// and waits are rare and short.
func (s *Store) arrived(ctx context.Context, ids []staging.ID) error {
	look := time.NewTicker(deletePeriod)
	defer look.Stop()
	for len(ids) > 0 {
		s.mu.Lock()
		on := s.mu.machine.OnWay(ids[0])
		s.mu.Unlock()
		if !on {
			ids = ids[1:]
			continue
		}
		select {
		case <-ctx.Done():
			return fault.Wrap(ctx.Err(), fault.Unavailable, "staged rows are on their way from server %s to a server that does not answer", s.settings.Server)
		case <-look.C:
		}
	}
	return nil
}

// deleteFrom removes the matching rows from a frame. It returns how many, and the file of the record that a newer one
// replaces, if any. The copy that was given to another server comes last: a frame that is given while the held one is changed is either
// the reduced one, or found among those that were given. A frame that came back since it was given has both copies.
func (s *Store) deleteFrom(id staging.ID, q *Query) (rows int, replaced *file, err error) {
	rows, replaced, err = s.deleteFromHeld(id, q)
	return rows, replaced, errors.Join(err, s.deleteFromGiven(id, q))
}

// deleteFromHeld removes the matching rows from a frame that is held here.
func (s *Store) deleteFromHeld(id staging.ID, q *Query) (rows int, replaced *file, err error) {
	h, ok := s.get(id)
	if !ok {
		return 0, nil, nil
	}
	var d frame.Decoder
	var g frame.Frame
	if err := d.DecodeWith(h.defs, h.body, &g); err != nil {
		return 0, nil, err
	}
	left, rows := without(&g, q)
	if rows == 0 {
		return 0, nil, nil
	}
	if left.Samples()+len(left.Exemplars) == 0 {
		return rows, nil, s.forgotten(func() []staging.ID {
			s.mu.machine.Forget(id)
			return []staging.ID{id}
		})
	}
	h.body, h.defs = encode(left), nil
	h.Bytes = int64(len(h.body))
	if err := h.Measure(left); err != nil {
		return 0, nil, err
	}
	replaced, err = s.replace(&h)
	return rows, replaced, err
}

// deleteFromGiven removes the matching rows from a frame that another server holds, and that is still read here.
// The frame is replaced, never changed in place: a reader may be decoding the body of the old one without a lock. It is
// not logged, as its record was forgotten here.
func (s *Store) deleteFromGiven(id staging.ID, q *Query) error {
	s.mu.Lock()
	h := s.mu.given[id]
	s.mu.Unlock()
	if h == nil {
		return nil
	}
	var d frame.Decoder
	var g frame.Frame
	if err := d.DecodeWith(h.defs, h.body, &g); err != nil {
		return err
	}
	left, rows := without(&g, q)
	if rows == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, still := s.mu.given[id]; still {
		if delete(s.mu.given, id); left.Samples()+len(left.Exemplars) > 0 {
			s.mu.given[id] = &held{Frame: h.Frame, body: encode(left)}
		}
	}
	return nil
}

// replace logs a held frame anew, with fewer rows; rewriting is held. It returns the file of the record before (that of the new record, if the frame was forgotten meanwhile), which
// still has the only durable copy of the rows that stay: it is released once the journal is settled.
func (s *Store) replace(h *held) (old *file, err error) {
	in, _, err := s.log(&h.Frame, h.body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	at, ok := s.mu.held[h.ID]
	if ok {
		old = at.in
		s.mu.held[h.ID] = &held{Frame: h.Frame, body: h.body, in: in, filter: at.filter} // readers may have the old one
		s.mu.machine.Reduced(h.Frame)
	}
	s.mu.Unlock()
	if ok {
		return old, nil
	}
	_, _, err = s.journal.append(staging.AppendForget(nil, h.ID), 0) // forgotten meanwhile, before this record: it must not come back
	return in, err
}

// without returns the frame without the rows that match, and how many these are. Series without rows go too.
// The frame that is left shares label strings, histograms and exemplars with g, which must not be decoded into again
// while it is used.
//
// Series are numbered anew by their first row that stays: of the defs {a, b, c} and the rows a1 b1 c1 b2, without
// series a and b2, there remain the defs {b, c} and the rows b1 as number 0 and c1 as number 1.
func without(g *frame.Frame, q *Query) (left *frame.Frame, rows int) {
	left = &frame.Frame{Kind: g.Kind, Foreign: g.Foreign, Stamp: g.Stamp}
	matches := make([]bool, len(g.Defs))
	numbers := make([]int, len(g.Defs)) // of series that stay, plus 1
	for i, l := range g.Defs {
		matches[i] = q.Match(l)
	}
	gone := func(id point.DenseID, t point.Nanos) bool {
		if matches[id] && q.Lo <= t && t <= q.Hi {
			rows++
			return true
		}
		return false
	}
	number := func(id point.DenseID) point.DenseID {
		if numbers[id] == 0 {
			left.Defs = append(left.Defs, g.Defs[id])
			numbers[id] = len(left.Defs)
		}
		return point.DenseID(numbers[id] - 1)
	}
	for i, id := range g.IDs {
		if t := g.Times[i]; !gone(id, t) {
			left.IDs, left.Times, left.Values = append(left.IDs, number(id)), append(left.Times, t), append(left.Values, g.Values[i])
		}
	}
	for _, h := range g.Hists {
		if !gone(h.ID, h.Time) {
			left.Hists = append(left.Hists, frame.HistRow{ID: number(h.ID), Time: h.Time, H: h.H})
		}
	}
	for _, x := range g.Exemplars {
		x.ID = number(x.ID)
		left.Exemplars = append(left.Exemplars, x)
	}
	return left, rows
}
