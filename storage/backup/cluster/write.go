package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Source is the cluster that is backed up. Errors are those of the stores behind it.
type Source interface {
	// Tables lists the names of all tables there are now.
	Tables(ctx context.Context) ([]string, error)
	// Map returns the newest map of a table, and the sequence number of its first one, 0 if that is unknown: lower ones are of tables of that name that were dropped. Errors: NotFound
	// (it was dropped).
	Map(ctx context.Context, table string) (m *topology.Map, begun uint64, _ error)
	// Stagers lists the servers that have had staged rows of a table since before the call.
	Stagers(ctx context.Context, table string) ([]topology.ServerID, error)
	// Leader returns the server to ask for a partition; each try may name another. Errors: Unavailable.
	Leader(table string, p *topology.Partition, try int) (topology.ServerID, error)
	// Unled reports that no server ever led a partition before CaughtUp was called last, so that it has no rows. That holds for a partition that was in the map before that
	// call, and is in the map that is read after the answer: the records of the leaders of one that was split, merged or compacted are deleted.
	Unled(table string, id point.PartitionID) bool
	// CaughtUp returns when Unled knows of all leaders that there were when it was called. Errors: Unavailable.
	CaughtUp(ctx context.Context) error
	Server(id topology.ServerID) (peer.Storage, bool)
	// Families describes the metrics of a table.
	Families(ctx context.Context, table string) ([]point.MetadataRow, error)
}

// Settings of a backup.
type Settings struct {
	backup.Settings
	// Holder names the writer, for the lock of the place.
	Holder string
	// Patience is how long to wait for a partition without a leader, or a server that may have staged rows, before it is named as missing. Default 1 min.
	Patience time.Duration
	Log      *slog.Logger
}

const (
	// partsAtOnce is how many partitions are copied at a time: each has one snapshot open.
	partsAtOnce = 4
	tryPause    = 200 * time.Millisecond
	// passesMax bounds how often a table is looked at anew because partitions of it were gone.
	passesMax = 100
)

// Write makes a backup of a cluster. Errors: Unavailable (the place, or the coordination store), Canceled; then there is no new backup, and the next try copies
// only the segments that are not there yet.
func Write(ctx context.Context, src Source, to backup.Place, set Settings) (_ backup.Result, err error) {
	set.Patience = cmp.Or(set.Patience, time.Minute)
	session, err := backup.Begin(ctx, to, set.Holder, time.Now(), set.Settings)
	if err != nil {
		return backup.Result{}, err
	}
	w := &writer{src: src, to: session, set: set}
	m, err := w.all(ctx)
	if err != nil {
		return backup.Result{}, errors.Join(err, session.Abort())
	}
	return session.End(ctx, m)
}

type writer struct {
	src Source
	to  *backup.Session
	set Settings

	mu struct {
		sync.Mutex
		missing  []string
		expected map[string]map[point.PartitionID]int64 // bytes that were announced to the progress, by table
	}

	// before has the sequence number of each table's map before staged rows were read, 0 for a dropped table. Tables without a readable map are missing. Owned by all.
	before map[string]uint64
}

func (w *writer) lacks(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	w.set.Log.Warn("a backup lacks something", "what", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.missing = append(w.mu.missing, text)
}

// all backs up every table.
func (w *writer) all(ctx context.Context) (*backup.Manifest, error) {
	names, err := w.src.Tables(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	w.mu.expected, w.before = map[string]map[point.PartitionID]int64{}, map[string]uint64{}
	w.expect(ctx, names)
	staged, err := w.staged(ctx, names)
	if err != nil {
		return nil, err
	}
	passes, err := w.begin(ctx, names)
	if err != nil {
		return nil, err
	}
	if err := w.partitions(ctx, passes); err != nil {
		return nil, err
	}
	m := &backup.Manifest{}
	for _, t := range passes {
		if !t.dropped {
			table := t.enter(m, t.stagedOf(staged))
			if err := w.set.Hold(table.Bytes()); err != nil {
				return nil, err
			}
			m.Tables = append(m.Tables, table)
		}
	}
	m.Missing = w.mu.missing
	return m, nil
}

// begin reads the maps of all tables, and passes over the partitions that are empty. It comes after the staged rows: those that left their staging meanwhile may be in
// partitions that had no leader before.
func (w *writer) begin(ctx context.Context, names []string) (passes []*tablePass, err error) {
	for _, name := range names {
		m, begun, err := w.src.Map(ctx, name)
		if fault.Is(err, fault.NotFound) {
			continue // dropped meanwhile
		}
		if err != nil {
			return nil, fault.Annotate(err, "table %q", name)
		}
		t := &tablePass{w: w, done: map[point.PartitionID]*part{}}
		t.follow(m, begun)
		if t.families, err = w.src.Families(ctx, name); err != nil {
			w.lacks("descriptions of metrics of table %q: %v", name, err)
		}
		passes = append(passes, t)
	}
	return passes, w.passEmpty(ctx, passes)
}

// passEmpty passes over the partitions that no server ever led. A refresh of each table must follow: it withdraws those whose leaders' records were deleted before the answer.
func (w *writer) passEmpty(ctx context.Context, passes []*tablePass) error {
	if err := w.caughtUp(ctx); err != nil {
		return err
	}
	for _, t := range passes {
		for p := range t.m.All() {
			if t.done[p.ID] == nil && w.src.Unled(t.m.Table, p.ID) {
				t.done[p.ID] = &part{Part: backup.Part{ID: p.ID, Taken: time.Now().UTC()}, at: p}
			}
		}
	}
	return nil
}

// caughtUp returns when the source knows which partitions had a leader before the call.
func (w *writer) caughtUp(ctx context.Context) error {
	return w.patiently(ctx, func() error { return w.src.CaughtUp(ctx) })
}

// patiently tries until it succeeds or the patience is over: a backup of hours does not end because a server was away for a moment.
func (w *writer) patiently(ctx context.Context, try func() error) error {
	for began := time.Now(); ; {
		err := try()
		if err == nil || ctx.Err() != nil || time.Since(began) > w.set.Patience {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// pause waits until things are tried again.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(tryPause):
		return nil
	}
}

// expectMax bounds how long a server is asked for the sizes of its partitions of a table.
const expectMax = 5 * time.Second

// expect notes the map of each table, and announces the sizes of all tables' partitions to the progress. Those of a server that does not answer come later; it is asked once.
func (w *writer) expect(ctx context.Context, tables []string) {
	silent := map[topology.ServerID]bool{}
	for _, table := range tables {
		sizes := map[point.PartitionID]int64{}
		w.mu.expected[table] = sizes
		m, _, err := w.src.Map(ctx, table)
		if fault.Is(err, fault.NotFound) {
			w.before[table] = 0
		}
		if err != nil {
			continue
		}
		w.before[table] = m.Seq
		asked := map[topology.ServerID]bool{}
		for p := range m.All() {
			for _, pl := range p.Placements {
				if asked[pl.Server] || silent[pl.Server] {
					continue
				}
				asked[pl.Server] = true
				s, ok := w.src.Server(pl.Server)
				if !ok {
					continue
				}
				short, cancel := context.WithTimeout(ctx, expectMax)
				st, err := s.Stats(short, table, 0)
				cancel()
				if err != nil {
					silent[pl.Server] = true
					continue
				}
				for i := range st.ByPartition {
					sizes[st.ByPartition[i].ID] = max(sizes[st.ByPartition[i].ID], int64(st.ByPartition[i].Bytes))
				}
			}
		}
		for _, n := range sizes {
			w.to.Expect(0, n)
		}
	}
}

// expected takes back the announced size of a partition, since its snapshot says more.
func (w *writer) expected(table string, id point.PartitionID) {
	w.mu.Lock()
	n := w.mu.expected[table][id]
	delete(w.mu.expected[table], id)
	w.mu.Unlock()
	w.to.Expect(0, -n)
}

// part is a partition that is backed up.
type part struct {
	backup.Part
	at       *topology.Partition
	entries  []backup.Entry
	segments []backup.Segment
	held     int64  // bytes that are booked for entries and segments
	why      string // it is missing
}

// tablePass goes over the partitions of one map.
type tablePass struct {
	w        *writer
	m        *topology.Map
	begun    uint64 // the sequence number of the table's first map; 0: unknown
	families []point.MetadataRow
	done     map[point.PartitionID]*part
	followed int       // newer maps
	looked   time.Time // when the newest map was read
	dropped  bool      // the table
}

// enter adds the table to the manifest, with its entries and segments.
func (t *tablePass) enter(to *backup.Manifest, staged []uint64) backup.Table {
	out := backup.Table{Name: t.m.Table, Map: t.m.Encode(), Families: t.families, Staged: staged}
	for _, id := range slices.Sorted(maps.Keys(t.done)) {
		p := t.done[id]
		out.Partitions = append(out.Partitions, p.Part)
		to.Entries, to.Segments = append(to.Entries, p.entries...), append(to.Segments, p.segments...)
		if p.why != "" {
			t.w.lacks("partition %s/%d: %s", t.m.Table, id, p.why)
		}
	}
	return out
}

// stagedOf returns the table's files of those with staged rows; none if it was made after these were read or shortly before: they are rows of a table of its name that was dropped,
// or were acked after the backup began. If the table was dropped after its last map was read, the backup has it as it was, staged rows too.
func (t *tablePass) stagedOf(staged map[string][]uint64) []uint64 {
	if before, known := t.w.before[t.m.Table]; known && t.begun > before {
		return nil
	}
	return staged[t.m.Table]
}

// follow goes on with a newer map. Rows of a partition that is gone are in those that share its keys: they are backed up again.
func (t *tablePass) follow(m *topology.Map, begun uint64) {
	if t.m != nil {
		for old := range t.m.All() {
			if _, there := m.ByID(old.ID); there {
				continue
			}
			t.forget(old.ID)
			for id, p := range t.done {
				if p.at.TimeLo < old.TimeHi && old.TimeLo < p.at.TimeHi && p.at.SharesRing(old) {
					t.forget(id)
				}
			}
		}
	}
	t.m, t.begun = m, begun
}

// forget drops a partition from the backup.
func (t *tablePass) forget(id point.PartitionID) {
	if p := t.done[id]; p != nil {
		_ = t.w.set.Hold(-p.held) // giving back never fails
		delete(t.done, id)
	}
}

// drop leaves out the table, which was dropped.
func (t *tablePass) drop() {
	t.dropped = true
	for id := range t.done {
		t.forget(id)
	}
}

// refresh goes on with the newest map.
func (t *tablePass) refresh(ctx context.Context) error {
	var m *topology.Map
	var begun uint64
	err := t.w.patiently(ctx, func() (err error) {
		m, begun, err = t.w.src.Map(ctx, t.m.Table)
		if fault.Is(err, fault.NotFound) {
			t.drop()
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return fault.Annotate(err, "table %q", t.m.Table)
	case !t.dropped:
		t.follow(m, begun)
	}
	return nil
}

// turn is a partition that is to be backed up.
type turn struct {
	of    *tablePass
	p     *topology.Partition
	try   int
	since time.Time // of the second try
	why   error     // the last try failed
}

// todo lists the partitions that are not backed up yet. Those that failed go on waiting.
func (t *tablePass) todo(failed ...*turn) (all []*turn) {
	waiting := map[point.PartitionID]*turn{}
	for _, x := range failed {
		waiting[x.p.ID] = x
	}
	for p := range t.m.All() {
		if t.done[p.ID] != nil {
			continue
		}
		x := cmp.Or(waiting[p.ID], &turn{of: t})
		x.p = p
		all = append(all, x)
	}
	return all
}

// partitions backs up the partitions of all tables. Those that fail are tried again together when all others are there: however many a server led that does not
// answer, they wait one patience.
func (w *writer) partitions(ctx context.Context, passes []*tablePass) error {
	var late error
	failed, err := w.round(ctx, func(yield func(*turn) bool) {
		for _, t := range passes {
			if late = t.refresh(ctx); late != nil { // its turn may come hours after that of the first table
				return
			}
			if t.dropped {
				continue
			}
			for _, x := range t.todo() {
				if !yield(x) {
					return
				}
			}
		}
	})
	err = cmp.Or(err, late)
	for err == nil {
		var todo []*turn
		if todo, err = w.again(ctx, failed); err != nil || len(todo) == 0 {
			break
		}
		if err = pause(ctx); err == nil {
			failed, err = w.round(ctx, slices.Values(todo))
		}
	}
	return err
}

// round tries each partition once, and returns those that failed. An error of the place ends it.
func (w *writer) round(ctx context.Context, todo iter.Seq[*turn]) (failed []*turn, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	var mu sync.Mutex // of failed and all done
	for x := range todo {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			if x.try == 1 {
				x.since = time.Now()
			}
			got, err := x.of.snapshot(gctx, x.p, x.try)
			switch {
			case gctx.Err() != nil:
				return cmp.Or(err, gctx.Err())
			case errors.Is(err, errPlace), errors.Is(err, errMemory):
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if x.try++; err != nil {
				w.set.Log.Debug("a partition is backed up again", "table", x.of.m.Table, "partition", x.p.ID, "error", err)
				x.why = err
				failed = append(failed, x)
				return nil
			}
			got.at, x.of.done[x.p.ID] = x.p, got
			return nil
		})
	}
	err = g.Wait()
	return failed, cmp.Or(err, ctx.Err())
}

// again returns the partitions to try again. The newest map of their table shows whether they were split, merged or dropped; those that failed for the whole patience
// are missing.
func (w *writer) again(ctx context.Context, failed []*turn) (todo []*turn, err error) {
	byPass := map[*tablePass][]*turn{}
	for _, x := range failed {
		byPass[x.of] = append(byPass[x.of], x)
	}
	var changed []*tablePass
	for t, failed := range byPass {
		if time.Since(t.looked) < time.Second { // not more often, as this reads the coordination store
			todo = append(todo, failed...)
			continue
		}
		t.looked = time.Now()
		m, begun, err := w.src.Map(ctx, t.m.Table)
		if fault.Is(err, fault.NotFound) {
			t.drop()
			continue
		}
		if err == nil && slices.ContainsFunc(failed, func(x *turn) bool {
			_, there := m.ByID(x.p.ID)
			return !there || w.src.Unled(m.Table, x.p.ID) // it was made after the tables before were begun
		}) {
			if t.followed++; t.followed > passesMax {
				return nil, fault.Errorf(fault.Unavailable, "table %q: partitions were replaced by others %d times while they were backed up", t.m.Table, passesMax)
			}
			t.follow(m, begun)
			changed = append(changed, t)
			continue
		}
		for _, x := range failed {
			if x.try > 1 && time.Since(x.since) > w.set.Patience {
				t.done[x.p.ID] = &part{Part: backup.Part{ID: x.p.ID}, at: x.p, why: x.why.Error()}
			} else {
				todo = append(todo, x)
			}
		}
	}
	if len(changed) == 0 {
		return todo, nil
	}
	if err := w.passEmpty(ctx, changed); err != nil {
		return nil, err
	}
	for _, t := range changed {
		if err := t.refresh(ctx); err != nil {
			return nil, err
		}
		if !t.dropped {
			todo = append(todo, t.todo(byPass[t]...)...)
		}
	}
	return todo, nil
}

// errPlace marks an error of the place: another try of the partition does not help.
var errPlace = errors.New("the place with backups")

// errMemory marks that there is no memory for what the backup lists.
var errMemory = errors.New("the backup is not made")

// snapshot copies what a leader has. It waits for segments that are copied for other partitions after the snapshot is closed: a server closes one that is idle, and the copy of a
// large segment may last an hour. If that copy fails, which says nothing about the server here, it takes another snapshot at once: by then the patience may be over.
func (t *tablePass) snapshot(ctx context.Context, p *topology.Partition, try int) (*part, error) {
	for {
		out, joined, err := t.read(ctx, p, try)
		if err != nil {
			return nil, err
		}
		if err = t.await(ctx, joined); err == nil {
			return out, nil
		}
		if err := errors.Join(t.w.set.Hold(-out.held), ctx.Err()); err != nil {
			return nil, err
		}
		t.w.set.Log.Debug("a segment could not be copied for another partition; it is copied for this one", "table", t.m.Table, "partition", p.ID, "error", err)
	}
}

// await waits for segments that are being copied for other partitions. Each error is that of a partition that then waits for its next try, so there are no more than partitions.
func (t *tablePass) await(ctx context.Context, joined []joint) error {
	for i := range joined {
		err := joined[i].wait(ctx)
		if err == nil {
			continue
		}
		for _, j := range joined[i:] {
			t.w.to.Expect(-1, -j.size)
		}
		return err
	}
	return nil
}

// joint is a segment that is being copied for another partition.
type joint struct {
	size int64
	wait func(context.Context) error
}

// read opens the snapshot of a leader and copies its segments, but for those that are being copied for others.
func (t *tablePass) read(ctx context.Context, p *topology.Partition, try int) (*part, []joint, error) {
	leader, err := t.w.src.Leader(t.m.Table, p, try)
	if err != nil {
		return nil, nil, err
	}
	server, err := t.w.server(leader)
	if err != nil {
		return nil, nil, err
	}
	taken := time.Now().UTC()
	snap, err := server.OpenSnapshot(ctx, t.m.Table, p.ID)
	if err != nil {
		return nil, nil, err
	}
	defer snap.Close()
	out := &part{Part: backup.Part{ID: p.ID, Server: string(leader), Taken: taken}}
	t.w.expected(t.m.Table, p.ID)
	if len(snap.Entry()) == 0 {
		return out, nil, nil
	}
	st, err := partition.DecodeState(snap.Entry())
	if err != nil {
		return nil, nil, err
	}
	if st.Table != t.m.Table || st.Identity.Partition != p.ID {
		return nil, nil, fault.Errorf(fault.Corrupt, "server %s answers with partition %s/%d", leader, st.Table, st.Identity.Partition)
	}
	out.Placement = st.Placement
	k, v := st.Entry()
	out.entries = []backup.Entry{{Key: k, Value: v}}
	out.held = out.entries[0].Bytes() + backup.SegmentsBytes(len(st.Segments))
	if err := t.w.set.Hold(out.held); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errMemory, err)
	}
	joined, err := t.copy(ctx, snap, st, out)
	if err != nil {
		return nil, nil, errors.Join(err, t.w.set.Hold(-out.held)) // it is tried again, or missing
	}
	return out, joined, nil
}

// copy keeps the segments of a snapshot, and returns those that are being copied for other partitions.
func (t *tablePass) copy(ctx context.Context, snap peer.Snapshot, st *partition.State, out *part) (joined []joint, _ error) {
	var bytes int64
	for _, g := range st.Segments {
		out.segments = append(out.segments, backup.Segment{Placement: st.Placement, Epoch: g.ID.Epoch, Seq: g.ID.Seq, Size: g.Size, Checksum: g.Checksum})
		bytes += g.Size
	}
	left := len(out.segments)
	t.w.to.Expect(left, bytes)
	for i := range out.segments {
		g := &out.segments[i]
		opened := false
		from := fmt.Sprintf("segment %d-%d of partition %s/%d on server %s", g.Epoch, g.Seq, t.m.Table, out.ID, out.Server)
		wait, err := t.w.to.Keep(ctx, g, from, func() (io.ReadCloser, error) {
			opened = true
			f, err := snap.Open(point.SegmentID{Epoch: g.Epoch, Seq: g.Seq})
			if err != nil {
				return nil, &sourceError{err}
			}
			return &sourceReader{ReadCloser: f}, nil
		})
		switch {
		case wait != nil:
			joined = append(joined, joint{g.Size, wait})
			continue
		case err == nil:
			left, bytes = left-1, bytes-g.Size
			continue
		}
		t.w.to.Expect(-left, -bytes)
		var src *sourceError
		if opened && !errors.As(err, &src) && !backup.Damaged(err) && ctx.Err() == nil {
			return nil, fmt.Errorf("%w: %w", errPlace, err)
		}
		return nil, err
	}
	return joined, nil
}

// sourceReader marks the errors of the server that sends, which another one may not have.
type sourceReader struct{ io.ReadCloser }

type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// Read implements io.Reader.
func (r *sourceReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = &sourceError{err}
	}
	return n, err
}

// server returns a server that makes snapshots.
func (w *writer) server(id topology.ServerID) (peer.Snapshots, error) {
	s, ok := w.src.Server(id)
	if !ok {
		return nil, fault.Errorf(fault.Unavailable, "server %s is not known here", id)
	}
	snaps, ok := s.(peer.Snapshots)
	if !ok {
		return nil, fault.Errorf(fault.Invalid, "server %s makes no snapshots", id)
	}
	return snaps, nil
}
