package runner

import (
	"context"
	"errors"
	"golang.org/x/sync/errgroup"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/deliver"
	"github.com/spillwaydb/spillway/storage/staging"
)

// Deps are the parts that a Store uses.
type Deps struct {
	FS  vfs.FS
	Dir string
	// Room refuses bytes that would use the reserve of the disk. Errors are Unavailable.
	Room func(bytes int64) error
	// Announce makes the tables known to gateways and other servers as those of which this server has staged rows, durably.
	Announce func(ctx context.Context, tables []string) error
	// Ways to other servers, and their states.
	Ways       Ways
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: none
}

// Store keeps the staged frames of one server. Safe for concurrent use.
// The life of a frame here, and the calls that move it:
//
//	          admit            log, sync                Run: Due, forward
//	(unknown) ─────▶ pending ───────────▶ held ─────────────────────────────▶ forgotten
//	                    │                  │ restage by a server that leaves     ▲ Forget by another holder;
//	                    │ log failed       │ (Delete, rename: logged anew)       │ a deletion that leaves no row
//	                    ▼                  ▼
//	                (unknown)            given: forgotten in the log, and read for 7 s more
type Store struct {
	// Constant after Open.
	deps     Deps
	settings staging.Settings
	journal  *journal
	metrics  *metrics
	// wake is never closed, and has one slot: any number of reasons costs one look.
	wake chan struct{} // 1 when there may be frames to forward
	out  *deliver.Deliverer

	// Lock order: announcing, rewriting, forgetting, journal.syncing, journal.mu, witness.syncing, witness.mu. Store.mu comes behind the first three, and is never
	// held with the others. The first three may be held during an fsync or a call to the coordination store, mu never: each
	// read and write of staged rows needs it.
	announcing chan struct{} // has one slot, full while Announce runs: it is waited for no longer than its context
	rewriting  sync.Mutex    // held while records of held frames are replaced by others: by a deletion, or with new holders
	forgetting sync.RWMutex  // held for reading while a frame is in held no more, and its record not yet in the journal

	mu struct {
		sync.Mutex
		machine   *staging.Machine
		held      map[staging.ID]*held
		given     map[staging.ID]*held // given to other servers lately
		gives     map[staging.ID]int   // how often each was
		filters   int64                // bytes of the filters of held
		looks     time.Time            // when Run looks at frames by itself; zero: it is woken
		pending   map[string]int       // frames being logged, by table
		announced map[string]time.Time // tables, and when each was last known to have frames
		known     bool                 // announced is as in the registry
		closed    bool
	}
}

// held is a frame that is durable here.
type held struct {
	staging.Frame
	body   []byte
	defs   []point.Labels // of body; nil: they are to be decoded
	in     *file
	filter filter // nil until a read made it; of more series, where rows were deleted since; guarded by Store.mu
}

// announcedFor is how long a table stays announced after its last frame: short absences follow one another.
const announcedFor = 15 * time.Second

// Open reads the frames there are. Errors are Unavailable.
// The log is replayed into held first, in its order: the last record of a name wins, and a forget ends it. Only then
// the machine gets the frames that are left, by rank, and without its bounds: acked frames are kept even if the
// settings are smaller now. At the end files without held frames are removed.
func Open(d Deps, s staging.Settings) (*Store, error) {
	s.SetDefaults()
	st := &Store{deps: d, settings: s, wake: make(chan struct{}, 1), announcing: make(chan struct{}, 1), out: deliver.New(d.Ways)}
	st.mu.machine = staging.New(s)
	st.mu.held, st.mu.pending, st.mu.announced = map[staging.ID]*held{}, map[string]int{}, map[string]time.Time{}
	st.mu.given, st.mu.gives = map[staging.ID]*held{}, map[staging.ID]int{}
	st.metrics = newMetrics(d.Registerer, st)
	var dec frame.Decoder
	var g frame.Frame
	var err error
	st.journal, err = openJournal(d.FS, d.Dir, d.Log, s.BytesMax, func(r *staging.Record, in *file) error {
		if err := dec.Decode(r.Body, &g); err != nil {
			return err
		}
		if err := r.Frame.Measure(&g); err != nil {
			return err
		}
		// Replay has no lock: no other goroutine has the store yet.
		if old, ok := st.mu.held[r.Frame.ID]; ok { // staged again with other holders, or without rows that were deleted
			old.in.live--
		}
		st.mu.held[r.Frame.ID] = &held{Frame: r.Frame, body: slices.Clone(r.Body), in: in}
		in.live++
		return nil
	}, func(id staging.ID) {
		if h, ok := st.mu.held[id]; ok {
			h.in.live--
			delete(st.mu.held, id)
		}
	})
	if err != nil {
		return nil, err
	}
	// In order of rank, not of the map: the machine's queue is the order in which frames are forwarded.
	all := make([]*held, 0, len(st.mu.held))
	for _, h := range st.mu.held {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *held) int { return a.ID.Compare(b.ID) })
	now := time.Now()
	for _, h := range all {
		h.Bound(now)
		st.mu.machine.Restore(h.Frame)
	}
	if len(all) > 0 {
		d.Log.Info("staged frames wait for their leaders", "frames", len(all), "bytes", st.mu.machine.Bytes())
	}
	if !st.journal.lost {
		st.journal.witness.reopen()
	}
	return st, st.journal.tidy(true)
}

// Lost reports whether frames that were acked may be gone from here since before Open: the log is damaged or ends within a record, or holds nothing although
// staged rows were announced. The last may also be so because all were forwarded and the server was killed then: it costs nothing.
func (s *Store) Lost(announced bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.journal.lost || announced && len(s.mu.held) == 0
}

// Staged is a frame to be staged. The frame is the caller's.
type Staged struct {
	Of    *peer.Staging
	Frame *frame.Frame
}

// Stage is StageAll of one frame.
func (s *Store) Stage(ctx context.Context, table string, mapSeq uint64, of *peer.Staging, g *frame.Frame) error {
	return s.StageAll(ctx, table, mapSeq, []Staged{{of, g}})
}

// StageAll keeps frames durably until their leaders have them; mapSeq is of the map of their table that the gateway knew. All wait for one fsync. Errors are Unavailable (no room, or
// the disk or the coordination store failed) and Invalid: none of them is acked.
func (s *Store) StageAll(ctx context.Context, table string, mapSeq uint64, all []Staged) error {
	some := make([]*newcomer, len(all))
	bytes := int64(0)
	for i, in := range all {
		n, err := s.prepare(table, mapSeq, in.Of, in.Frame)
		if err != nil {
			return err
		}
		some[i], bytes = n, bytes+int64(len(n.body))
	}
	// Room on the disk and in the log is asked for before frames are admitted: once one is pending, a failure costs
	// other requests of the same name an error.
	if err := s.deps.Room(bytes); err != nil {
		return err
	}
	if logged := s.journal.bytes(); logged+bytes > logShareMax*s.settings.BytesMax {
		return fault.Errorf(fault.Unavailable, "the log of staged frames takes %d bytes on server %s: an old frame in it waits for the leader of its partition", logged, s.settings.Server)
	}
	return s.stage(ctx, table, some)
}

// newcomer is a frame that is not held yet.
type newcomer struct {
	staging.Frame
	body []byte
	defs []point.Labels
	in   *file // once it is logged
}

// prepare checks and encodes a frame.
func (s *Store) prepare(table string, mapSeq uint64, of *peer.Staging, g *frame.Frame) (*newcomer, error) {
	now := time.Now()
	n := &newcomer{Frame: staging.Frame{ID: staging.ID{Stamp: g.Stamp, Nonce: of.Nonce}, Table: table, MapSeq: mapSeq, Since: now}}
	f := &n.Frame
	if of.Due != 0 {
		f.Due = time.Unix(0, of.Due)
		f.Bound(now)
	}
	for _, h := range of.Holders {
		f.Holders = append(f.Holders, topology.ServerID(strings.Clone(h)))
	}
	if err := errors.Join(f.Validate(), f.Measure(g)); err != nil {
		return nil, err
	}
	if _, begun := s.deps.Ways.Map(table); f.Before(begun) { // it would end at once, as frames that were acked before the table was dropped
		return nil, fault.Errorf(fault.Unavailable, "table %q was dropped since its map %d", table, mapSeq)
	}
	if err := g.Check(); err != nil {
		return nil, err
	}
	n.body, n.defs = encode(g), slices.Clone(g.Defs)
	f.Bytes = int64(len(n.body)) + int64(len(n.defs))*defBytes
	return n, nil
}

// defBytes is the memory of a definition in a list: its labels are the index's, and other frames of the series have the same.
const defBytes = 16

// logShareMax is how many times BytesMax the log may use on the disk: an old frame keeps those behind it.
const logShareMax = 4

// stage keeps frames: admitted, announced, logged, fsynced, held, in this order. Readers ask only servers that announced staged rows of the table, so
// an ack before the announcement is a row that no reader finds (the simulator leaves the rule out and sees that). Between admit and the end frames count as
// pending: otherwise retract could withdraw the announcement while the log is synced.
func (s *Store) stage(ctx context.Context, table string, all []*newcomer) error {
	hold, announced, err := s.admit(table, all)
	if err != nil {
		return err
	}
	if len(hold) > 0 {
		if err := s.keep(ctx, table, hold, announced); err != nil {
			return err
		}
	}
	var others errgroup.Group // beside each other: they share fsyncs
	for _, n := range all {
		if !slices.Contains(hold, n) {
			others.Go(func() error { return s.renamed(n.Frame) })
		}
	}
	return others.Wait()
}

// keep announces and logs frames that were admitted, and holds them once they are durable.
func (s *Store) keep(ctx context.Context, table string, all []*newcomer, announced bool) (err error) {
	if !announced {
		err = s.announce(ctx, table)
	}
	if err == nil {
		var seq uint64
		if seq, err = s.logAll(all); err == nil {
			if err = s.journal.sync(seq); err != nil {
				for _, n := range all {
					s.journal.release(n.in)
				}
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.pending[table] -= len(all); s.mu.pending[table] == 0 {
		delete(s.mu.pending, table)
	}
	if err != nil {
		for _, n := range all {
			s.mu.machine.Abandon(n.ID)
		}
		return err
	}
	soon := false
	for _, n := range all {
		s.mu.machine.Logged(n.ID)
		s.mu.held[n.ID] = &held{Frame: n.Frame, body: n.body, defs: n.defs, in: n.in}
		s.metrics.staged.Add(float64(n.Rows))
		soon = soon || n.Due.IsZero() || !s.looksBeforeLocked(n.Due)
	}
	if _, ok := s.mu.announced[table]; ok {
		s.mu.announced[table] = time.Now()
	}
	if soon {
		s.rouse()
	}
	return nil
}

// renamed keeps the holders of a frame that is held, if they are others.
func (s *Store) renamed(f staging.Frame) error {
	s.mu.Lock()
	renamed := s.mu.machine.Renamed(f)
	s.mu.Unlock()
	if !renamed {
		return nil
	}
	if err := s.rename(staging.Restage{ID: f.ID, Holders: f.Holders}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.machine.Rename(time.Now(), f.ID, f.Holders)
	return nil
}

// admit reserves the places of frames; hold are those that are not held already. From here on their table stays announced, if it was.
// Errors are Unavailable: the server stops, there is no room, or a request with the same frame is under way. Then none is admitted.
func (s *Store) admit(table string, all []*newcomer) (hold []*newcomer, announced bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil, false, fault.Errorf(fault.Unavailable, "the server is stopping")
	}
	for _, n := range all {
		is, err := s.mu.machine.Admit(n.Frame)
		if err != nil {
			s.metrics.refused.Inc()
			for _, n := range hold {
				s.mu.machine.Abandon(n.ID)
			}
			return nil, false, err
		}
		if is {
			hold = append(hold, n)
		}
	}
	if len(hold) > 0 {
		s.mu.pending[table] += len(hold)
	}
	_, announced = s.mu.announced[table]
	return hold, announced, nil
}

// announce makes a table known before the first ack.
// The coordination store is asked without mu, since that lasts milliseconds to seconds; announcing makes calls follow one
// another, so that an older list never replaces a newer one.
func (s *Store) announce(ctx context.Context, table string) error {
	if err := s.beginAnnouncing(ctx); err != nil {
		return err
	}
	defer s.endAnnouncing()
	s.mu.Lock()
	_, ok := s.mu.announced[table]
	all := s.announcedLocked()
	s.mu.Unlock()
	if ok {
		return nil
	}
	if !slices.Contains(all, table) {
		all = append(all, table)
	}
	if err := s.deps.Announce(ctx, all); err != nil {
		return fault.Wrap(err, fault.Unavailable, "announce that rows of table %q are staged", table)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.announced[table] = time.Now()
	return nil
}

// beginAnnouncing waits until no Announce runs, and keeps others from it until endAnnouncing. Errors are Unavailable: ctx ended.
func (s *Store) beginAnnouncing(ctx context.Context) error {
	select {
	case s.announcing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.Unavailable, "the coordination store has not answered an announcement of staged rows before")
	}
}

func (s *Store) endAnnouncing() { <-s.announcing }

// announcedLocked lists the tables that are announced, or have frames.
func (s *Store) announcedLocked() []string {
	all := s.mu.machine.Tables()
	for t := range s.mu.announced {
		all = append(all, t)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// retract withdraws the tables that have had no frames for a while, and announces those that have. It is called once in a second.
//
// A table that is not announced has no frame here, after a crash either: deletions in it do not ask this server.
func (s *Store) retract(ctx context.Context, now time.Time) error {
	if err := s.beginAnnouncing(ctx); err != nil {
		return err
	}
	defer s.endAnnouncing()
	s.mu.Lock()
	changed := !s.mu.known
	for _, t := range s.mu.machine.Tables() {
		if _, ok := s.mu.announced[t]; !ok {
			changed = true
		}
		s.mu.announced[t] = now
	}
	for t := range s.mu.pending {
		if _, ok := s.mu.announced[t]; ok {
			s.mu.announced[t] = now
		}
	}
	// First settle, then withdraw: a forgotten frame whose forget is not durable would come back at a server that
	// deletions do not ask.
	idle := s.idleLocked(now)
	s.mu.Unlock()
	if len(idle) > 0 && s.settle() != nil { // the log failed, which it logged
		idle = nil
	}
	s.mu.Lock()
	for _, t := range idle {
		if now.Sub(s.mu.announced[t]) >= announcedFor && s.mu.pending[t] == 0 { // a frame may have come while the log was synced
			delete(s.mu.announced, t) // a frame that comes now announces it again, after this
			changed = true
		}
	}
	all := s.announcedLocked()
	s.mu.Unlock()
	if !changed {
		return nil
	}
	err := s.deps.Announce(ctx, all)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.known = err == nil; err != nil {
		clear(s.mu.announced) // frames that come announce their table themselves
	}
	return err
}

// idleLocked lists the tables that were announced, and have had no frames for a while.
func (s *Store) idleLocked(now time.Time) (idle []string) {
	for t, last := range s.mu.announced {
		if now.Sub(last) >= announcedFor {
			idle = append(idle, t)
		}
	}
	return idle
}

// Forget ends the staging of frames that leaders keep.
func (s *Store) Forget(ids ...staging.ID) error {
	return s.forgotten(func() []staging.ID {
		held := make([]staging.ID, 0, len(ids))
		for _, id := range ids {
			if s.mu.machine.Forget(id) {
				held = append(held, id)
			}
		}
		return held
	})
}

// forgotten logs that the frames are not held any more that dropLocked removes from the machine. It is not made durable at once: a frame that comes back after a crash is forwarded again, which
// changes nothing.
// forgetting is held from the removal out of held until the records are in the journal: settle, which acquires it for
// writing, then sees each frame either in held or with its forget written. The files are released after that: as long
// as no forget is in the log, the frame's record must be.
//
// A frame leaves the machine and held at one moment: between the two it could be staged again, and the new one would be
// removed in place of the old one, whose file would stay for good.
func (s *Store) forgotten(dropLocked func() []staging.ID) error {
	s.forgetting.RLock()
	in, records := s.unhold(dropLocked)
	var err error
	if len(in) > 0 {
		_, _, err = s.journal.append(records, 0)
	}
	s.forgetting.RUnlock()
	if err != nil {
		return err
	}
	free := false
	for _, f := range in {
		free = s.journal.release(f) || free
	}
	if !free {
		return nil
	}
	return s.journal.tidy(false)
}

// unhold removes the frames out of held that dropLocked removes from the machine. It returns the files that they lie in, and the records that forget them.
func (s *Store) unhold(dropLocked func() []staging.ID) (in []*file, records []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range dropLocked() {
		h := s.mu.held[id]
		if h == nil {
			continue
		}
		s.mu.filters -= h.filter.bytes()
		delete(s.mu.held, id)
		in, records = append(in, h.in), staging.AppendForget(records, id)
	}
	return in, records
}

// Loads returns the sizes of the frames staged here, by table.
func (s *Store) Loads() []staging.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.machine.Loads()
}

// Load returns the size of one table's frames staged here; false: there are none.
func (s *Store) Load(table string) (staging.Load, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.machine.Load(table)
}

// Times returns the first and the last time of the rows of a table that Read may return now, those of frames that went to another server lately included; lo > hi: there are none.
// A frame that is in neither was acked by its leader, or is staged later.
func (s *Store) Times(table string) (lo, hi point.Nanos) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lo, hi = math.MaxInt64, math.MinInt64
	for _, frames := range []map[staging.ID]*held{s.mu.held, s.mu.given} {
		for _, h := range frames {
			if h.Table == table {
				lo, hi = min(lo, h.Lo), max(hi, h.Hi)
			}
		}
	}
	return lo, hi
}

// Bytes is about the memory of the staged frames, and of what reads keep of them.
func (s *Store) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.machine.Bytes() + s.mu.filters
}

func (s *Store) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// leaveRetract bounds how long a server that holds no frame waits for the coordination store at its end, which may be away.
const leaveRetract = 1500 * time.Millisecond

// Leave accepts no more frames, and returns when none is held: their leaders accepted them, or other servers. Then no table is announced either: a server that
// is stopped for good would look as if rows were lost with it. Run has to run. Errors are those of ctx; the frames held then stay on the disk.
func (s *Store) Leave(ctx context.Context) error {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.machine.Leave(true)
	s.mu.Unlock()
	s.rouse()
	look := time.NewTicker(lookPeriod)
	defer look.Stop()
	for {
		s.mu.Lock()
		n := s.mu.machine.Len()
		s.mu.Unlock()
		if n == 0 {
			ctx, cancel := context.WithTimeout(ctx, leaveRetract)
			defer cancel()
			if err := s.retract(ctx, time.Now().Add(announcedFor)); err != nil {
				s.deps.Log.Warn("the row of this server still says that rows are staged here, until it starts again", "error", err)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return fault.Wrap(ctx.Err(), fault.Unavailable, "%d staged frames", n)
		case <-look.C:
		}
	}
}

// Close ends the log. Frames that are held stay on the disk.
func (s *Store) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	return errors.Join(s.out.Close(), s.journal.close())
}

// overlapping returns the frames of a table with rows in [lo, hi], without those that have no series with all labels of these hashes.
// Copies: the caller may read them without the lock, and must not change their bodies. One that is held again after it
// was given is listed twice.
func (s *Store) overlapping(table string, lo, hi point.Nanos, labels []uint64) (all []held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, frames := range []map[staging.ID]*held{s.mu.held, s.mu.given} {
		for _, h := range frames {
			if h.Table == table && h.Lo <= hi && h.Hi >= lo && h.filter.mayHave(labels) {
				all = append(all, *h)
			}
		}
	}
	return all
}
