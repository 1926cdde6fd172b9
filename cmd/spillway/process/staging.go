package process

import (
	"context"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/spillway/verify"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
	"github.com/spillwaydb/spillway/storage/staging"
	stagings "github.com/spillwaydb/spillway/storage/staging/runner"
)

// stagingDir is the directory of staged frames, in data_dir.
const stagingDir = verify.StagedDir

// openStaging opens the frames that wait for their leaders. Those of a server on which staging was turned off are forwarded too, and its announcement
// is withdrawn.
func (p *storage) openStaging() (err error) {
	dir := filepath.Join(p.cfg.DataDir, stagingDir)
	if p.frozen != "" {
		return nil // nothing is written here
	}
	if !p.cfg.Storage.Staging {
		if _, err := vfs.Default.Stat(dir); err != nil {
			return nil // it never staged
		}
	}
	p.staging, err = stagings.Open(stagings.Deps{FS: disk(), Dir: dir, Room: p.stagingRoom, Announce: p.announceStaging, Ways: stagingWays{p}, Log: p.log, Registerer: p.registerer},
		staging.Settings{Server: p.id, BytesMax: int64(p.cfg.Storage.StagingBytesMax), GatherFor: staging.GatherFor})
	return err
}

// asStaging returns the staged frames for the server, or nil.
func (p *storage) asStaging() server.Staging {
	if p.staging == nil {
		return nil
	}
	return p.staging
}

func (p *storage) stagedBytes() int64 {
	if p.staging == nil {
		return 0
	}
	return p.staging.Bytes()
}

// stagedLost reports whether frames that this server staged may be gone, given the tables that it announced. It registers as one that has lost all then, so that their
// other holders stage them here again.
func (p *storage) stagedLost(announced string) bool {
	if p.staging == nil {
		return announced != "" && p.frozen == ""
	}
	return p.staging.Lost(announced != "")
}

func (p *storage) stagingRoom(bytes int64) error {
	if !p.cfg.Storage.Staging {
		return fault.Errorf(fault.Unavailable, "server %s stages no more rows (storage.staging is off)", p.id)
	}
	if full, why := p.brick.ReadOnly(); full {
		return fault.Errorf(fault.Unavailable, "%s", why)
	}
	return p.brick.RoomFor(bytes)
}

// announceStaging writes the tables with staged rows into this server's row, which gateways and other servers watch.
func (p *storage) announceStaging(ctx context.Context, tables []string) error {
	return registry.Change(ctx, p.view.Coord, p.id, func(s *registry.Server) {
		s.Staging, s.Slices = registry.StagingOf(tables), true // a server of an older build that wrote the row lost it
	})
}

// UnstageTimeout bounds how long a stopping server sends its staged rows to leaders or other servers. Rows that are left then stay on its disk.
const UnstageTimeout = 3 * time.Second

// unstaging is an actor that only empties the staging at the end, once the leases are released.
func (p *storage) unstaging() (func() error, func(error)) {
	done := make(chan struct{})
	return func() error { <-done; return nil }, func(error) {
		defer close(done)
		if p.staging == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), p.patience(UnstageTimeout))
		defer cancel()
		if err := p.staging.Leave(ctx); err != nil {
			p.log.Warn("rows that are staged here wait on the disk until the server starts again", "error", err)
		}
	}
}

// stagingWays are the ways of staged frames to leaders and other holders.
type stagingWays struct{ p *storage }

// Map implements stagings.Ways.
func (w stagingWays) Map(table string) (*topology.Map, uint64) { return w.p.view.Tables.Life(table) }

// Leaving implements stagings.Ways.
func (w stagingWays) Leaving() bool {
	row, ok := w.p.view.Registry.Get(w.p.id)
	return ok && row.Drain != nil
}

// Cover implements stagings.Ways.
func (w stagingWays) Cover(ctx context.Context, table string, times []point.Nanos) error {
	_, err := w.p.view.Tables.Cover(ctx, table, times)
	return err
}

// Leader implements stagings.Ways.
func (w stagingWays) Leader(table string, at *topology.Partition) (topology.ServerID, error) {
	l, err := w.p.view.Leaders.Find(table, at, 0)
	return l.Server, err
}

// Server implements stagings.Ways.
func (w stagingWays) Server(id topology.ServerID) (peer.Storage, bool) { return w.p.storageOf(id) }

// Live implements stagings.Ways.
func (w stagingWays) Live(id topology.ServerID) bool { return w.p.view.Leaders.Live(id) }

// Began implements stagings.Ways.
func (w stagingWays) Began(id topology.ServerID) time.Time {
	row, _ := w.p.view.Registry.Get(id)
	return row.Since
}

// Others implements stagings.Ways.
func (w stagingWays) Others() (all []topology.ServerID) {
	for _, s := range w.p.view.Registry.All() {
		if s.ID != w.p.id && s.Takes() && w.p.view.TakesRows(s.ID) {
			all = append(all, s.ID)
		}
	}
	return all
}
