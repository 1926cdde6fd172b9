package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/staging"
)

const (
	lookPeriod = 50 * time.Millisecond // between looks at frames that wait for a leader
	beatPeriod = time.Second           // between looks at the other holders
	// forwardTimeout bounds one try of one frame.
	forwardTimeout = 10 * time.Second
)

// Run forwards frames until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	beat := time.NewTicker(beatPeriod)
	defer beat.Stop()
	look := time.NewTimer(0)
	defer look.Stop()
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
		due := s.mu.machine.Due(time.Now())
		waiting := len(s.mu.held) > 0
		s.mu.Unlock()
		for i := range due {
			running.Go(func() { s.forward(ctx, &due[i]) })
		}
		if waiting {
			look.Reset(lookPeriod)
		}
	}
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
		s.mu.Lock()
		ended := s.mu.machine.End(table, begun)
		s.mu.Unlock()
		rows := 0
		for i := range ended {
			rows += ended[i].Rows
			s.note(ended[i].ID)
		}
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
			s.mu.machine.Heard(now, p, s.deps.Ways.Live(p))
		}
		again := s.mu.machine.Restages(now, others)
		s.mu.Unlock()
		for _, r := range again {
			running.Go(func() { s.restage(ctx, r) })
		}
	}
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

// forward gives one frame to the leaders of its partitions.
func (s *Store) forward(ctx context.Context, f *staging.Frame) {
	ctx, stop := context.WithTimeout(ctx, forwardTimeout)
	defer stop()
	h, ok := s.get(f.ID)
	var err error
	if ok {
		err = s.deliver(ctx, &h)
	}
	switch {
	case err == nil:
	case fault.Is(err, fault.Invalid), fault.Is(err, fault.TooLarge):
		if kept := s.setAside(&h, err); kept != nil {
			s.deps.Log.Error("a staged frame that its leader refuses could not be set aside; it is tried again", "error", kept)
			s.postpone(f.ID)
			return
		}
	default:
		s.deps.Log.Debug("a staged frame waits for its leader", "table", f.Table, "error", err)
		s.postpone(f.ID)
		return
	}
	s.mu.Lock()
	others, held := s.mu.machine.Forwarded(f.ID)
	s.mu.Unlock()
	if !held {
		return
	}
	s.metrics.forwarded.Add(float64(f.Rows))
	s.note(f.ID)
	s.tell(ctx, f, others)
	s.rouse()
}

// note logs that a frame is not held any more.
func (s *Store) note(id staging.ID) {
	if err := s.forgotten(id); err != nil {
		s.deps.Log.Warn("a staged frame that is gone could not be noted as such: it is forwarded again after a start", "error", err)
	}
}

func (s *Store) postpone(id staging.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.machine.Postponed(time.Now(), id)
}

// tell lets the other holders forget a frame. One that does not get it forwards the frame again, which changes nothing.
func (s *Store) tell(ctx context.Context, f *staging.Frame, others []topology.ServerID) {
	for _, id := range others {
		to, ok := s.deps.Ways.Server(id)
		if !ok {
			continue
		}
		err := s.ways.with(ctx, wayTo{id, f.Table}, to, func(w *way) error {
			return w.stream.Insert(ctx, &peer.Insert{Stamp: f.ID.Stamp, Level: point.One, Staging: &peer.Staging{Do: peer.Forget, Nonce: f.ID.Nonce}})
		})
		if err != nil {
			s.deps.Log.Debug("a holder was not told to forget a staged frame", "server", id, "error", err)
		}
	}
}

// part is the share of a frame that belongs to one partition. Its numbers of series are those of the frame.
type part struct {
	partition *topology.Partition
	in        peer.Insert
}

// deliver inserts all rows of a frame, by partition, with their rank.
func (s *Store) deliver(ctx context.Context, h *held) error {
	r := readers.Get().(*reader)
	defer r.put()
	if err := r.decoder.Decode(h.body, &r.frame); err != nil {
		return err
	}
	m, begun := s.deps.Ways.Map(h.Table)
	if m == nil || h.Before(begun) {
		return fault.Errorf(fault.Unavailable, "the map of table %q is not known here, or the table was dropped", h.Table)
	}
	uncovered, expired := r.divide(m, time.Now().UnixNano())
	if len(uncovered) > 0 {
		if err := s.deps.Ways.Cover(ctx, h.Table, uncovered); err != nil {
			return err
		}
		return fault.Errorf(fault.Unavailable, "partitions were made for rows of table %q", h.Table)
	}
	for i := range r.parts {
		if err := s.insert(ctx, h.Table, r, &r.parts[i], m.Seq); err != nil {
			return err
		}
	}
	if expired > 0 {
		s.metrics.expired.Add(float64(expired))
	}
	return nil
}

func (s *Store) insert(ctx context.Context, table string, r *reader, p *part, seq uint64) error {
	leader, err := s.deps.Ways.Leader(table, p.partition)
	if err != nil {
		return err
	}
	to, ok := s.deps.Ways.Server(leader)
	if !ok {
		return fault.Errorf(fault.Unavailable, "server %q is not known here", leader)
	}
	in := &p.in
	in.Partition, in.MapSeq, in.Stamp, in.Level = p.partition.ID, seq, r.frame.Stamp, point.All
	in.Staging = &peer.Staging{Do: peer.Forward}
	return s.ways.with(ctx, wayTo{leader, table}, to, func(w *way) error {
		var err error
		if r.ids, err = w.define(ctx, r.ids[:0], r.frame.Defs); err != nil {
			return err
		}
		translate(in, r.ids)
		return w.stream.Insert(ctx, in)
	})
}

// translate turns the frame's numbers of series into the stream's. The columns are the caller's own.
func translate(in *peer.Insert, ids []point.SeriesID) {
	for i, id := range in.IDs {
		in.IDs[i] = ids[id]
	}
	for i := range in.Hists {
		in.Hists[i].ID = ids[in.Hists[i].ID]
	}
	for i := range in.Exemplars {
		in.Exemplars[i].ID = ids[in.Exemplars[i].ID]
	}
}

// divide cuts the frame by a map into parts. It returns the times that no partition has, and counts the rows that are older than their table keeps.
func (r *reader) divide(m *topology.Map, now point.Nanos) (uncovered []point.Nanos, expired int) {
	g := &r.frame
	r.parts, r.rings = r.parts[:0], slices.Grow(r.rings[:0], len(g.Defs))
	for _, l := range g.Defs {
		r.rings = append(r.rings, l.RingPoint())
	}
	var last *topology.Partition
	var at int // of last, in r.parts
	find := func(id point.DenseID, t point.Nanos) *peer.Insert {
		if m.Config.Retention > 0 && t < now-int64(m.Config.Retention) {
			expired++
			return nil
		}
		if last == nil || !last.Contains(r.rings[id], t) {
			p, ok := m.Find(r.rings[id], t)
			if !ok {
				uncovered = append(uncovered, t)
				return nil
			}
			last, at = p, r.part(p)
		}
		return &r.parts[at].in
	}
	for i, id := range g.IDs {
		if in := find(id, g.Times[i]); in != nil {
			in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(id)), append(in.Times, g.Times[i]), append(in.Values, g.Values[i])
		}
	}
	for _, h := range g.Hists {
		if in := find(h.ID, h.Time); in != nil {
			in.Hists = append(in.Hists, point.HistRow{ID: point.SeriesID(h.ID), Time: h.Time, H: h.H})
		}
	}
	for _, e := range g.Exemplars {
		if in := find(e.ID, e.Time); in != nil {
			in.Exemplars = append(in.Exemplars, point.ExemplarRow{ID: point.SeriesID(e.ID), Time: e.Time, Value: e.Value, Labels: e.Labels})
		}
	}
	return uncovered, expired
}

// restage stages a frame on another server because a holder is away, or this one leaves. It keeps the new list of holders.
func (s *Store) restage(ctx context.Context, r staging.Restage) {
	ctx, stop := context.WithTimeout(ctx, forwardTimeout)
	defer stop()
	h, ok := s.get(r.ID)
	if !ok {
		return
	}
	err := s.restageAt(ctx, &h, r)
	if err == nil && slices.Contains(r.Holders, s.settings.Server) {
		err = s.rename(r)
	}
	s.mu.Lock()
	gone := s.mu.machine.Restaged(r, err == nil)
	s.mu.Unlock()
	if gone {
		s.note(r.ID)
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

func (s *Store) restageAt(ctx context.Context, h *held, r staging.Restage) error {
	to, ok := s.deps.Ways.Server(r.To)
	if !ok {
		return fault.Errorf(fault.Unavailable, "server %q is not known here", r.To)
	}
	var d frame.Decoder
	var g frame.Frame
	if err := d.Decode(h.body, &g); err != nil {
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
	return s.ways.with(ctx, wayTo{r.To, h.Table}, to, func(w *way) error {
		ids, err := w.define(ctx, nil, g.Defs)
		if err != nil {
			return err
		}
		translate(&in, ids)
		return w.stream.Insert(ctx, &in)
	})
}

// rename logs the frame anew with its new holders.
func (s *Store) rename(r staging.Restage) error {
	h, ok := s.get(r.ID)
	if !ok {
		return nil
	}
	h.Holders = r.Holders
	in, seq, err := s.log(&h.Frame, h.body)
	if err != nil {
		return err
	}
	if err := s.journal.sync(seq); err != nil {
		return err
	}
	s.mu.Lock()
	at, held := s.mu.held[r.ID]
	old := h.in
	if held {
		at.Holders, at.in = r.Holders, in
	}
	s.mu.Unlock()
	if !held { // forgotten meanwhile, before this record: it must not come back
		if _, _, err := s.journal.append(staging.AppendForget(nil, r.ID), 0); err != nil {
			return err
		}
		old = in
	}
	if s.journal.release(old) {
		return s.journal.tidy(false)
	}
	return nil
}

// setAside keeps a frame that can never be forwarded in a file of its own, for a person to look at.
func (s *Store) setAside(h *held, why error) error {
	fs := s.deps.FS
	path := fs.PathJoin(s.deps.Dir, fmt.Sprintf("%016x-%016x.aside", uint64(h.ID.Stamp), h.ID.Nonce))
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
