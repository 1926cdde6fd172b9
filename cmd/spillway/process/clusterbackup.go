package process

import (
	"context"
	"net/http"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/view"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/backup/cluster"
)

// backupSource is the cluster of a gateway as a backup reads it.
type backupSource struct {
	view   *view.Cluster
	source query.Source
}

var _ cluster.Source = backupSource{}

// Tables implements cluster.Source, by the rows that the coordination store has now.
func (s backupSource) Tables(ctx context.Context) (names []string, err error) {
	rows, _, err := s.view.Coord.List(ctx, mapstore.Prefix)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		r, err := mapstore.DecodeRow(row)
		if err != nil {
			return nil, err
		}
		if !r.Dropped {
			names = append(names, mapstore.TableOf(row.Key))
		}
	}
	return names, nil
}

// Map implements cluster.Source.
func (s backupSource) Map(ctx context.Context, table string) (*topology.Map, uint64, error) {
	if _, err := s.view.Tables.Refresh(ctx, table, 0); err != nil {
		return nil, 0, err
	}
	m, begun := s.view.Tables.Life(table) // both at once: the table may be dropped and made anew meanwhile
	if m == nil {
		return nil, 0, fault.Errorf(fault.NotFound, "table %q was dropped", table)
	}
	return m, begun, nil
}

// Stagers implements cluster.Source. A server announces a table before it acks its first staged row, and for some time after the last.
func (s backupSource) Stagers(ctx context.Context, table string) (ids []topology.ServerID, err error) {
	all, err := registry.List(ctx, s.view.Coord)
	for i := range all {
		if all[i].Stages(table) {
			ids = append(ids, all[i].ID)
		}
	}
	return ids, err
}

// Leader implements cluster.Source.
func (s backupSource) Leader(table string, p *topology.Partition, try int) (topology.ServerID, error) {
	l, err := s.view.Leaders.Find(table, p, try)
	return l.Server, err
}

// Unled implements cluster.Source.
func (s backupSource) Unled(table string, id point.PartitionID) bool {
	return s.view.Leaders.NeverLed(lease.Partition{Table: table, ID: id})
}

// CaughtUp implements cluster.Source.
func (s backupSource) CaughtUp(ctx context.Context) error { return s.view.Leaders.CaughtUp(ctx) }

// Server implements cluster.Source.
func (s backupSource) Server(id topology.ServerID) (peer.Storage, bool) {
	return s.view.Peers.Server(id)
}

// Families implements cluster.Source.
func (s backupSource) Families(ctx context.Context, table string) ([]point.MetadataRow, error) {
	return s.source.GetMetadata(ctx, table, "")
}

// holder names this process for the lock of a place: it adopts the lock that it left when it was killed.
func (d *door) holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return d.role + " on " + host + ", " + d.cfg.DataDir
}

// borrow begins the loan of a backup or a restore, for what the backup lists. Errors are Throttled and Canceled.
func (d *door) borrow(ctx context.Context) (*budget.Loan, error) {
	return d.accounts.queries.BorrowWithin(ctx, lendTimeMax, 0)
}

// backUpCluster makes a backup of all servers.
func (d *door) backUpCluster(ctx context.Context, o *backups.Order, to backup.Place, progress func(backup.Progress)) (news backups.News, err error) {
	if o.Link {
		return news, fault.Errorf(fault.Invalid, "the files of a cluster are on other hosts: there are no hard links to them")
	}
	loan, err := d.borrow(ctx)
	if err != nil {
		return news, err
	}
	defer loan.Close()
	res, err := cluster.Write(ctx, d.behind.cluster, to, cluster.Settings{Holder: d.holder(), Log: d.log,
		Settings: backup.Settings{Memory: loan.Take, BytesPerSecond: o.BytesPerSecond, Program: d.cfg.Build.Version, Progress: progress}})
	if err != nil {
		return news, err
	}
	news = backups.News{Name: res.Name, Missing: res.Missing, Progress: &res.Progress}
	if o.Keep > 0 {
		news.Removed, err = backup.Prune(ctx, to, d.holder(), news.Name, o.Keep)
	}
	return news, err
}

// restorePage inserts the rows of a backup while the process serves. It ends when the client leaves.
func (d *door) restorePage(w http.ResponseWriter, r *http.Request) {
	var o backups.RestoreOrder
	if !readOrder(w, r, &o, "a restore") {
		return
	}
	if o.BytesPerSecond < 0 {
		http.Error(w, "no number may be negative", http.StatusBadRequest)
		return
	}
	from, err := backups.PlaceAt("from", o.From, o.S3)
	if err == nil {
		err = d.cfg.apart("from", from)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := d.behind.administer.May(); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	withNews(w, "a restore", &d.restoring, func(progress func(backup.Progress)) backups.News {
		news, err := d.restore(r.Context(), &o, from, progress)
		if err != nil {
			news.Error = err.Error()
			d.log.Error("restore failed", "from", o.From, "error", err)
		} else {
			d.log.Info("backup restored", "from", o.From, "name", news.Name, "tables", news.Tables, "rows", news.Rows, "expired", news.Expired, "missing", len(news.Missing))
		}
		return news
	})
}

// scratchDir is where the partitions of a backup are stores for a while, in data_dir.
const scratchDir = "restore"

func (d *door) restore(ctx context.Context, o *backups.RestoreOrder, from backup.Place, progress func(backup.Progress)) (backups.News, error) {
	loan, err := d.borrow(ctx)
	if err != nil {
		return backups.News{}, err
	}
	defer loan.Close()
	res, err := cluster.Restore(ctx, from, o.Backup, restoreTarget{d.behind.tables, d}, cluster.RestoreSettings{
		Settings: backup.Settings{Memory: loan.Take, BytesPerSecond: o.BytesPerSecond, Progress: progress}, Merge: o.Merge,
		FS: vfs.Default, Scratch: filepath.Join(d.cfg.DataDir, scratchDir), Log: d.log})
	return backups.News{Name: res.Name, Missing: res.Missing, Progress: &res.Progress, Tables: res.Tables, Rows: res.Rows, Expired: res.Expired}, err
}

// restoreTarget is the cluster of a gateway, or a process that is alone, as a restore fills it.
type restoreTarget struct {
	*tables.Tables
	d *door
}

var _ cluster.Target = restoreTarget{}

// Cover implements cluster.Target.
func (t restoreTarget) Cover(ctx context.Context, table string, times []point.Nanos) error {
	_, err := t.Tables.Cover(ctx, table, times)
	return err
}

// Leader implements cluster.Target.
func (t restoreTarget) Leader(table string, p *topology.Partition) (topology.ServerID, error) {
	if t.d.behind.leaders == nil {
		return settings.LocalServer, nil
	}
	l, err := t.d.behind.leaders.Find(table, p, int(newRand().Uint32()>>1)) // where it can only guess, each try may name another
	return l.Server, err
}

// Server implements cluster.Target.
func (t restoreTarget) Server(id topology.ServerID) (peer.Storage, bool) {
	return t.d.behind.servers.Server(id)
}

// Fit implements cluster.Target.
func (t restoreTarget) Fit(c topology.Config) topology.Config { return t.d.behind.fit(c) }

// Place implements cluster.Target.
func (t restoreTarget) Place(table string, id point.PartitionID) []topology.ServerID {
	return t.d.behind.place(table, id)
}

// describedAtOnce is how many descriptions of metrics are sent in one request.
const describedAtOnce = 1000

// Describe implements cluster.Target.
func (t restoreTarget) Describe(ctx context.Context, table string, rows []point.MetadataRow) error {
	to, err := t.d.forward.Table(ctx, table)
	for len(rows) > 0 && err == nil {
		n := min(len(rows), describedAtOnce)
		err = to.Write(ctx, &point.Batch{Metadata: rows[:n]}, point.All)
		rows = rows[n:]
	}
	return err
}

// fitAlone gives the settings of a table of a cluster as a process that is alone has them.
func fitAlone(c topology.Config) topology.Config {
	c.Replicas, c.InSyncMin, c.InSyncWas, c.Smear = 1, 0, topology.InSyncWas{}, smear.Rule{}
	return c
}
