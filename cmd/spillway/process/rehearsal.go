package process

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/verify"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// Rehearsal starts stores for verify, as the processes of this program start theirs.
type Rehearsal struct{}

var _ verify.Program = Rehearsal{}

// ReadSettings implements verify.Program.
func (Rehearsal) ReadSettings(path string) error {
	c := settings.Default()
	return c.Read(path)
}

// Start implements verify.Program.
func (Rehearsal) Start(ctx context.Context, dir, logDir string, fs vfs.FS, log *slog.Logger) (verify.Started, error) {
	c := config{Config: settings.Default()}
	c.DataDir, c.Storage.LogDir = dir, logDir
	c.Storage.FreeBytesMin = 1
	_ = c.Budget(settings.MemoryOfMachine()) // shares that cannot be computed stay at defaults
	p := &standalone{door: door{cfg: &c, log: log, registry: prometheus.NewRegistry()}, fs: fs}
	err := rehearse(ctx, p)
	return verify.Started{Brick: p.brick, Served: p.server != nil, Close: p.close}, err
}

// rehearse opens the store: like a standalone process if there is a coordination store beside it, otherwise like a server of
// a cluster up to the moment it looks for its cluster.
func rehearse(ctx context.Context, p *standalone) (err error) {
	if _, err := os.Stat(filepath.Join(p.cfg.DataDir, coordDir)); err == nil {
		return p.openStorage(ctx)
	}
	if p.brick, err = brick.Open(brick.Deps{FS: p.fs, Log: p.log, Registerer: p.registry}, p.cfg.ForBrick()); err != nil {
		return err
	}
	set := p.cfg.ForServer()
	set.Server, set.Epoch = settings.LocalServer, 1
	p.server, err = server.Open(ctx, server.Deps{Brick: p.brick, Maps: noMaps{}, Log: p.log, Registerer: p.registry}, set)
	return err
}

// noMaps has no table: opening asks for none.
type noMaps struct{}

// Get implements server.Maps.
func (noMaps) Get(string) (*topology.Map, bool) { return nil, false }
