package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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
	// Map returns the newest map of a table. Errors: NotFound (it was dropped).
	Map(ctx context.Context, table string) (*topology.Map, error)
	// Stagers lists the servers that have had staged rows of a table since before the call.
	Stagers(ctx context.Context, table string) ([]topology.ServerID, error)
	// Leader returns the server to ask for a partition; each try may name another. Errors: Unavailable.
	Leader(table string, p *topology.Partition, try int) (topology.ServerID, error)
	// Unled reports that no server ever led a partition before the backup began, so that it has no rows.
	Unled(table string, id point.PartitionID) bool
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
	w.mu.expected = map[string]map[point.PartitionID]int64{}
	for _, name := range names {
		w.expect(ctx, name)
	}
	m := &backup.Manifest{}
	for _, name := range names {
		t, err := w.table(ctx, name, m)
		if fault.Is(err, fault.NotFound) {
			continue // dropped meanwhile
		}
		if err != nil {
			return nil, fault.Annotate(err, "table %q", name)
		}
		m.Tables = append(m.Tables, *t)
	}
	m.Missing = w.mu.missing
	return m, nil
}

// expect announces the sizes of a table's partitions to the progress. Those of a server that does not answer come later.
func (w *writer) expect(ctx context.Context, table string) {
	sizes := map[point.PartitionID]int64{}
	w.mu.expected[table] = sizes
	m, err := w.src.Map(ctx, table)
	if err != nil {
		return
	}
	asked := map[topology.ServerID]bool{}
	for p := range m.All() {
		for _, pl := range p.Placements {
			if asked[pl.Server] {
				continue
			}
			asked[pl.Server] = true
			s, ok := w.src.Server(pl.Server)
			if !ok {
				continue
			}
			short, cancel := context.WithTimeout(ctx, 5*time.Second)
			if st, err := s.Stats(short, table, 0); err == nil {
				for i := range st.ByPartition {
					sizes[st.ByPartition[i].ID] = max(sizes[st.ByPartition[i].ID], int64(st.ByPartition[i].Bytes))
				}
			}
			cancel()
		}
	}
	for _, n := range sizes {
		w.to.Expect(0, n)
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

// table backs up a table, and adds its entries and segments to the manifest.
func (w *writer) table(ctx context.Context, name string, to *backup.Manifest) (*backup.Table, error) {
	t := &backup.Table{Name: name}
	var err error
	if t.Staged, err = w.staged(ctx, name); err != nil {
		return nil, err
	}
	if t.Families, err = w.src.Families(ctx, name); err != nil {
		w.lacks("descriptions of metrics of table %q: %v", name, err)
	}
	pass := &tablePass{w: w, done: map[point.PartitionID]*part{}}
	for range passesMax {
		m, err := w.src.Map(ctx, name)
		if err != nil {
			return nil, err
		}
		pass.follow(m)
		if whole, err := pass.run(ctx); err != nil {
			return nil, err
		} else if whole {
			t.Map = m.Encode()
			for _, id := range slices.Sorted(maps.Keys(pass.done)) {
				p := pass.done[id]
				t.Partitions = append(t.Partitions, p.Part)
				to.Entries, to.Segments = append(to.Entries, p.entries...), append(to.Segments, p.segments...)
				if p.why != "" {
					w.lacks("partition %s/%d: %s", name, id, p.why)
				}
			}
			return t, nil
		}
	}
	return nil, fault.Errorf(fault.Unavailable, "partitions were replaced by others %d times while they were backed up", passesMax)
}

// part is a partition that is backed up.
type part struct {
	backup.Part
	at       *topology.Partition
	entries  []backup.Entry
	segments []backup.Segment
	why      string // it is missing
}

// tablePass goes over the partitions of one map.
type tablePass struct {
	w    *writer
	m    *topology.Map
	done map[point.PartitionID]*part
}

// follow goes on with a newer map. Rows of a partition that is gone are in those that share its keys: they are backed up again.
func (t *tablePass) follow(m *topology.Map) {
	if t.m != nil {
		for old := range t.m.All() {
			if _, there := m.ByID(old.ID); there {
				continue
			}
			delete(t.done, old.ID)
			for id, p := range t.done {
				if p.at.TimeLo < old.TimeHi && old.TimeLo < p.at.TimeHi && p.at.SharesRing(old) {
					delete(t.done, id)
				}
			}
		}
	}
	t.m = m
}

// errGone is that of a partition that is not in the newest map any more.
var errGone = errors.New("the partition is gone")

// run backs up the partitions that are not yet; false: some are gone from the newest map.
func (t *tablePass) run(ctx context.Context) (whole bool, err error) {
	var todo []*topology.Partition
	for p := range t.m.All() {
		if t.done[p.ID] == nil {
			todo = append(todo, p)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	var mu sync.Mutex // of whole and t.done
	whole = true
	for _, p := range todo {
		g.Go(func() error {
			got, err := t.partition(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, errGone) {
				whole = false
				return nil
			}
			if err == nil {
				got.at, t.done[p.ID] = p, got
			}
			return err
		})
	}
	err = g.Wait()
	return whole, err
}

// partition backs up one, with patience.
func (t *tablePass) partition(ctx context.Context, p *topology.Partition) (*part, error) {
	var last time.Time
	began := time.Now()
	for try := 0; ; try++ {
		if t.w.src.Unled(t.m.Table, p.ID) {
			return &part{Part: backup.Part{ID: p.ID, Taken: time.Now().UTC()}}, nil
		}
		got, err := t.snapshot(ctx, p, try)
		switch {
		case err == nil, ctx.Err() != nil:
			return got, cmp.Or(ctx.Err(), err)
		case errors.Is(err, errPlace):
			return nil, err
		}
		if now := time.Now(); now.Sub(last) > time.Second { // the map says whether it is split, merged or dropped
			last = now
			m, merr := t.w.src.Map(ctx, t.m.Table)
			if merr == nil {
				if _, there := m.ByID(p.ID); !there {
					return nil, errGone
				}
			} else if fault.Is(merr, fault.NotFound) {
				return nil, merr
			}
		}
		if time.Since(began) > t.w.set.Patience {
			return &part{Part: backup.Part{ID: p.ID}, why: err.Error()}, nil
		}
		t.w.set.Log.Debug("a partition is backed up again", "table", t.m.Table, "partition", p.ID, "error", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(tryPause):
		}
	}
}

// errPlace marks an error of the place: another try of the partition does not help.
var errPlace = errors.New("the place with backups")

// snapshot copies what a leader has.
func (t *tablePass) snapshot(ctx context.Context, p *topology.Partition, try int) (*part, error) {
	leader, err := t.w.src.Leader(t.m.Table, p, try)
	if err != nil {
		return nil, err
	}
	server, err := t.w.server(leader)
	if err != nil {
		return nil, err
	}
	taken := time.Now().UTC()
	snap, err := server.OpenSnapshot(ctx, t.m.Table, p.ID)
	if err != nil {
		return nil, err
	}
	defer snap.Close()
	out := &part{Part: backup.Part{ID: p.ID, Server: string(leader), Taken: taken}}
	t.w.expected(t.m.Table, p.ID)
	if len(snap.Entry()) == 0 {
		return out, nil
	}
	st, err := partition.DecodeState(snap.Entry())
	if err != nil {
		return nil, err
	}
	if st.Table != t.m.Table || st.Identity.Partition != p.ID {
		return nil, fault.Errorf(fault.Corrupt, "server %s answers with partition %s/%d", leader, st.Table, st.Identity.Partition)
	}
	out.Placement = st.Placement
	k, v := st.Entry()
	out.entries = []backup.Entry{{Key: k, Value: v}}
	return out, t.copy(ctx, snap, st, out)
}

// copy keeps the segments of a snapshot.
func (t *tablePass) copy(ctx context.Context, snap peer.Snapshot, st *partition.State, out *part) error {
	var bytes int64
	for _, g := range st.Segments {
		out.segments = append(out.segments, backup.Segment{Placement: st.Placement, Epoch: g.ID.Epoch, Seq: g.ID.Seq, Size: g.Size, Checksum: g.Checksum})
		bytes += g.Size
	}
	t.w.to.Expect(len(out.segments), bytes)
	for i := range out.segments {
		g := &out.segments[i]
		opened := false
		from := fmt.Sprintf("segment %d-%d of partition %s/%d on server %s", g.Epoch, g.Seq, t.m.Table, out.ID, out.Server)
		err := t.w.to.Keep(ctx, g, from, func() (io.ReadCloser, error) {
			opened = true
			f, err := snap.Open(point.SegmentID{Epoch: g.Epoch, Seq: g.Seq})
			return &sourceReader{ReadCloser: f}, err
		})
		if err == nil {
			bytes -= g.Size
			continue
		}
		t.w.to.Expect(i-len(out.segments), -bytes)
		var src *sourceError
		if opened && !errors.As(err, &src) && !backup.Damaged(err) && ctx.Err() == nil {
			return fmt.Errorf("%w: %w", errPlace, err)
		}
		return err
	}
	return nil
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
