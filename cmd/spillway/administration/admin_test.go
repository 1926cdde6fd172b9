package administration

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alecthomas/kong"
	"github.com/cockroachdb/datadriven"
	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/metadata/coord"
	coordmem "github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	filesmem "github.com/spillwaydb/spillway/metadata/mapstore/mem"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// town is a cluster without storage: a coordination store, metadata servers, and heartbeats of the servers that run.
type town struct {
	t     *testing.T
	store coord.Store
	files map[string]*mapstore.Server // by address
	runs  map[topology.ServerID]bool
	n     uint64
	cut   bool // no server can be dialled
	// damaged is the damage that servers report in one of their partitions, by address.
	damaged map[string]peer.PartitionStats
	// writes are the rows a second that servers say they accept.
	writes map[topology.ServerID]*lease.Writes
}

func newTown(t *testing.T) *town {
	tw := &town{t: t, store: coordmem.New(), files: map[string]*mapstore.Server{}, runs: map[topology.ServerID]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	for _, id := range []topology.ServerID{"s1", "s2", "s3"} {
		srv, err := mapstore.New(mapstore.Deps{
			Store: tw.store, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(uint64(id[1]), 1)), Self: id, Disk: filesmem.New(),
			Peers: func(other topology.ServerID) (peer.Metadata, bool) {
				srv, ok := tw.files[string(other)+":8430"]
				return srv, ok
			},
		}, mapstore.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		tw.files[string(id)+":8430"] = srv
	}
	for _, srv := range tw.files {
		g.Go(func() error { return srv.Run(ctx) })
	}
	t.Cleanup(func() {
		stop()
		if err := g.Wait(); err != nil && !fault.Is(err, fault.Canceled) {
			t.Error(err)
		}
		if err := tw.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return tw
}

// open returns the admin that commands use.
func (tw *town) open(log *slog.Logger) *admin {
	tw.t.Helper()
	dial := func(_ topology.ServerID, addr string) (peers.Peer, error) {
		if srv, ok := tw.files[addr]; ok && !tw.cut {
			return townPeer{Server: srv, damaged: tw.damaged[addr]}, nil
		}
		return nil, fault.Errorf(fault.Unavailable, "no route to %s", addr)
	}
	a, err := openAdmin(tw.t.Context(), keepOpen{tw.store}, dial, log)
	if err != nil {
		tw.t.Fatal(err)
	}
	return a
}

// townPeer is the connection to a server: its metadata part is the town's own, storage holds nothing.
type townPeer struct {
	peer.Storage
	*mapstore.Server
	damaged peer.PartitionStats
}

func (townPeer) Close() error { return nil }

func (p townPeer) Stats(context.Context, string, int) (*peer.Stats, error) {
	if p.damaged.ID != 0 {
		return &peer.Stats{ByPartition: []peer.PartitionStats{p.damaged}}, nil
	}
	return nil, fault.Errorf(fault.NotFound, "no such table")
}

func (tw *town) write(key string, value []byte) {
	tw.t.Helper()
	if _, _, err := tw.store.Commit(tw.t.Context(), nil, []coord.Write{{Key: key, Value: value}}); err != nil {
		tw.t.Fatal(err)
	}
}

// transfer has a server report rows on their way.
func (tw *town) transfer(f []string) {
	tw.t.Helper()
	var n [4]uint64
	for i, at := range []int{1, 3, 4, 5} {
		var err error
		if n[i], err = strconv.ParseUint(strings.TrimPrefix(f[at], "p"), 10, 64); err != nil {
			tw.t.Fatal(err)
		}
	}
	x := peer.Transfer{To: strings.TrimPrefix(f[2], "-"), Done: n[1], Total: n[2], BytesPerSecond: n[3], Since: time.Now().UnixNano()}
	tw.damaged = map[string]peer.PartitionStats{f[0] + ":8430": {ID: point.PartitionID(n[0]), Transfers: []peer.Transfer{x}}}
}

// beat renews the heartbeats of running servers, and the master's row if there is a master.
func (tw *town) beat(master string) {
	tw.n++
	for s := range tw.runs {
		tw.write(lease.BeatKey(s), lease.Beat{Server: s, Boot: "boot-" + lease.Boot(s), Store: "d-" + lease.StoreID(s), N: tw.n, Load: 0.25, Writes: tw.writes[s], Time: time.Now()}.Encode())
	}
	if master != "" {
		tw.write("master", holder(master, tw.n))
	}
}

func holder(s string, n uint64) []byte {
	return master.Holder{Holder: topology.ServerID(s), Boot: "b", N: n}.Encode()
}

// cli are the commands of this package, under the names that main gives them.
type cli struct {
	Table     Table     `cmd:""`
	Partition Partition `cmd:""`
	Server    Server    `cmd:""`
	Master    Master    `cmd:""`
	Presplit  Presplit  `cmd:""`
	Doctor    Doctor    `cmd:""`
	Audit     Audit     `cmd:""`
}

// command parses a command line as main does, and runs it in the town.
func (tw *town) command(line []string) string {
	tw.t.Helper()
	var c cli
	var out strings.Builder
	parser, err := kong.New(&c, kong.Name("spillway"), kong.Writers(&out, &out), kong.Exit(func(int) {}))
	if err != nil {
		tw.t.Fatal(err)
	}
	ctx, err := parser.Parse(line)
	if err != nil {
		return "usage: " + err.Error() + "\n"
	}
	log := slog.New(slog.DiscardHandler)
	a := tw.open(log)
	defer func() {
		if err := a.close(); err != nil {
			tw.t.Error(err)
		}
	}()
	type runnable interface {
		run(ctx context.Context, a *admin) error
		flags() *Flags
	}
	cmd := ctx.Selected().Target.Addr().Interface().(runnable)
	a.out, a.json, a.by, a.listen = &out, cmd.flags().Output == "json", "ann@desk", time.Second
	beating, stop := context.WithCancel(tw.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for beating.Err() == nil {
			tw.beat("s1")
			_ = pause(beating, 20*time.Millisecond)
		}
	}()
	err = cmd.run(tw.t.Context(), a)
	stop()
	<-done
	var code terminal.ExitCode
	switch {
	case errors.As(err, &code):
		out.WriteString(code.Error() + "\n")
	case err != nil:
		out.WriteString("spillway: " + err.Error() + "\n")
	}
	return out.String()
}

// keepOpen is a store that stays open when its user closes it.
type keepOpen struct{ coord.Store }

func (keepOpen) Close() error { return nil }

// steady removes the parts of an output that differ each time, and keeps their width where there are columns.
func steady(s string) string {
	replace := func(pattern string, f func(string) string) {
		s = regexp.MustCompile(pattern).ReplaceAllStringFunc(s, f)
	}
	to := func(text string) func(string) string { return func(string) string { return text } }
	replace(`\b[0-9a-f]{16}\b`, func(id string) string {
		if strings.Trim(id, "0") == "" || strings.Trim(id[1:], "0") == "" || strings.Trim(id[1:], "f") == "" {
			return id // of the ring, not of a placement
		}
		return "<placement.....>"
	})
	replace(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, func(text string) string {
		if v, err := time.Parse(time.RFC3339Nano, text); err == nil && time.Since(v).Abs() > 48*time.Hour {
			return text
		}
		return "<......just now....>"
	})
	replace(`silent for \d+s`, to("silent for 0s"))
	replace(`epoch \d\d+`, to("epoch 20"))
	replace(`for \d+s, by`, to("for 0s, by"))
	replace(`--confirm=[0-9a-f]{8}\b`, to("--confirm=<token>"))
	replace(`"silent_seconds": [0-9.e+-]+`, to(`"silent_seconds": 0.5`))
	replace(` +\n`, to("\n"))
	return s
}

// TestAdmin plays testdata/admin: command lines of people, and their output. Besides commands of spillway a script has
//
//	servers   one a line: s1 host=a zone=x [staging=table] [copies=on] [down]; registers them, and they beat unless they are down
//	cover     table and times: as if writes came there
//	lease     partition, state, holder, in sync: as package lease would write the row
//	damage    server, partition, the damage it reports
//	transfer  server, partition, the server or - for its heirs, bytes that are there, of how many, bytes a second: as a leader reports it
//	cut       from now on no server can be dialled
//	delete    a row
//	write     a row, with the text as its value
func TestAdmin(t *testing.T) {
	datadriven.Walk(t, filepath.Join("testdata", "admin"), func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC))) // a bubble's clock begins before the times in scripts
			playTown(t, path)
		})
	})
}

// playTown plays a script in a bubble: the doctor listens to heartbeats for a second each time, which passes when all goroutines wait. So a
// server that beats is never silent because the machine is busy.
func playTown(t *testing.T, path string) {
	tw := newTown(t)
	token := ""
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "servers":
			for _, line := range strings.Split(d.Input, "\n") {
				tw.server(strings.Fields(line))
			}
			return ""
		case "cover", "lease", "begin-drop":
			for _, line := range strings.Split(d.Input, "\n") {
				tw.row(d.Cmd, strings.Fields(line))
			}
			return ""
		case "damage":
			f := strings.SplitN(d.Input, " ", 3)
			id, err := strconv.ParseUint(strings.TrimPrefix(f[1], "p"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			tw.damaged = map[string]peer.PartitionStats{f[0] + ":8430": {ID: point.PartitionID(id), Damaged: f[2]}}
			return ""
		case "differ":
			f := strings.SplitN(d.Input, " ", 3)
			id, err := strconv.ParseUint(strings.TrimPrefix(f[1], "p"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			tw.damaged = map[string]peer.PartitionStats{f[0] + ":8430": {ID: point.PartitionID(id), Differs: f[2]}}
			return ""
		case "transfer":
			tw.transfer(strings.Fields(d.Input))
			return ""
		case "cut": // no server can be dialled
			tw.cut = true
			return ""
		case "delete":
			if _, _, err := tw.store.Commit(t.Context(), nil, []coord.Write{{Key: strings.TrimSpace(d.Input), Delete: true}}); err != nil {
				t.Fatal(err)
			}
			return ""
		case "write":
			key, text, _ := strings.Cut(d.Input, " ")
			tw.write(key, []byte(text))
			return ""
		case "spillway":
			out := ""
			for _, line := range strings.Split(d.Input, "\n") {
				time.Sleep(time.Millisecond) // of the bubble: two commands are not of the same moment
				words := words(strings.ReplaceAll(line, "<token>", token))
				text := tw.command(words)
				if m := regexp.MustCompile(`--confirm=([0-9a-f]{8})\b`).FindStringSubmatch(text); m != nil {
					token = m[1]
				}
				out += "$ spillway " + line + "\n" + text
			}
			return steady(out)
		}
		t.Fatalf("unknown command %s", d.Cmd)
		return ""
	})
}

// TestASetOfNothingIsRefused: it changed nothing, and said that the table was set.
func TestASetOfNothingIsRefused(t *testing.T) {
	err := (&TableSet{Table: "cpu", TableFlags: TableFlags{URL: "http://127.0.0.1:1"}}).Run()
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "nothing to set") {
		t.Error(err)
	}
}

// words cuts a line at spaces, but not within quotes.
func words(line string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`(?:[^\s"]|"[^"]*")+`).FindAllString(line, -1) {
		out = append(out, strings.ReplaceAll(m, `"`, ""))
	}
	return out
}

func (tw *town) server(f []string) {
	s := registry.Server{ID: topology.ServerID(f[0]), Addr: f[0] + ":8430", Host: "h" + f[0], Store: lease.StoreID("d-" + f[0]), Version: "v1", Since: time.Unix(1700000000, 0).UTC()}
	up := true
	for _, kv := range f[1:] {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "host":
			s.Host = v
		case "zone":
			s.Zone = v
		case "staging":
			s.Staging = v
		case "copies":
			s.Copies = v
		case "down":
			up = false
		}
	}
	if err := registry.Register(tw.t.Context(), tw.store, s, false, nil); err != nil {
		tw.t.Fatal(err)
	}
	tw.runs[s.ID] = up
	if !up {
		delete(tw.runs, s.ID)
	}
}

func (tw *town) row(kind string, f []string) {
	tw.t.Helper()
	a := tw.open(slog.New(slog.DiscardHandler))
	defer func() {
		if err := a.close(); err != nil {
			tw.t.Error(err)
		}
	}()
	if kind == "begin-drop" { // a command that died half-way
		if err := a.tables.BeginDrop(tw.t.Context(), f[0]); err != nil {
			tw.t.Fatal(err)
		}
		return
	}
	if kind == "cover" {
		var times []point.Nanos
		for _, s := range f[1:] {
			v, err := time.Parse(time.RFC3339, s)
			if err != nil {
				tw.t.Fatal(err)
			}
			times = append(times, v.UnixNano())
		}
		if _, err := a.tables.Cover(tw.t.Context(), f[0], times); err != nil {
			tw.t.Fatal(err)
		}
		return
	}
	// cpu p1 held s1 s1 s2
	var id partitionID
	if err := id.UnmarshalText([]byte(f[1])); err != nil {
		tw.t.Fatal(err)
	}
	p := lease.Partition{Table: f[0], ID: point.PartitionID(id)}
	m, ok := a.tables.Get(f[0])
	if !ok {
		tw.t.Fatalf("no table %s", f[0])
	}
	part, ok := m.ByID(p.ID)
	if !ok {
		tw.t.Fatalf("no %s", p)
	}
	row := lease.Lease{State: lease.State(f[2]), Holder: topology.ServerID(f[3]), Boot: lease.Boot("boot-" + f[3]), Store: lease.StoreID("d-" + f[3]), Epoch: 7}
	for _, s := range f[4:] {
		pl, ok := part.On(topology.ServerID(s))
		if !ok {
			tw.t.Fatalf("%s is not on %s: %s", p, s, part)
		}
		row.InSync = append(row.InSync, lease.Member{Placement: pl.ID, Server: pl.Server, Store: lease.StoreID("d-" + s)})
	}
	tw.write(lease.RowKey(p), row.Encode())
	tw.write(lease.BornKey(p), []byte(`{"v":1}`))
}

// TestEveryAdminCommandHasItsFlags: a command without --coord, -o and --by would be useless in a script.
func TestEveryAdminCommandHasItsFlags(t *testing.T) {
	var c cli
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, leaf := range parser.Model.Leaves(true) {
		if !leaf.Target.FieldByName("Flags").IsValid() {
			continue
		}
		seen++
		names := map[string]bool{}
		for _, group := range leaf.AllFlags(true) {
			for _, f := range group {
				names[f.Name] = true
			}
		}
		for _, want := range []string{"coord", "coord.password-file", "peer.tls.ca", "dev.insecure-peers", "output", "by", "timeout"} {
			if !names[want] {
				t.Errorf("%s has no --%s", leaf.Path(), want)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d commands seen", seen)
	}
}

// TestAnAuditRowIsReadAsItWasWritten covers every length.
func TestAnAuditRowIsReadAsItWasWritten(t *testing.T) {
	l := auditLine{When: time.Unix(1700000000, 5).UTC(), Who: "ann@desk", What: "bump cpu/7", Reason: "slow", Outcome: "done"}
	const golden = `{"v":1,"when":"2023-11-14T22:13:20.000000005Z","who":"ann@desk","what":"bump cpu/7","reason":"slow","outcome":"done"}`
	if string(l.encode()) != golden {
		t.Errorf("stored as %s", l.encode())
	}
	if got, err := decodeAudit(coord.Row{Value: []byte(golden)}); err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("read as %+v %v", got, err)
	}
	for i := range golden {
		if _, err := decodeAudit(coord.Row{Value: []byte(golden[:i])}); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", golden[:i], err)
		}
	}
}

// TestAuditIsBounded: the oldest lines go.
func TestAuditIsBounded(t *testing.T) {
	store := coordmem.New()
	a, err := openAdmin(t.Context(), store, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for i := range auditMax + 5 {
		if err := a.act(t.Context(), "", "thing", func() error { return nil }); err != nil {
			t.Fatal(i, err)
		}
	}
	rows, _, err := store.List(t.Context(), AuditPrefix)
	if err != nil || len(rows) != auditMax {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
}

func TestAFailureToLookIsNoHealth(t *testing.T) {
	c := Doctor{StatusFlags{URL: "http://127.0.0.1:1", Flags: Flags{Timeout: time.Second}}}
	err := c.Run()
	var coder interface{ ExitCode() int }
	if !errors.As(err, &coder) || coder.ExitCode() != 2 || !fault.Is(err, fault.Unavailable) {
		t.Errorf("where nothing listens: %v", err)
	}
}

// flags returns the flags of a command.
func (f *Flags) flags() *Flags { return f }

// TestALongReasonHidesNoServer: a row of a server or a lease that is longer than readers accept is not read. The server was gone from every list, and could not start again.
func TestALongReasonHidesNoServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tw := newTown(t)
		tw.server([]string{"s1", "zone=a"})
		long := strings.Repeat("x", 70_000)
		if out := tw.command([]string{"server", "drain", "s1", "--reason", long}); !strings.Contains(out, "at most 500 are kept") {
			t.Errorf("drain: %.200s", out)
		}
		err := registry.Change(t.Context(), tw.store, "s1", func(s *registry.Server) { s.Drain = &lease.Note{Who: "ann", Reason: long} })
		if !fault.Is(err, fault.TooLarge) {
			t.Errorf("the row is written: %v", err)
		}
		if out := tw.command([]string{"server", "list"}); !strings.Contains(out, "s1:8430") {
			t.Errorf("s1 is gone: %s", out)
		}
	})
}
