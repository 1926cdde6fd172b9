package partition

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/lane"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/head"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// Deps are shared by all partitions of a server.
type Deps struct {
	Brick   *brick.Brick
	Index   *series.Index // of the partition's table
	Cache   *segment.Cache
	Log     *slog.Logger
	Metrics *Metrics
	// HeadBytes counts the memory of heads; partitions keep it current.
	HeadBytes HeadBytes
	// Compacting counts the memory of compactions under way.
	Compacting *budget.Held
	// Point is where a series lies on the ring of the partition's table; ok is false where that is not known, and new series are not checked. Nil: by all their labels.
	Point func(l point.Labels) (at uint64, ok bool)
	// Lane leaves processors to writes; compactions wait for turns there. Nil: they do not.
	Lane *lane.Lane
	// Writes counts the frames of leaders that are logged and applied here, for the lane; nil: they are not counted.
	Writes *lane.Writes
	// Now is the time by the median of the servers' clocks, or 1970 while that is not known. Nil: this server's clock.
	Now func() point.Nanos
}

// HeadBytes is where the memory of heads is counted. Safe for concurrent use.
type HeadBytes interface{ Add(n int64) }

// Partition is one placement. Append, View and the queries of a View may be called from any goroutine.
type Partition struct {
	// Constant after Open.
	deps     Deps
	settings Settings
	ident    Identity
	log      *slog.Logger

	// ids are put under mu and read without it. A partition that warms or cools gets new ones; views keep theirs.
	ids atomic.Pointer[ids]
	// surplus says that there may be surplus files.
	surplus atomic.Bool
	// read counts the segments that the partition or a view has. A dropped partition gets no more.
	read atomic.Int64

	// compactMu is held by the one compaction that runs, and by Close. Acquired before flushMu.
	compactMu  sync.Mutex
	compacting atomic.Bool

	doubts atomic.Bool // there are doubted segments

	// flushMu orders changes of the list of segments: flush, the end of a compaction, deletion. Acquired before mu.
	flushMu sync.Mutex
	silence silence // guarded by flushMu

	// followMu orders the leader's frames, cuts and segments. Acquired before flushMu.
	followMu sync.Mutex

	// lateMu is held while late frames are applied (late.go), and by Adopt, Cut and deletions of the leader. Acquired before followMu.
	lateMu sync.Mutex

	// applyMu is held for a frame from its place in the log to its place in the heads, and by all that change the head that rows are added to, the ids, or the epoch:
	// to them a frame is there as a whole or not at all. Acquired before mu.
	applyMu sync.Mutex

	mu struct {
		sync.Mutex // guards the fields below. Fields about frames change once a frame is applied whole. Held for 20 ns a row, of heldRowsMax at most: no I/O but the copy into the log's buffer

		warm      bool              // ids and the table's index have all series; false: ask the segments
		epoch     point.Epoch       // frames are accepted under it; 0: none are
		raised    bool              // the brick refuses lower epochs than this
		follows   bool              // frames and segments come from a leader elsewhere: none are made here
		leader    point.Epoch       // its epoch; 0: not announced yet. Of a placement that leads: 0
		chain     Followers         // of the leader; nil: no other placement follows
		held      point.Epoch       // the highest in log and segments
		dropped   bool              // closed or dropped: all operations are refused
		damaged   error             // a segment cannot be read: reads, rows, flushes and changes are refused, only Drop is not; nil: undamaged
		broken    []point.SegmentID // with damaged files
		beyond    bool              // more is damaged than these
		doubted   []point.SegmentID // in which reads met damage
		harmed    error             // as damaged, found while serving: reads and compactions are refused; nil: all can be read
		owed      error             // a deletion of the log is not in the catalogue yet, and reads would show its rows: they are refused; nil: none
		state     *State            // as in the catalogue; replaced under flushMu, never changed
		folding   bool              // a compaction is under way, and was not ended
		offered   *State            // of the segments that followers may get while a compaction that was asked for runs; nil: state
		ahead     []ahead           // segments of the leader that wait for those above them
		aheadOf   point.Epoch       // the leader's
		nextSeg   uint64            // seq of the next segment id
		segments  []*segmentRef
		frozen    []*frozen // heads that accept no more rows, oldest first; a leader flushes the first
		flushing  bool      // the first of them is being flushed
		asked     requests  // of the next compaction of all segments
		active    *headRef
		upTo      point.Stamp      // the highest rank of its rows, of frames that are applied as a whole: views end there
		mixed     bool             // a frame is being applied without mu, and does not rank above them: views wait for it
		frames    int              // in the active head
		deletions []deletion       // among those frames
		ends      []point.EpochEnd // of all of them
		first     point.Serial     // of the first of them
		born      time.Time        // of the first of them
		lastWrite time.Time
		warnedOld time.Time // when it was said that rows came that ranks are not kept of
		// warnedForgotten is when it was said that rows came which a forgotten deletion may have removed.
		warnedForgotten time.Time
		last            point.Serial    // given to the newest frame
		applied         point.Serial    // the newest frame in heads or segments; last, unless frames are late
		late            late            // the frames between the two
		ranks           rank.Order      // of all frames and segments
		seen            rank.Seen       // of the frames that gateways sent
		wait            brick.Wait      // for its fsync
		rewarmed        int             // times that it was warmed with rows in segments
		defined         int             // dense ids with definitions in segments
		order           []point.DenseID // by labels: those below ordered that have a ref, but for revived
		ordered         int
		revived         []point.DenseID // that have one again; some perhaps twice, or quiet since
		flush           backoff
		compact         backoff
	}
	frames sync.Pool // *appender
}

// Open opens a placement from its catalogue entry; a new one is written to the catalogue first. Rows that are only in
// the log come by Replay. The epoch is the fencing token under which this server writes; with 0 nothing is accepted before
// Lead.
func Open(d Deps, s Settings, st *State, epoch point.Epoch) (*Partition, error) {
	s.SetDefaults()
	p := &Partition{deps: d, settings: s, ident: st.Identity}
	p.log = d.Log.With("table", st.Table, "partition", st.Partition)
	p.ids.Store(newIDs(d.Index))
	p.mu.state = st
	p.mu.epoch, p.mu.held = epoch, st.Flushed.Epoch
	for _, g := range st.Segments {
		p.mu.held = max(p.mu.held, g.ID.Epoch)
		p.mu.ranks.Observe(g.StampHi)
	}
	for _, d := range st.Deleted {
		p.mu.ranks.Observe(d.Rank)
	}
	p.mu.nextSeg = max(st.NextSegment, 1)
	p.mu.last, p.mu.applied = st.Flushed, st.Flushed
	p.mu.active = p.newHeadRef()
	p.frames.New = func() any { return new(appender) }
	if err := p.openSegments(); err != nil {
		p.closeSegments()
		return nil, err
	}
	return p, nil
}

// Create writes the catalogue entry of a new placement and opens it.
func Create(d Deps, s Settings, ident Identity, epoch point.Epoch) (*Partition, error) {
	st := &State{Identity: ident, NextSegment: 1}
	p, err := Open(d, s, st, epoch)
	if err != nil {
		return nil, err
	}
	return p, p.commit(st)
}

// commit makes st the catalogue entry, durably, and then the state of this process. The flush lock is held, or no other goroutine has the partition yet.
func (p *Partition) commit(st *State) error {
	p.mu.Lock()
	st.NextSegment = p.mu.nextSeg
	p.mu.Unlock()
	batch := p.deps.Brick.NewBatch()
	batch.Set(st.key(), st.encode())
	if err := batch.Commit(true); err != nil {
		return fault.Annotate(err, "catalogue entry of partition %s/%d", st.Table, st.Partition)
	}
	p.mu.Lock()
	p.mu.state = st
	p.mu.Unlock()
	return nil
}

// takeSegmentID hands out an id, of the epoch that is led or, before that, of the newest that is held. It need not be durable at
// once: a file that a crash leaves under it is removed at the next start, before the id is handed out again.
func (p *Partition) takeSegmentID() point.SegmentID {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := point.SegmentID{Epoch: max(p.mu.epoch, p.mu.held), Seq: p.mu.nextSeg}
	p.mu.nextSeg++
	return id
}

// openSegments opens the segments in the catalogue. Tidy handles other files in the directory.
func (p *Partition) openSegments() error {
	st := p.mu.state
	b := p.deps.Brick
	if st.Incomplete != "" {
		p.damage(fault.Errorf(fault.Corrupt, "its catalogue entry was rebuilt and lacks rows: %s", st.Incomplete))
	}
	for _, g := range st.Segments {
		file := b.SegmentPath(st.Placement, g.ID)
		r, err := segment.Open(b.FS(), file, g.Info, p.deps.Cache)
		if isDamage(err) {
			p.damageFile(g.ID, err)
			continue
		}
		if err != nil {
			return fault.Annotate(err, "partition %s/%d", st.Table, st.Partition)
		}
		p.mu.segments = append(p.mu.segments, p.newSegmentRef(r, g, file))
		p.mu.defined += int(g.Definitions)
	}
	return nil
}

// closeSegments gives up this process's references. Views that are open keep theirs.
func (p *Partition) closeSegments() {
	for _, g := range p.mu.segments {
		g.release()
	}
	p.mu.segments = nil
}

// Identity returns the identity of the placement.
func (p *Partition) Identity() Identity { return p.ident }

// Replay is ReplayFrame for a frame as the log holds it. It keeps nothing of rec.
func (p *Partition) Replay(rec []byte, d *frame.Decoder, f *frame.Frame) error {
	if err := d.Decode(rec, f); err != nil {
		return fault.Annotate(err, "partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	return p.ReplayFrame(f)
}

// ReplayFrame applies a frame that the log holds beyond Flushed; frames must come in the order of their serials. Only for
// recovery, before the first Append. It keeps nothing of f but the strings of its definitions.
//
// Frames of a damaged partition stay in the log for when it is whole again.
func (p *Partition) ReplayFrame(f *frame.Frame) error {
	if p.Damaged() == nil {
		switch err := p.warm(); {
		case isDamage(err):
			p.damage(err)
		case err != nil:
			return err
		}
	}
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.ids.Load()
	if f.Prev != p.mu.last && p.mu.damaged == nil {
		p.damageLocked(fault.Errorf(fault.Corrupt, "frame %v follows %v in the log, but %v was replayed last: log frames are missing",
			f.Serial, f.Prev, p.mu.last))
	}
	if p.mu.damaged != nil {
		p.acceptedLocked(f)
		return nil
	}
	if err := p.numbered(f, known.len()); err != nil {
		return err
	}
	if len(f.Defs) > 0 {
		known.intern(f.Defs, nil)
	}
	p.takeLocked(f, brick.Wait{}, time.Now())
	return nil
}

// takeLocked makes a frame that is in the log part of the heads.
// applyMu is held from the frame's place in the log to its place in the heads, so that heads have frames in the order of the log.
func (p *Partition) takeLocked(f *frame.Frame, wait brick.Wait, now time.Time) {
	p.mu.wait = wait
	switch f.Kind {
	case frame.Delete:
		p.deleteLocked(f, now)
	case frame.Freeze:
		p.freezeLocked(f, now)
	default:
		p.applyLocked(f, now)
	}
}

// defined reports whether every row of f is of one of the first n series.
func defined(f *frame.Frame, n int) bool {
	return !slices.ContainsFunc(f.IDs, func(id point.DenseID) bool { return int(id) >= n }) &&
		!slices.ContainsFunc(f.Hists, func(r frame.HistRow) bool { return int(r.ID) >= n }) &&
		!slices.ContainsFunc(f.Exemplars, func(r frame.ExemplarRow) bool { return int(r.ID) >= n })
}

// heldRowsMax bounds the rows that are applied in one hold of mu: about 80 µs. A frame of more is applied without it: the head has a lock of its own, for 2,048 rows at a time.
const heldRowsMax = 4096

// applyLocked puts a frame's rows into the active head. It releases mu meanwhile if they are many; applyMu is held.
//
//	mu       ─log─┐                            ┌─ accepted ─
//	rows          └─ 2,048 ─ 2,048 ─ … ─ rest ─┘
//	View     sees the frames before: it ends at upTo, and this one ranks above, or it waits for the end
func (p *Partition) applyLocked(f *frame.Frame, now time.Time) {
	h := p.mu.active.head
	if len(f.IDs)+len(f.Hists)+len(f.Exemplars) <= heldRowsMax {
		p.addRows(h, f)
	} else {
		p.mu.mixed = f.Stamp <= p.mu.upTo // of another server; one that came directly ranks above all
		p.unlocked(func() { p.addRows(h, f) })
		p.mu.mixed = false
	}
	if p.mu.frames == 0 {
		p.mu.born = now
	}
	p.mu.frames++
	if f.Samples() > 0 {
		p.mu.upTo = max(p.mu.upTo, f.Stamp)
	}
	if p.mu.lastWrite.Before(now) { // else a late frame was logged meanwhile
		p.mu.lastWrite = now
	}
	p.acceptedLocked(f)
}

// unlocked calls f without mu, which its caller holds, beside applyMu.
func (p *Partition) unlocked(f func()) {
	p.mu.Unlock()
	defer p.mu.Lock()
	f()
}

// addRows adds a frame's rows to a head. applyMu is held, so that nothing freezes or releases it.
func (p *Partition) addRows(h *head.Head, f *frame.Frame) {
	before := h.Bytes()
	h.Append(f.Stamp, f.IDs, f.Times, f.Values)
	for _, r := range f.Hists {
		// The frame's memory is used again by the caller: a histogram that stays is copied.
		h.AppendHist(f.Stamp, r.ID, r.Time, bytes.Clone(r.H))
	}
	for _, e := range f.Exemplars {
		if h.AppendExemplar(e.ID, head.Exemplar{Time: e.Time, Value: e.Value, Labels: e.Labels}) {
			p.deps.Metrics.evictedExemplars.Inc()
		}
	}
	p.deps.HeadBytes.Add(int64(h.Bytes() - before))
}

// newActiveLocked begins a head. applyMu is held.
func (p *Partition) newActiveLocked() {
	p.mu.active, p.mu.upTo, p.mu.frames, p.mu.ends, p.mu.deletions = p.newHeadRef(), 0, 0, nil, nil
}

// acceptedLocked notes the newest frame.
func (p *Partition) acceptedLocked(f *frame.Frame) {
	s := f.Serial
	p.appliedLocked(s)
	if p.mu.frames == 1 {
		p.mu.first = s
	}
	p.mu.ranks.Observe(f.Stamp)
	if n := len(p.mu.ends); n > 0 && p.mu.ends[n-1].Epoch == s.Epoch {
		p.mu.ends[n-1].Seq = s.Seq
	} else {
		p.mu.ends = append(p.mu.ends, point.EpochEnd(s))
		p.mu.held = max(p.mu.held, s.Epoch)
	}
}

// Shape returns the input of the flush policy.
func (p *Partition) Shape() HeadShape {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.mu.active.head
	return HeadShape{
		Frames: p.mu.frames, Bytes: int64(h.Bytes()), Series: h.Series(), Rows: h.Rows(), Copied: p.mu.chain != nil, Born: p.mu.born, LastWrite: p.mu.lastWrite,
		Stuck: len(p.mu.frozen) > 0 && !p.mu.flushing, RetryAt: p.mu.flush.until, Follows: p.mu.follows,
	}
}

// Unflushed returns an error with the cause of the last failed flush and the time since when none succeeded; nil: the last one did, or
// this placement has followed another since, which flushes. The rows are in the log, which keeps all its files from the first of these
// rows on. So does a placement that could not carry out a deletion, and one that follows tries that again, too.
func (p *Partition) Unflushed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := &p.mu.flush
	if b.failures == 0 {
		return nil
	}
	return fault.Annotate(b.err, "%d flushes failed since %s; its rows are safe in the log and the next try is at %s", b.failures,
		b.since.UTC().Format(time.RFC3339), b.until.UTC().Format(time.RFC3339))
}

// HeadRows counts the rows that are in no segment yet.
func (p *Partition) HeadRows() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.mu.active.head.Rows() + p.mu.late.rows
	for _, fr := range p.mu.frozen {
		n += fr.head.head.Rows()
	}
	return n
}

// HeadBytes is the memory that a flush would release.
func (p *Partition) HeadBytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.frozen) == 0 && p.mu.frames == 0 {
		return 0
	}
	n := p.mu.active.head.Bytes()
	for _, fr := range p.mu.frozen {
		n += fr.head.head.Bytes()
	}
	return int64(n)
}

// Flushed is the last frame with its rows in segments.
func (p *Partition) Flushed() point.Serial {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.state.Flushed
}

// Segments lists the segments, oldest first.
func (p *Partition) Segments() []segment.Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.damaged != nil { // as before the damage, and after a restore
		infos := make([]segment.Info, len(p.mu.state.Segments))
		for i, g := range p.mu.state.Segments {
			infos[i] = g.Info
		}
		return infos
	}
	infos := make([]segment.Info, len(p.mu.segments))
	for i, g := range p.mu.segments {
		infos[i] = g.info
	}
	return infos
}

// Maintain flushes the head if the policy demands it, or for the reason why, if given and there are rows to flush. After a failure
// it waits for the retry time first, and while the list of segments is being changed it leaves the flush to the next call. A deletion that is owed
// comes before all.
func (p *Partition) Maintain(ctx context.Context, now time.Time, why Reason) error {
	p.tidyAhead()
	if err := p.payDeletions(now); err != nil {
		return err
	}
	if err := p.catchUpDue(); err != nil {
		return err
	}
	shape := p.Shape()
	shape.Passed = p.ident.narrow() && now.UnixNano() >= p.ident.TimeHi
	reason := p.settings.FlushDue(now, shape, p.compacting.Load())
	if reason == NotDue && why != NotDue && shape.flushable(now) {
		reason = why
	}
	if reason == NotDue {
		if why == ByLog && !shape.Follows {
			p.releaseLog(ByLog) // what a compaction keeps for followers
		}
		return nil
	}
	// A flush may wait for a copy that is away, and a deletion, a warming or the end of a compaction hold the lock while they change the list. The next round is soon, and this one has other
	// partitions to flush.
	if !p.flushMu.TryLock() {
		return nil
	}
	defer p.flushMu.Unlock()
	return p.flushOrdered(ctx, reason)
}

// gone is the error of a partition that was closed or dropped: the caller should look up where it is now.
func (p *Partition) gone() error {
	return fault.Errorf(fault.Stale, "partition %s/%d is no longer here", p.ident.Table, p.ident.Partition)
}

// Close refuses further calls, waits for running maintenance, and closes the segments. Rows in the head are in the log. Views stay valid.
func (p *Partition) Close() {
	p.close(false)
}

// CloseEmpty is Close where no row was ever accepted; else it does nothing, and ok is false.
func (p *Partition) CloseEmpty() (ok bool) { return p.close(true) }

func (p *Partition) close(ifEmpty bool) (ok bool) {
	if !p.refuse(ifEmpty) {
		return false
	}
	p.compactMu.Lock()
	defer p.compactMu.Unlock()
	p.flushMu.Lock()
	defer p.flushMu.Unlock()
	old := p.letGo()
	old.release()
	return true
}

// refuse makes all calls fail from now on; ifEmpty: only where no row was ever accepted. A frame that is being applied was accepted.
func (p *Partition) refuse(ifEmpty bool) (ok bool) {
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if ifEmpty && !p.emptyLocked() {
		return false
	}
	p.mu.dropped = true // a running compaction sees it and ends
	return true
}

// headsLocked lists all heads, oldest first.
func (p *Partition) headsLocked() []*headRef {
	heads := make([]*headRef, 0, len(p.mu.frozen)+1)
	for _, fr := range p.mu.frozen {
		heads = append(heads, fr.head)
	}
	return append(heads, p.mu.active)
}

// letGo empties a closed partition.
func (p *Partition) letGo() *ids {
	p.applyMu.Lock()
	defer p.applyMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeSegments()
	for _, h := range p.headsLocked() {
		p.deps.HeadBytes.Add(-int64(h.head.Bytes()))
		h.release()
	}
	p.mu.frozen = nil
	p.newActiveLocked()
	p.mu.applied, p.mu.late = p.mu.last, late{}
	p.mu.warm = false
	return p.ids.Swap(newIDs(p.deps.Index))
}

// Drop removes the placement and all its data: first the catalogue entry, which it replaces by a note that log and files are to be
// removed; then the log's records. The files follow piece by piece (brick.RemoveSome), and then the note (I7 backwards). After an error it can be
// called again; the next start goes on by the note.
func (p *Partition) Drop() error {
	p.Close()
	id := p.ident.Placement
	batch := p.deps.Brick.NewBatch()
	batch.Delete((&State{Identity: p.ident}).key())
	batch.Set(DropKey(id), nil)
	if err := batch.Commit(true); err != nil {
		return fault.Annotate(err, "drop partition %s/%d", p.ident.Table, p.ident.Partition)
	}
	if err := p.deps.Brick.Drop(id); err != nil {
		return err
	}
	p.deps.Brick.RemoveLater(brick.Dropped{Placement: id, Read: p.isRead, Gone: func() error { return forgetDrop(p.deps.Brick, id) }})
	p.log.Info("partition dropped")
	return nil
}

// isRead reports whether a view has a segment of it.
func (p *Partition) isRead() bool { return p.read.Load() > 0 }

// TimeBounds returns the lowest and highest time of all rows; ok is false when there are none.
func (p *Partition) TimeBounds() (lo, hi point.Nanos, ok bool) {
	v, st := p.viewHeads()
	if v == nil {
		return 0, 0, false
	}
	defer v.Close()
	lo, hi = math.MaxInt64, math.MinInt64
	for _, g := range st.Segments {
		if g.Rows > 0 {
			lo, hi = min(lo, g.TimeLo), max(hi, g.TimeHi)
		}
	}
	for _, h := range v.heads {
		if l, u, ok := h.head.TimeBounds(); ok {
			lo, hi = min(lo, l), max(hi, u)
		}
	}
	return lo, hi, lo <= hi
}
