package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/figures"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/scrape"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/local"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/metafile"
	"github.com/spillwaydb/spillway/storage/overlay"
	"github.com/spillwaydb/spillway/storage/server"
)

type Standalone struct {
	settings.Flags

	Kafka settings.KafkaFlags `embed:"" prefix:"kafka."`
}

// config combines file, environment and flags, in this order.
func (s *Standalone) config() (settings.Config, error) {
	c, err := s.Flags.Config()
	if err != nil {
		return c, err
	}
	c.Again = s.config
	if err := s.Kafka.Add(&c); err != nil {
		return c, err
	}
	return c, c.Complete()
}

// Run is the life of a standalone process: it returns when a signal or a failure has ended it and everything is closed.
func (s *Standalone) Run() error {
	set, err := s.config()
	if err != nil {
		return terminal.UsageError{Err: err}
	}
	cfg := config{Config: set}
	cfg.limitHeap(cfg.Storage.HeadBytesMax)
	cfg.spread()
	defer cfg.catchHangups()()
	defer runtime.KeepAlive(cfg.ballast())
	for err = errRoom; errors.Is(err, errRoom); {
		err = s.live(&cfg)
	}
	return err
}

// live is one life of the store in the process.
func (s *Standalone) live(cfg *config) error {
	registry := prometheus.NewRegistry()
	log := newLog(os.Stderr, cfg.LogFormat, cfg.Level, registry)
	cfg.NoteDescriptors(log)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	p, err := openStandalone(ctx, cfg, log, registry)
	if err != nil {
		return err
	}
	defer cfg.catchEnds()()
	defer endsWithin(time.Duration(cfg.HTTP.ShutdownTimeout)+EndMax, log)()
	return live(func() error { return p.run(ctx) }, p.close, p.fences()...)
}

// standalone is every part in one process. Fields are in the order in which they are opened.
type standalone struct {
	door
	fs     vfs.FS // constant; the file system of the store
	brick  *brick.Brick
	coord  *local.Store
	files  *mapstore.Server
	tables *tables.Tables
	server *server.Server

	dropping  sync.Mutex // held while a table is dropped
	frozen    string     // why the store is on an overlay and accepts no writes; "": it is not
	retention retain
	scraper   *scrape.Scraper // nil: the process does not write its own metrics
	unmapped  string          // findings of openStorage about lost maps; "": none
}

func openStandalone(ctx context.Context, cfg *config, log *slog.Logger, registry *prometheus.Registry) (_ *standalone, err error) {
	p := &standalone{door: door{role: "standalone", cfg: cfg, log: log, registry: registry}, fs: vfs.Default, frozen: cfg.shortOfRoom(startRoom, startFiles)}
	if p.frozen != "" {
		p.fs = overlaid{overlay.New(vfs.Default)}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if err := p.listen(); err != nil {
		return nil, err
	}
	starts := answerStarting("the store is opened, and what is only in the log is read again", p.listener, p.admin)
	defer starts.end()
	p.retention.register(registry)
	if err := cfg.notBackups(p.fs); err != nil {
		return nil, err
	}
	if err := p.openStorage(ctx); err != nil {
		return nil, err
	}
	var source query.Source = p.server
	if text := p.server.Rebuilt(); text != "" {
		source = query.Noticed(source, text)
	}
	if err := p.rememberedClock(ctx); err != nil {
		return nil, err
	}
	if err := p.open(ctx, gatewayDeps{tables: p.tables, servers: p, source: source, health: p.health, clock: p.retention.clock, stalled: func() error { return stalled(p.brick) }, describe: p.describe, snapshot: p.server.Snapshot, administer: p.administer(),
		place: func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{settings.LocalServer} }, fit: fitAlone}); err != nil {
		return nil, err
	}
	p.scraper = p.own().scraper()
	if p.frozen != "" {
		log.Error("the disk is full: the store is opened for reading only", "reason", p.frozen)
		p.brick.Freeze(p.frozen)
		p.coord.Freeze(p.frozen)
	} else {
		noteSettings(cfg, log)
	}
	p.ready.Store(true)
	return p, nil
}

// fences are the stores that the process cannot run without.
func (p *standalone) fences() []fence {
	return []fence{{p.brick.Fenced(), p.brick.Err}, {p.coord.Failed(), p.coord.Err}}
}

// health returns why this process must not be used; nil: it may.
func (p *standalone) health() error {
	if err := p.brick.Err(); err != nil {
		return err
	}
	return p.coord.Err()
}

// noteSettings writes the settings in force beside the data, for later inspection by people. On a full disk the old ones
// stay: no process reads them.
func noteSettings(c *config, log *slog.Logger) {
	file := filepath.Join(c.DataDir, "settings.yaml")
	if err := os.WriteFile(file+".new", []byte(c.String()), 0o600); err != nil {
		_ = os.Remove(file + ".new")
		log.Warn("the settings in force could not be noted", "file", file, "error", err)
	} else if err := os.Rename(file+".new", file); err != nil {
		log.Warn("the settings in force could not be noted", "file", file, "error", err)
	}
}

// openStorage opens the brick, which locks the data directory for the other parts, and the parts above it.
func (p *standalone) openStorage(ctx context.Context) (err error) {
	if p.brick, err = brick.Open(brick.Deps{FS: p.fs, Log: p.log, Registerer: p.registry, Files: brick.FilesOf}, p.cfg.ForBrick()); err != nil {
		return err
	}
	if err := notOfStorage(p.brick, p.cfg.DataDir); err != nil {
		return err
	}
	rows := filepath.Join(p.cfg.DataDir, coordDir)
	if p.coord, err = local.Open(p.fs, rows, p.log); fault.Is(err, fault.Corrupt) {
		// Its essential rows lie beside the data, too: Restore.
		return fault.Wrap(err, fault.Corrupt, "the coordination store is damaged; move %s elsewhere and start again: it is made anew of the maps in the catalogue", rows)
	} else if err != nil {
		return err
	}
	epoch, err := nextEpoch(ctx, p.coord, p.brick.EpochMax())
	if err != nil {
		return err
	}
	if p.files, err = mapstore.New(mapstore.Deps{
		Store: p.coord, Peers: p.metadata, Log: p.log, Registerer: p.registry,
		Rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), Self: settings.LocalServer, Disk: metafile.New(p.brick),
	}, mapstore.Settings{}); err != nil {
		return err
	}
	if err := p.files.Adopt(ctx); err != nil {
		return err
	}
	if err := p.files.Restore(ctx); err != nil {
		return err
	}
	p.tables, err = tables.Open(ctx, tables.Deps{
		Store: p.coord, Log: p.log, Own: settings.LocalServer, Metadata: p.metadata, Servers: p.IDs,
		Place: func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{settings.LocalServer} },
	}, p.cfg.ForTables())
	if err != nil {
		return err
	}
	if _, err = p.tables.Create(ctx, tablename.Default, p.cfg.NewTable()); err != nil {
		return err
	}
	p.cfg.noteRetention(p.tables, p.log)
	set := p.cfg.ForServer()
	set.Server, set.Epoch = settings.LocalServer, epoch
	p.makeLane()
	if p.server, err = server.Open(ctx, server.Deps{Brick: p.brick, Maps: p.tables, Weight: p.weight, Lane: p.lane, CPU: cputime.Used, Processors: p.cfg.processors, Log: p.log, Registerer: p.registry}, set); err != nil {
		return err
	}
	p.reportUnmapped()
	return nil
}

// reportUnmapped reports rows that are in no map: the coordination store is not of the same time as the catalogue.
func (p *standalone) reportUnmapped() {
	var names []string
	for _, id := range p.server.Unmapped() {
		names = append(names, fmt.Sprintf("%s/%d", id.Table, id.Partition))
	}
	if len(names) == 0 {
		return
	}
	const shown = 8
	slices.Sort(names)
	p.unmapped = fmt.Sprintf("%d partitions are in no map, so that writes to them are refused (their rows are read): %s; the METADATA files were lost: restore %s from a backup",
		len(names), strings.Join(names[:min(len(names), shown)], " "), filepath.Join(p.cfg.DataDir, "catalogue"))
	p.log.Error("partitions are in no map", "what", p.unmapped)
}

const epochRow = "epoch"

// nextEpoch raises the epoch under which this process writes: the data directory is locked, so the writer of the previous
// epoch is gone. The epoch also rises above floor, the highest epoch of the written rows: the coordination store may have
// been lost, or replaced by an old one.
func nextEpoch(ctx context.Context, store coord.Store, floor point.Epoch) (point.Epoch, error) {
	row, _, err := store.Get(ctx, epochRow)
	if err != nil {
		return 0, err
	}
	last := uint64(0)
	if len(row.Value) > 0 {
		if last, err = strconv.ParseUint(string(row.Value), 10, 64); err != nil {
			return 0, fault.Wrap(err, fault.Corrupt, "epoch in the coordination store")
		}
	}
	last = max(last, uint64(floor))
	_, ok, err := store.Commit(ctx, []coord.Condition{{Key: epochRow, Revision: row.Revision}}, []coord.Write{{Key: epochRow, Value: strconv.AppendUint(nil, last+1, 10)}})
	if err == nil && !ok {
		err = fault.Errorf(fault.Unavailable, "another process raises the epoch of the same directory")
	}
	return point.Epoch(last + 1), err
}

// weight returns the weight in a table's limits, which are opened after the storage.
func (p *standalone) weight(table string) int64 {
	if p.limits == nil {
		return 1
	}
	return p.limits.Table(table).Weight()
}

// Server implements forward.Servers.
func (p *standalone) Server(id topology.ServerID) (peer.Storage, bool) {
	return p.server, id == settings.LocalServer
}

// metadata returns the metadata server of this process, the only one.
func (p *standalone) metadata(id topology.ServerID) (peer.Metadata, bool) { return p.files.Alone(id) }

// IDs implements forward.Servers.
func (p *standalone) IDs() []topology.ServerID { return []topology.ServerID{settings.LocalServer} }

// describe shows on the status page that this server leads everything.
func (p *standalone) describe(_ context.Context, s *ui.Status) {
	load := p.server.HeadLoad()
	one := ui.Server{ID: string(settings.LocalServer), Live: p.brick.Err() == nil, Load: &load}
	if u, err := vfs.Default.GetDiskUsage(existing(p.cfg.DataDir)); err == nil {
		one.Disk = &ui.Disk{Free: u.AvailBytes + uint64(p.brick.DroppedBytes()), Total: u.TotalBytes} // which would be removed before writes are refused
	}
	if c := p.server.Scrub(); !p.cfg.Storage.NoScrub {
		one.Scrub = &ui.Scrub{PassBegan: c.PassBegan, PassEnded: c.PassEnded, Segments: c.Segments, Checked: c.Checked, BytesPerSecond: c.BytesPerSecond, Damaged: c.DamageSeen}
	}
	led := figures.Led{}
	for i := range s.Tables {
		for j := range s.Tables[i].Partitions {
			at := &s.Tables[i].Partitions[j]
			at.Leader, at.InSync, at.Behind = one.ID, []string{one.ID}, []string{}
			led.Add(at)
		}
	}
	led.AddTo(&one)
	s.Servers = []ui.Server{one}
	if full, why := p.brick.ReadOnly(); p.frozen != "" {
		s.Problems = append(s.Problems, "The disk is full: "+p.frozen+".")
	} else if full {
		s.Problems = append(s.Problems, "This process takes no rows: "+why+".")
	}
	s.Problems = append(s.Problems, p.retention.problems()...)
	if text := fencedBefore(p.brick); text != "" {
		s.Problems = append(s.Problems, text)
	}
	if f := p.brick.LostFound(); f.Entries > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf("There are %s: files that no catalogue entry names were put aside. docs/runbooks/SpillwayLostAndFound.md says what to do with them.", f))
	}
	if text := p.server.Rebuilt(); text != "" {
		s.Problems = append(s.Problems, strings.ToUpper(text[:1])+text[1:]+".")
	}
	if p.unmapped != "" {
		s.Problems = append(s.Problems, "Of the store, "+p.unmapped+".")
	}
}

// run serves until a signal comes or a part fails.
func (p *standalone) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g run.Group
	g.Add(actor(ctx, p.cfg.untilSignal))
	var own []func(context.Context) error
	if p.frozen == "" && p.scraper != nil {
		own = append(own, p.scraper.Run)
	}
	p.actors(ctx, &g, own...)
	g.Add(actor(ctx, p.server.Run)) // behind the door: flushes make room for its last rows
	g.Add(actor(ctx, p.files.Run))
	g.Add(actor(ctx, p.tables.Run))
	if p.frozen != "" {
		g.Add(actor(ctx, p.cfg.untilRoom))
	} else {
		g.Add(actor(ctx, p.keepRetention))
	}
	g.Add(actor(ctx, untilFenced(fence{p.coord.Failed(), p.coord.Err})))
	g.Add(actor(ctx, func(ctx context.Context) error {
		return follow(ctx, p.cfg.heads(p.accounts.heads, p.server), ahead(p.accounts.compactions, 1, p.server.CompactingBytes, p.server.OnCompactingGrowth))
	}))
	p.announce("data in " + p.cfg.DataDir)
	return p.wait(&g)
}

// close closes everything that was opened, in the opposite order.
func (p *standalone) close() error {
	errs := []error{p.door.close()}
	if p.server != nil {
		errs = append(errs, p.server.Close())
	}
	if p.tables != nil {
		p.tables.Close()
	}
	if p.files != nil {
		p.files.Close()
	}
	if p.coord != nil {
		errs = append(errs, p.coord.Close())
	}
	if p.brick != nil {
		errs = append(errs, p.brick.Close())
	}
	return errors.Join(errs...)
}
