package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/deliver"
)

// Target is the cluster, or the process, that gets the rows of a backup.
type Target interface {
	deliver.Ways
	// Get returns the map of a table at hand; Refresh the newest one, NotFound: there is no such table.
	Get(table string) (*topology.Map, bool)
	Refresh(ctx context.Context, table string, minSeq uint64) (*topology.Map, error)
	// Create makes a table; one that is there is returned as it is. Change changes its map.
	Create(ctx context.Context, table string, c topology.Config) (*topology.Map, error)
	Change(ctx context.Context, table string, plan func(*topology.Map) ([]topology.Op, error)) (*topology.Map, error)
	// Fit returns the settings of a table as this target can have them.
	Fit(c topology.Config) topology.Config
	// Place chooses servers for a new partition.
	Place(table string, id point.PartitionID) []topology.ServerID
	// Describe keeps descriptions of metrics.
	Describe(ctx context.Context, table string, rows []point.MetadataRow) error
}

// RestoreSettings of a restore.
type RestoreSettings struct {
	backup.Settings
	// Merge adds the rows to tables that have rows already. Of two rows of one time the one that was written later stays.
	Merge bool
	// Scratch is a directory of the restore alone, on FS, with room for the largest partition twice. It is emptied.
	FS      vfs.FS
	Scratch string
	// Patience is how long a leader may be away. Default 5 min.
	Patience time.Duration
	Log      *slog.Logger
}

// Restored is the result of a restore.
type Restored struct {
	backup.Result
	Tables  int
	Rows    int64 // that were sent
	Expired int64 // left out: they are older than their table keeps
}

// restoresAtOnce is how many partitions are restored at a time.
const restoresAtOnce = 2

// Restore gives the rows of a cluster's backup, the newest where name is "", to a target. Parts that the backup lacks, or of which files are damaged, are in
// the result's Missing; all else is restored. Running it again, with Merge, changes nothing that is there already. Errors: NotFound, Invalid (the target has rows
// of a table, and Merge is not set; it is a backup of one store), Corrupt (the backup's own file), Unavailable, Canceled.
func Restore(ctx context.Context, at backup.Place, name string, to Target, set RestoreSettings) (out Restored, err error) {
	name, m, err := backup.Load(ctx, at, name, set.Settings)
	if err != nil {
		return out, err
	}
	if m.Tables == nil {
		return out, fault.Errorf(fault.Invalid, "backup %q is of one store: `spillway restore --data-dir` makes a store of it", name)
	}
	set.Patience = cmp.Or(set.Patience, 5*time.Minute)
	r := &restorer{at: at, name: name, m: m, to: to, set: set, out: deliver.New(to)}
	defer func() { err = errors.Join(err, r.out.Close()) }()
	r.mu.Restored = Restored{Result: backup.Result{Name: name, Missing: slices.Clone(m.Missing), Progress: backup.Progress{SegmentsAll: len(m.Segments), BytesAll: m.Bytes()}}}
	maps, err := r.maps(ctx)
	if err != nil {
		return out, err
	}
	if err := set.FS.RemoveAll(set.Scratch); err != nil {
		return out, fault.Wrap(err, fault.Unavailable, "empty %s", set.Scratch)
	}
	defer func() { // whatever came of it: files left here may be what filled the disk
		err = errors.Join(err, fault.Wrap(set.FS.RemoveAll(set.Scratch), fault.Unavailable, "remove %s", set.Scratch))
	}()
	for i := range m.Tables {
		if err := r.table(ctx, &m.Tables[i], maps[i]); err != nil {
			return r.mu.Restored, fault.Annotate(err, "table %q", m.Tables[i].Name)
		}
		r.mu.Tables++
	}
	return r.mu.Restored, nil
}

type restorer struct {
	at   backup.Place
	name string
	m    *backup.Manifest
	to   Target
	set  RestoreSettings
	out  *deliver.Deliverer

	mu struct {
		sync.Mutex
		Restored
	}
}

// maps decodes the maps of the backup, and checks that the target has no rows of their tables. A cluster writes its own metrics from its first second on.
func (r *restorer) maps(ctx context.Context) ([]*topology.Map, error) {
	var there []string
	out := make([]*topology.Map, len(r.m.Tables))
	for i := range r.m.Tables {
		t := &r.m.Tables[i]
		m, err := topology.Decode(t.Map)
		if err != nil {
			return nil, fault.Annotate(err, "the map of table %q in backup %s", t.Name, r.name)
		}
		if m.Table != t.Name {
			return nil, fault.Errorf(fault.Corrupt, "the map of table %q in backup %s is of table %q", t.Name, r.name, m.Table)
		}
		out[i] = m
		now, err := r.to.Refresh(ctx, t.Name, 0)
		switch {
		case fault.Is(err, fault.NotFound):
		case err != nil:
			return nil, err
		case now.Len() > 0 && t.Name != peer.OwnTable:
			there = append(there, t.Name)
		}
	}
	if len(there) > 0 && !r.set.Merge {
		return nil, fault.Errorf(fault.Invalid, "there are rows of the tables %s already; --merge adds those of the backup to them, also to go on with a restore that was interrupted", strings.Join(there, ", "))
	}
	return out, nil
}

// table restores a table: its settings, partitions, rows, and at last those that waited.
func (r *restorer) table(ctx context.Context, t *backup.Table, m *topology.Map) error {
	if err := r.make(ctx, m); err != nil {
		return err
	}
	if err := r.to.Describe(ctx, t.Name, t.Families); err != nil {
		return err
	}
	// Ranks are exact where rows of one time may be in two parts, written one right after the other.
	exact := len(t.Staged) > 0 || slices.ContainsFunc(slices.Collect(m.All()), func(p *topology.Partition) bool { return !p.Accepts() })
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(restoresAtOnce)
	for i := range t.Partitions {
		if p := &t.Partitions[i]; p.Placement != 0 {
			g.Go(func() error { return r.partition(gctx, m, p, exact) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, seq := range t.Staged {
		if err := r.staged(ctx, t.Name, seq); err != nil {
			return err
		}
	}
	return nil
}

// staged gives the rows of a file that waited for their leaders to them.
func (r *restorer) staged(ctx context.Context, table string, seq uint64) error {
	b, err := backup.ReadStaged(ctx, r.at, r.m, seq)
	if err == nil {
		var dec frame.Decoder
		err = backup.EachStaged(b, func(body []byte) error {
			var f frame.Frame
			if err := dec.Decode(body, &f); err != nil {
				return err
			}
			return r.send(ctx, table, &f)
		})
	}
	if fault.Is(err, fault.Corrupt) || backup.Damaged(err) {
		r.lacks("rows of table %q that waited for their leaders, file %d: %v", table, seq, err)
		err = nil
	}
	r.passed(1, int64(len(b)))
	return err
}

func (r *restorer) lacks(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	r.set.Log.Warn("a restore lacks something", "what", text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.Missing = append(r.mu.Missing, text)
}

// passed counts files that are done.
func (r *restorer) passed(files int, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.Segments += files
	r.mu.Bytes += bytes
	if r.set.Progress != nil {
		r.set.Progress(r.mu.Progress)
	}
}

// send gives a frame to the leaders of its rows, with patience.
func (r *restorer) send(ctx context.Context, table string, f *frame.Frame) error {
	scratch := deliver.Of(f)
	defer scratch.Put()
	for began := time.Now(); ; {
		m, ok := r.to.Get(table)
		err := error(fault.Errorf(fault.Unavailable, "table %q is not known here yet", table))
		if ok {
			var expired int
			if expired, err = r.out.Rows(ctx, table, m, peer.Inherit, scratch); err == nil {
				r.sent(len(f.IDs)+len(f.Hists)-expired, expired)
				return nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case fault.Is(err, fault.Invalid), fault.Is(err, fault.TooLarge), fault.Is(err, fault.Corrupt), fault.Is(err, fault.Denied), time.Since(began) > r.set.Patience:
			return err
		case fault.Is(err, fault.Stale):
			_, _ = r.to.Refresh(ctx, table, 0) // the next try names the mistake
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(tryPause):
		}
	}
}

func (r *restorer) sent(rows, expired int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.Rows += int64(rows)
	r.mu.Expired += int64(expired)
}
