package administration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/connect"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/remote"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

// Flags are the flags of every command for people: the way to the cluster, the author of the action, the form of the
// answer.
type Flags struct {
	Servers []string      `name:"servers" help:"Storage servers by the addresses they listen for peers at; any one that runs is enough, and it checks the certificate. Without it commands need --coord." placeholder:"HOST:PORT,..." env:"SPILLWAY_SERVERS"`
	Coord   connect.Coord `embed:""`
	Peer    connect.Peer  `embed:""`
	Output  string        `name:"output" short:"o" help:"table or json." enum:"table,json" default:"table"`
	By      string        `name:"by" help:"Who does it, for the audit (default the user and the host)."`
	Timeout time.Duration `name:"timeout" help:"How long everything may take." default:"30s"`
}

// admin is a cluster as a person at a terminal sees it: the coordination store, the servers' rows and the tables' maps.
type admin struct {
	store   coord.Store
	servers *registry.View
	tables  *tables.Tables
	// lacking holds the reason why maps are missing, by table; "" stands for all. Commands that need no map still work.
	lacking map[string]error
	peers   *peers.Peers
	log     *slog.Logger
	rng     *rand.Rand

	out  io.Writer
	json bool
	by   string
	// unasked: no person is at this process's terminal, so that losses are accepted by --yes alone.
	unasked bool
	// unseen: the order came from a client that was not shown what it deletes.
	unseen bool
	// keeping is nil where the master keeps the retention.
	keeping Keeping
	// listen is how long to wait for a server's heartbeat before it counts as silent.
	listen time.Duration
	// silent are the servers that sent no heartbeat while the command listened; nil: it did not listen.
	silent map[topology.ServerID]bool
}

// listenFor is three heartbeat periods.
const listenFor = 3 * time.Second

// with opens the cluster, runs f, and closes.
func (f *Flags) with(do func(ctx context.Context, a *admin) error) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	store, err := f.open(ctx)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	own := rpc.Identity{} // any: on a server's or gateway's host its certificate serves, for the calls that it is allowed
	dial := func(id topology.ServerID, addr string) (peers.Peer, error) {
		return rpc.Dial(addr, rpc.DialSettings{TLS: f.Peer.TLS(own), Server: string(id), Log: log})
	}
	a, err := openAdmin(ctx, store, dial, log)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	a.out, a.json, a.by = os.Stdout, f.Output == "json", f.By
	if a.by == "" {
		a.by = whoami()
	}
	return errors.Join(do(ctx, a), a.close())
}

// open opens the coordination store: through a storage server if any is named, else itself.
func (f *Flags) open(ctx context.Context) (coord.Store, error) {
	if len(f.Servers) > 0 {
		return throughServers(ctx, f.Servers, f.Peer)
	}
	if f.Coord.URL == "" {
		return nil, fault.Errorf(fault.Invalid, "where is the cluster? --servers HOST:PORT names a storage server (or SPILLWAY_SERVERS), --coord the coordination store. `table`, `partition`, `audit` and `doctor` also ask a standalone process or a gateway, by --url")
	}
	return f.Coord.Open(ctx)
}

// throughServers opens the coordination store through the first storage server that answers. Errors are those of all, of the last one's Kind:
// Unavailable, Denied (the certificate is not an administrator's), Invalid.
func throughServers(ctx context.Context, addrs []string, p connect.Peer) (coord.Store, error) {
	var last error
	var said []string
	for _, addr := range addrs {
		server, err := rpc.Dial(addr, rpc.DialSettings{TLS: p.TLS(rpc.Identity{})})
		if err != nil {
			return nil, err
		}
		store := coord.Share(remote.Open(server, server.Close))
		if last = answers(ctx, store); last == nil {
			return store, nil
		}
		last = fault.Annotate(errors.Join(last, store.Close()), "storage server %s", addr)
		if fault.Is(last, fault.Denied) {
			return nil, last
		}
		said = append(said, last.Error())
	}
	if len(said) > 1 {
		return nil, fault.Errorf(fault.KindOf(last), "none of %d storage servers answers:\n  %s", len(said), strings.Join(said, "\n  "))
	}
	return nil, last
}

// answers reads a row. A connection that is just being made refuses calls at once, so the read is retried for a while.
func answers(ctx context.Context, store coord.Store) error {
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	for {
		_, _, err := store.Get(ctx, master.Key)
		if !fault.Is(err, fault.Unavailable) || pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// answerMax bounds the wait for one storage server before the next is tried.
const answerMax = 3 * time.Second

// openAdmin reads servers and tables. Servers that cannot be dialled are not asked.
func openAdmin(ctx context.Context, store coord.Store, dial func(id topology.ServerID, addr string) (peers.Peer, error), log *slog.Logger) (*admin, error) {
	a := &admin{store: store, log: log, rng: seeded(), out: io.Discard, listen: listenFor}
	var err error
	if a.servers, err = registry.Open(ctx, store, log, seeded()); err != nil {
		return nil, err
	}
	a.peers = peers.Open(peers.Deps{Servers: a.servers, Dial: dial, Log: log}, peers.Settings{})
	placer := master.NewPlacer(a.paper, func(table string) int { return a.tables.Replicas(table) }, master.Settings{})
	opening, cancel := context.WithTimeout(ctx, openMax)
	defer cancel()
	if a.tables, err = tables.Open(opening, tables.Deps{
		Store: store, Log: log, Place: placer.Place, Metadata: a.peers.Metadata, Servers: a.keepers, Rand: seeded(),
	}, tables.Settings{New: topology.Config{PartitionWidth: 24 * time.Hour}}); err != nil {
		a.tables, a.lacking = nil, map[string]error{"": err}
		return a, nil
	}
	return a, a.missing(opening)
}

// seeded returns a new source for each caller.
func seeded() *rand.Rand { return rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) }

// openMax bounds the wait for maps before a command goes on without them.
const openMax = 10 * time.Second

// missing records the tables of which no metadata server returned a map. Errors are the store's.
func (a *admin) missing(ctx context.Context) error {
	rows, _, err := a.store.List(ctx, mapstore.Prefix)
	if err != nil {
		return err
	}
	a.lacking = map[string]error{}
	for _, row := range rows {
		name := mapstore.TableOf(row.Key)
		r, err := mapstore.DecodeRow(row)
		if err == nil && !r.Dropped {
			if _, ok := a.tables.Get(name); !ok {
				err = fault.Errorf(fault.Unavailable, "no metadata server gives the map of table %q: %s keep it; do they run, and are --peer.tls… right?", name, joinIDs(r.Servers))
			}
		}
		if err != nil {
			a.lacking[name] = err
		}
	}
	return nil
}

// incomplete returns an error that names the missing maps, if any is missing.
func (a *admin) incomplete() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(a.lacking)) {
		errs = append(errs, a.lacking[name])
	}
	return errors.Join(errs...)
}

func (a *admin) close() error {
	if a.tables != nil {
		a.tables.Close()
	}
	return errors.Join(a.peers.Close(), a.store.Close())
}

// serverIDs are the servers that get placements, also silent ones: a command has no heartbeats.
func (a *admin) serverIDs() []topology.ServerID {
	var out []topology.ServerID
	for _, s := range a.servers.All() {
		if s.Takes() {
			out = append(out, s.ID)
		}
	}
	return out
}

// keepers are the servers that may keep the file of a new table: all, until those are known that are silent.
func (a *admin) keepers() []topology.ServerID {
	var live, silent []topology.ServerID
	for _, s := range a.serverIDs() {
		if a.silent[s] {
			silent = append(silent, s)
		} else {
			live = append(live, s)
		}
	}
	return tables.MetadataCandidates(live, silent, master.MetadataServers)
}

// takers counts the servers that accept placements.
func (a *admin) takers() int {
	if a.servers == nil {
		return 1 // a process that is alone
	}
	return len(a.serverIDs())
}

// paper is the state without heartbeats: every registered server counts as alive. Used to place partitions that the CLI
// itself makes.
func (a *admin) paper() master.State {
	s := master.State{Now: time.Now().UnixNano(), Tables: a.maps()}
	for _, srv := range a.servers.All() {
		s.Servers = append(s.Servers, master.Server{Server: srv, Live: true, For: time.Hour})
	}
	return s
}

func (a *admin) maps() []*topology.Map {
	if a.tables == nil {
		return nil
	}
	var out []*topology.Map
	for _, name := range a.tables.Names() {
		if m, ok := a.tables.Get(name); ok {
			out = append(out, m)
		}
	}
	return out
}

// look watches the cluster for a moment: live servers, leaders, holders of METADATA files.
func (a *admin) look(ctx context.Context) (master.State, *master.Rows, error) {
	s, rows, err := master.Observe(ctx, a.store, a.servers.All(), a.listen, a.log, a.rng)
	s.Tables = a.maps()
	return s, rows, errors.Join(err, s.FillMetadata(ctx, a.store))
}

// table returns a table's map. Errors are NotFound, or the reason why the map is missing.
func (a *admin) table(name string) (*topology.Map, error) {
	for _, why := range []string{"", name} {
		if err := a.lacking[why]; err != nil {
			return nil, err
		}
	}
	m, ok := a.tables.Get(name)
	if !ok {
		return nil, fault.Errorf(fault.NotFound, "there is no table %q; `spillway table list` shows those there are", name)
	}
	return m, nil
}

// print answers with v as JSON, or with the output of draw, in aligned columns.
func (a *admin) print(v any, draw func(w io.Writer)) error {
	return terminal.Print(a.out, a.json, v, draw)
}

// done answers a command that changed something.
func (a *admin) done(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return a.print(map[string]string{"done": text}, func(w io.Writer) { fmt.Fprintln(w, text) })
}

func (a *admin) note(reason string) lease.Note {
	return lease.Note{Who: a.by, When: time.Now().UTC().Truncate(time.Millisecond), Reason: reason}
}

func whoami() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// since formats how long ago a time was, for people; a zero time means never.
func since(d time.Duration) string {
	if d >= 48*time.Hour {
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
	return d.Round(time.Second).String()
}

func joinIDs(ids []topology.ServerID) string {
	var s []string
	for _, id := range ids {
		s = append(s, string(id))
	}
	return strings.Join(s, " ")
}

// pause waits, or ends with ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
