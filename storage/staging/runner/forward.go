package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/deliver"
	"github.com/spillwaydb/spillway/storage/staging"
)

// Ways are what forwarding needs to know of the cluster.
type Ways interface {
	deliver.Ways
	// Map returns the newest map of a table at hand, nil if there is none, and the sequence number below which maps are of tables of that
	// name that were dropped; 0: unknown.
	Map(table string) (m *topology.Map, begun uint64)
	// Live reports whether a server's heartbeat was seen lately.
	Live(id topology.ServerID) bool
	// Began is when a server began with its directory, by its clock; zero: unknown.
	Began(id topology.ServerID) time.Time
	// Leaving reports whether this server is drained.
	Leaving() bool
	// Others lists the other servers of the cluster that may accept staged frames.
	Others() []topology.ServerID
}

const (
	lookPeriod = 50 * time.Millisecond // between looks at frames that wait for a leader; those that are due later are looked at when they are
	beatPeriod = time.Second           // between looks at the other holders
	// forwardTimeout bounds one try of one frame, or of some that go together.
	forwardTimeout = 10 * time.Second
	// togetherBytesMax bounds frames that go together, by their bytes here: so an insert of them is far below what a message, or the window of a stream, has room for.
	togetherBytesMax = 2 << 20
)

// Run forwards frames until ctx ends.
// One loop looks for work and starts a goroutine for the frames that are forwarded together, and for each that is staged again; the machine bounds
// them (32 forwards of a table, or 16,384 rows in small frames; 64 new restages in a beat). Each gives up its calls after forwardTimeout, or with ctx,
// and Run returns when all have ended.
//
//	wake (a frame came, a hold ended) ──┐
//	look (the next frame is due)        ├──▶ endDropped ─▶ Due ─▶ a goroutine for each group: forwardAll
//	beat (each second: holders, table   │
//	      announcements) ───────────────┘──▶ Restages ─▶ a goroutine each: restage
func (s *Store) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	beat := time.NewTicker(beatPeriod)
	defer beat.Stop()
	look := time.NewTimer(0)
	defer look.Stop()
	// The first map of each table when its frames were last looked at: endDropped passes over all frames of a table
	// only when that changes, and once in a beat.
	begun := map[string]uint64{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-look.C:
		case <-beat.C:
			s.beat(ctx, &running)
			clear(begun) // frames that were being logged meanwhile are looked at too
		}
		s.endDropped(begun)
		s.mu.Lock()
		now := time.Now()
		due := s.mu.machine.Due(now)
		next := s.lookLocked(now)
		s.mu.Unlock()
		for _, group := range staging.Groups(due, peer.TogetherMax, togetherBytesMax) {
			running.Go(func() { s.forwardAll(ctx, group) })
		}
		if next > 0 {
			look.Reset(next)
		} else {
			look.Stop()
		}
	}
}

// lookLocked chooses when Run looks again if nothing wakes it, and remembers it; 0: not before the next beat.
func (s *Store) lookLocked(now time.Time) time.Duration {
	at, wait := s.mu.machine.Next()
	soon := now.Add(lookPeriod)
	if wait || !at.IsZero() && at.Before(soon) {
		at = soon
	}
	if s.mu.looks = at; at.IsZero() {
		return 0
	}
	return at.Sub(now)
}

// looksBeforeLocked reports whether Run looks before a moment by itself.
func (s *Store) looksBeforeLocked(at time.Time) bool {
	return !s.mu.looks.IsZero() && !s.mu.looks.After(at)
}

// endDropped ends the frames of tables that were dropped. It looks at all frames of a table unless seen has the first map of that table already.
func (s *Store) endDropped(seen map[string]uint64) {
	s.mu.Lock()
	tables := s.mu.machine.Tables()
	s.mu.Unlock()
	for _, table := range tables {
		_, begun := s.deps.Ways.Map(table)
		if last, ok := seen[table]; ok && last == begun {
			continue
		}
		seen[table] = begun
		rows := 0
		s.note(func() (ids []staging.ID) {
			for _, f := range s.mu.machine.End(table, begun) {
				rows, ids = rows+f.Rows, append(ids, f.ID)
			}
			return ids
		})
		if rows > 0 {
			s.metrics.dropped.Add(float64(rows))
			s.deps.Log.Info("staged rows of a dropped table are gone with it", "table", table, "rows", rows)
		}
	}
}

// beat looks at the other holders, stages their frames again, and keeps the announcement.
func (s *Store) beat(ctx context.Context, running *sync.WaitGroup) {
	now := time.Now()
	s.mu.Lock()
	partners := s.mu.machine.Partners()
	s.mu.Unlock()
	leaving := s.deps.Ways.Leaving()
	s.mu.Lock()
	s.mu.machine.Leave(leaving || s.mu.closed)
	held := len(s.mu.held)
	s.mu.Unlock()
	if held > 0 {
		others := s.deps.Ways.Others()
		s.mu.Lock()
		for _, p := range partners {
			s.mu.machine.Answered(now, p, s.deps.Ways.Live(p))
			s.mu.machine.Began(p, s.deps.Ways.Began(p))
		}
		again := s.mu.machine.Restages(now, others)
		s.mu.Unlock()
		for _, r := range again {
			running.Go(func() { s.restage(ctx, r) })
		}
	}
	s.journal.witness.sync()
	if err := s.retract(ctx, now); err != nil && ctx.Err() == nil {
		s.deps.Log.Warn("the tables with staged rows could not be announced; it is tried again", "error", err)
	}
}

func (s *Store) get(id staging.ID) (h held, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.mu.held[id]
	if ok {
		h = *at
	}
	return h, ok
}

// forwardAll gives frames of one table to the leaders of their partitions, together. If that fails, each goes alone after a pause: one whose leader is away, or refuses it for
// good, keeps back no other. Not at once: that many inserts, beside each other, would go to a leader that has just refused one.
// The steps are ordered for a crash: the leader has the rows on all its copies before a frame is forgotten
// here, and the forget is written before the other holders are asked to forget. A crash between costs one more forward
// of the frame, which changes nothing since its rows keep their rank.
func (s *Store) forwardAll(ctx context.Context, all []staging.Frame) {
	if len(all) > 1 {
		if err := s.deliverAll(ctx, all); err != nil {
			s.deps.Log.Debug("staged frames are forwarded one by one from now on", "table", all[0].Table, "frames", len(all), "error", err)
			for i := range all {
				s.postpone(all[i].ID)
			}
			return
		}
		s.forwarded(ctx, all)
		return
	}
	s.forward(ctx, &all[0])
}

// forward is forwardAll for one frame.
func (s *Store) forward(ctx context.Context, f *staging.Frame) {
	err := s.deliverAll(ctx, []staging.Frame{*f})
	switch {
	case err == nil:
	// Trying again cannot help, and the frame would hold the log's oldest file for ever. Its file beside the log is
	// durable before the frame is forgotten.
	case fault.Is(err, fault.Invalid), fault.Is(err, fault.TooLarge):
		if h, ok := s.get(f.ID); ok {
			if kept := s.setAside(&h, err); kept != nil {
				s.deps.Log.Error("a staged frame that its leader refuses could not be set aside; it is tried again", "error", kept)
				s.postpone(f.ID)
				return
			}
		}
	default:
		s.deps.Log.Debug("a staged frame waits for its leader", "table", f.Table, "error", err)
		s.postpone(f.ID)
		return
	}
	s.forwarded(ctx, []staging.Frame{*f})
}

// forwarded ends the staging of frames of a table that leaders keep.
func (s *Store) forwarded(ctx context.Context, all []staging.Frame) {
	gone := make([]staging.ID, 0, len(all))
	others := map[topology.ServerID][]staging.ID{}
	s.note(func() []staging.ID {
		for i := range all {
			rest, held := s.mu.machine.Forwarded(all[i].ID)
			if !held {
				continue
			}
			s.metrics.forwarded.Add(float64(all[i].Rows))
			gone = append(gone, all[i].ID)
			for _, o := range rest {
				others[o] = append(others[o], all[i].ID)
			}
		}
		return gone
	})
	if len(gone) == 0 {
		return
	}
	s.tell(ctx, all[0].Table, others)
	s.rouse()
}

// note is forgotten, for callers that can do nothing about an error.
func (s *Store) note(dropLocked func() []staging.ID) {
	if err := s.forgotten(dropLocked); err != nil {
		s.deps.Log.Warn("staged frames that are gone could not be noted as such: they are forwarded again after a start", "error", err)
	}
}

// giveLocked keeps a frame readable that another server holds now.
// A timer drops it again. A frame may be given more than once within ReadableFor (it comes back and goes again), so
// gives counts the timers that run, and only the last one drops it.
func (s *Store) giveLocked(id staging.ID) {
	if h := s.mu.held[id]; h != nil {
		s.mu.given[id] = h
		s.mu.gives[id]++
		time.AfterFunc(staging.ReadableFor, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.mu.gives[id]--; s.mu.gives[id] == 0 { // else the frame was staged here and transferred a second time meanwhile
				delete(s.mu.gives, id)
				delete(s.mu.given, id)
			}
		})
	}
}

func (s *Store) postpone(id staging.ID) {
	s.mu.Lock()
	s.mu.machine.Postponed(time.Now(), id)
	s.mu.Unlock()
	s.rouse() // to look again once its pause is over
}

// tell notifies the other holders that they may forget frames. One that does not get it forwards them again, which changes nothing.
func (s *Store) tell(ctx context.Context, table string, others map[topology.ServerID][]staging.ID) {
	ctx, stop := context.WithTimeout(ctx, forwardTimeout)
	defer stop()
	for server, ids := range others {
		all := make([]*peer.Insert, 0, len(ids))
		for _, id := range ids {
			all = append(all, &peer.Insert{Stamp: id.Stamp, Level: point.One, Staging: &peer.Staging{Do: peer.Forget, Nonce: id.Nonce}})
		}
		err := s.out.At(ctx, server, table, func(st *deliver.Stream) error { return st.InsertTogether(ctx, all) })
		if err != nil {
			s.deps.Log.Debug("a holder was not notified to forget staged frames", "server", server, "frames", len(ids), "error", err)
		}
	}
}

// deliverAll inserts all rows of frames of one table, by partition, with their ranks. A frame that is not held any more counts as delivered.
func (s *Store) deliverAll(ctx context.Context, all []staging.Frame) error {
	ctx, stop := context.WithTimeout(ctx, forwardTimeout)
	defer stop()
	m, begun := s.deps.Ways.Map(all[0].Table)
	frames := make([]*deliver.Scratch, 0, len(all))
	defer func() {
		for _, r := range frames {
			r.Put()
		}
	}()
	for i := range all {
		h, ok := s.get(all[i].ID)
		if !ok {
			continue
		}
		r := deliver.Get()
		frames = append(frames, r)
		if err := r.Decode(h.defs, h.body); err != nil {
			return err
		}
		if m == nil || h.Before(begun) {
			return fault.Errorf(fault.Unavailable, "the map of table %q is not known here, or the table was dropped", h.Table)
		}
	}
	if len(frames) == 0 {
		return nil
	}
	expired, err := s.out.Together(ctx, all[0].Table, m, peer.Forward, frames)
	if err == nil && expired > 0 {
		s.metrics.expired.Add(float64(expired))
	}
	return err
}

// restage stages a frame on another server because a holder is away, or this one leaves. It keeps the new list of holders.
// The other server has the frame durably before this one forgets it (gone), or logs the new list (renamed). A crash
// between leaves one holder too many, which forwards the frame once more.
func (s *Store) restage(ctx context.Context, r staging.Restage) {
	ctx, stop := context.WithTimeout(ctx, forwardTimeout)
	defer stop()
	h, ok := s.get(r.ID)
	if !ok {
		return
	}
	var err error
	for _, to := range r.Servers {
		err = errors.Join(err, s.restageAt(ctx, &h, r, to))
	}
	renamed := false
	s.note(func() []staging.ID {
		var gone bool
		if gone, renamed = s.mu.machine.Restaged(time.Now(), r, err == nil); !gone {
			return nil
		}
		s.giveLocked(r.ID)
		return []staging.ID{r.ID}
	})
	if renamed {
		err = s.rename(r)
	}
	if err != nil {
		s.deps.Log.Warn("a staged frame of which a holder is away, or is to be stopped, could not be staged again; it is tried again", "to", r.To, "error", err)
		return
	}
	s.metrics.restaged.Inc()
}

func dueOf(f *staging.Frame) point.Nanos {
	if f.Due.IsZero() {
		return 0
	}
	return f.Due.UnixNano()
}

func (s *Store) restageAt(ctx context.Context, h *held, r staging.Restage, to topology.ServerID) error {
	var d frame.Decoder
	var g frame.Frame
	if err := d.DecodeWith(h.defs, h.body, &g); err != nil {
		return err
	}
	in := peer.Insert{MapSeq: h.MapSeq, Stamp: g.Stamp, Level: point.One, Staging: &peer.Staging{Do: peer.Stage, Nonce: r.ID.Nonce, Due: dueOf(&h.Frame)}, Times: g.Times, Values: g.Values}
	for _, id := range r.Holders {
		in.Staging.Holders = append(in.Staging.Holders, string(id))
	}
	for _, id := range g.IDs {
		in.IDs = append(in.IDs, point.SeriesID(id))
	}
	for _, x := range g.Hists {
		in.Hists = append(in.Hists, point.HistRow{ID: point.SeriesID(x.ID), Time: x.Time, H: x.H})
	}
	for _, x := range g.Exemplars {
		in.Exemplars = append(in.Exemplars, point.ExemplarRow{ID: point.SeriesID(x.ID), Time: x.Time, Value: x.Value, Labels: x.Labels})
	}
	return s.out.At(ctx, to, h.Table, func(st *deliver.Stream) error {
		ids, err := st.Define(ctx, nil, g.Defs)
		if err != nil {
			return err
		}
		deliver.Translate(&in, ids)
		return st.Insert(ctx, &in)
	})
}

// rename logs the frame anew with its new holders. The file of the record before is released only once the new one is
// durable: it may hold the only durable copy of an acked frame.
func (s *Store) rename(r staging.Restage) error {
	old, seq, err := s.renameRecord(r)
	if err != nil || old == nil {
		return err
	}
	if err := s.journal.sync(seq); err != nil {
		return err
	}
	if s.journal.release(old) {
		return s.journal.tidy(false)
	}
	return nil
}

// renameRecord appends the record. It returns the file to be released once that is durable; nil: the frame is not held.
// Two of these at once, or one beside a deletion, would both release the file of the record before, and a file with
// frames of others could be removed; and the one that is logged last could have rows that the deletion removed.
func (s *Store) renameRecord(r staging.Restage) (old *file, seq uint64, err error) {
	s.rewriting.Lock()
	defer s.rewriting.Unlock()
	h, ok := s.get(r.ID)
	if !ok {
		return nil, 0, nil
	}
	h.Holders = r.Holders
	in, seq, err := s.log(&h.Frame, h.body)
	if err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	at, held := s.mu.held[r.ID]
	if held {
		old, at.Holders, at.in = at.in, r.Holders, in
	}
	s.mu.Unlock()
	if held {
		return old, seq, nil
	}
	_, seq, err = s.journal.append(staging.AppendForget(nil, r.ID), 0) // forgotten meanwhile, before this record: it must not come back
	return in, seq, err
}

// setAside keeps a frame that can never be forwarded in a file of its own, for a person to look at.
// File, then directory are synced before it returns: the caller forgets the frame next. A second try writes the same
// name again.
func (s *Store) setAside(h *held, why error) error {
	fs := s.deps.FS
	path := fs.PathJoin(s.deps.Dir, fmt.Sprintf("%016x-%016x%s", uint64(h.ID.Stamp), h.ID.Nonce, asideSuffix))
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "create %s", path)
	}
	_, err = f.Write(staging.AppendFrame([]byte(staging.FileMagic), &h.Frame, h.body))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = brick.SyncDir(fs, s.deps.Dir)
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "write %s", path)
	}
	s.metrics.aside.Inc()
	s.deps.Log.Error("a staged frame was refused by its leader for good, and is kept in a file", "file", path, "table", h.Table, "rows", h.Rows, "error", why)
	return nil
}
