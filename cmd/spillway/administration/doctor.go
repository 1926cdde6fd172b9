package administration

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/spillwaydb/spillway/cmd/spillway/figures"
	"github.com/spillwaydb/spillway/cmd/spillway/findings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	following "github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Doctor reports the faults of a cluster, and their remedies (C116, C126). It ends with 0 when there is none, with 1 when
// something needs a look but everything is served, and with 2 when something is not served, or the cluster cannot be seen.
type Doctor struct {
	StatusFlags `embed:""`
}

// Run examines a cluster, or a process that is alone.
func (c *Doctor) Run() error {
	if c.alone() {
		return c.runAlone()
	}
	err := c.with(c.run)
	if err == nil || err == error(terminal.Degraded) || err == error(terminal.Broken) {
		return err
	}
	return terminal.Unseen(err)
}

func (c *Doctor) run(ctx context.Context, a *admin) error {
	before, _, err := a.store.Get(ctx, master.Key)
	if err != nil {
		return err
	}
	s, rows, err := a.look(ctx)
	if err != nil {
		return err
	}
	e := examination{admin: a, s: s, rows: rows, live: map[topology.ServerID]bool{}, report: []findings.Finding{}}
	for _, srv := range s.Servers {
		e.live[srv.ID] = srv.Live
	}
	for _, table := range slices.Sorted(maps.Keys(a.lacking)) {
		e.broken("no map", cmp.Or(table, "cluster"), a.lacking[table].Error(), "start the storage servers that keep it")
	}
	e.unreadable()
	e.dead()
	if err := e.refused(ctx); err != nil {
		return err
	}
	e.ownClock(time.Now().UnixNano())
	e.deadHolders()
	e.mixedCopies()
	e.fewServers()
	if err := e.metadata(ctx); err != nil {
		return err
	}
	e.partitions()
	e.damaged(ctx)
	// A renewal comes every second; the look above waited as long as a.listen only if a server was silent.
	for deadline := a.listen; ; deadline -= a.listen / 10 {
		moves, err := a.masterMoves(ctx, before)
		if err != nil {
			return err
		}
		if moves {
			break
		}
		if deadline <= 0 {
			e.degraded("no master", "cluster", "no server renews the master's row: nothing is repaired, dropped or made ahead", "start a storage server, or look at the logs of those that run")
			break
		}
		if err := pause(ctx, a.listen/10); err != nil {
			return err
		}
	}
	return e.print()
}

// examination is one examination of a cluster.
type examination struct {
	*admin
	s      master.State
	rows   *master.Rows
	live   map[topology.ServerID]bool
	report []findings.Finding
	causes map[int]string // of findings, by their place in report: those of one cause are printed as one
}

func (e *examination) add(severity, kind, subject, what, do string) {
	e.report = append(e.report, findings.Finding{Severity: severity, Kind: kind, Subject: subject, What: what, Do: do})
}

// dueTo names the cause of the last finding: a server, or several. A dead server with a thousand tables would be a thousand findings.
func (e *examination) dueTo(cause string) {
	if e.causes == nil {
		e.causes = map[int]string{}
	}
	e.causes[len(e.report)-1] = cause
}

// grouped returns the findings with those of one kind, cause and remedy as one, in the place of the first of them.
func (e *examination) grouped() []findings.Finding {
	type group struct{ severity, kind, cause, do string }
	of, out := map[group][]findings.Finding{}, []findings.Finding{}
	key := func(i int) (g group, ok bool) {
		cause, ok := e.causes[i]
		return group{e.report[i].Severity, e.report[i].Kind, cause, e.report[i].Do}, ok
	}
	for i, f := range e.report {
		if g, ok := key(i); ok {
			of[g] = append(of[g], f)
		}
	}
	for i, f := range e.report {
		g, ok := key(i)
		switch all := of[g]; {
		case !ok || len(all) == 1:
			out = append(out, f)
		case len(all) > 1:
			f.Subject, f.What = g.cause, fmt.Sprintf("%d times, the first of %s: %s; and of %s", len(all), f.Subject, f.What, listOf(all[1:], func(f findings.Finding) string { return f.Subject }))
			out = append(out, f)
			of[g] = nil
		}
	}
	return out
}

func (e *examination) broken(kind, subject, what, do string) {
	e.add("broken", kind, subject, what, do)
}

func (e *examination) degraded(kind, subject, what, do string) {
	e.add("degraded", kind, subject, what, do)
}

func (e *examination) print() error {
	partitions := 0
	for _, m := range e.s.Tables {
		partitions += m.Len()
	}
	return printFindings(e.admin, e.grouped(), len(e.s.Servers), len(e.s.Tables), partitions)
}

// unreadable reports rows that this build cannot read.
func (e *examination) unreadable() {
	bad := e.rows.Unreadable()
	for _, key := range slices.Sorted(maps.Keys(bad)) {
		e.broken("unreadable row", key, bad[key].Error(), "update the binaries if a newer one wrote it; else delete it, and restore the partition")
	}
	if len(e.s.Servers) == 0 {
		e.broken("no servers", "cluster", "no storage server ever registered", "start one")
	}
}

// dead reports servers with a heartbeat that does not change.
func (e *examination) dead() {
	for _, srv := range e.s.Servers {
		r := showServer(&e.s, srv)
		switch {
		case !srv.Live && r.OnlyCopy > 0:
			e.broken("dead server", string(srv.ID), fmt.Sprintf("silent for %s, and only it has the rows of %d partitions", since(srv.For), r.OnlyCopy), "start it, with its store directory")
		case !srv.Live && e.onDead(srv.ID) > 0:
			e.broken("dead server", string(srv.ID), fmt.Sprintf("silent for %s, as are the other servers that have all rows of %d partitions", since(srv.For), e.onDead(srv.ID)), "start it, with its store directory")
		case !srv.Live:
			e.degraded("dead server", string(srv.ID), fmt.Sprintf("silent for %s, %d placements, METADATA files of %d tables", since(srv.For), r.Placements, r.Metadata), e.deadDo(srv, r.Placements+r.Metadata == 0))
		case srv.Unreached != "":
			report, only := e.degraded, ""
			if r.OnlyCopy > 0 {
				report, only = e.broken, fmt.Sprintf("; only it has the rows of %d partitions", r.OnlyCopy)
			}
			report("unreached server", string(srv.ID), fmt.Sprintf("no process has reached it at %s: %s; it gets no partitions, and leads none that another can lead%s", srv.Addr, srv.Unreached, only), "set its peer.advertise to an address at which gateways and the other servers reach it, and for which its certificate is, or open the way there; then restart it")
		case srv.Beat.ClockAhead != 0:
			e.degraded("clock off", string(srv.ID), fmt.Sprintf("its clock is %v ahead of the median of the servers' clocks: it releases the partitions that others can lead, and acquires none", srv.Beat.ClockAhead.Round(time.Millisecond)), "set the clock right, and look at its time service")
		case srv.Beat.ReadOnly != "":
			e.broken("read-only server", string(srv.ID), srv.Beat.ReadOnly, "make room on its disk; until then its partitions are read, and writes to them are refused")
		case srv.Beat.Fsync >= fsyncHung: // an fsync that runs counts
			others := "the partitions that it has stay as they are: it is not known to be the only such disk"
			if srv.Beat.SlowDisk {
				others = "it releases the partitions that others can lead, and writers do not wait for it where two other copies at least are in sync"
			}
			e.broken("disk hangs", string(srv.ID), fmt.Sprintf("an fsync of its log has been running for %v, or lasts that long: no row is acked there meanwhile; %s", srv.Beat.Fsync.Round(time.Second), others),
				"look at its device: dmesg, SMART data; replace it, and start the server with an empty directory. docs/runbooks/SpillwayDiskHangs.md")
		case srv.Beat.SlowDisk:
			e.degraded("slow disk", string(srv.ID), fmt.Sprintf("an fsync of its log lasts %v, far longer than on the other servers: writers do not wait for it where two other copies at least are in sync, and it releases the partitions that others can lead", srv.Beat.Fsync.Round(time.Millisecond)), "look at its disk, and what else writes there: `iostat -x 1`; it is used again by itself once it has been well for a minute, or longer if it was slow before")
		case srv.Drain != nil:
			e.degraded("drained server", string(srv.ID), fmt.Sprintf("%s; %d placements, %d of them of partitions without rows, and the METADATA files of %d tables are left, it leads %d", r.Drain, r.Placements, r.Empty, r.Metadata, r.Leads), "wait, then stop it and remove it; or undrain it")
		}
	}
}

// fsyncHung is from when on an fsync says that a disk hangs. The log of its server says it from then on, too.
const fsyncHung = 10 * time.Second

// refused reports processes that do not register, as another one answers at their address.
func (e *examination) refused(ctx context.Context) error {
	all, err := registry.AllRefused(ctx, e.store, time.Now())
	for _, r := range all {
		e.broken("wrong address", string(r.ID), fmt.Sprintf("it runs on host %s, and does not register: %s", r.Host, r.Why), "set its peer.advertise (--peer.advertise) right and restart it")
	}
	return err
}

// cutOff reports live servers that others do not reach.
func (e *examination) cutOff(by map[string][]topology.ServerID, why map[string]string) {
	for _, id := range slices.Sorted(maps.Keys(by)) {
		e.degraded("cut off", id, fmt.Sprintf("its heartbeats come, and it is not reached from %s: %s", joinIDs(by[id]), why[id]),
			"see that peer.advertise of "+id+" is an address that the others reach, and look at firewalls, names and certificates between them; until then its copies fall behind, and rows for what it leads are staged")
	}
}

// onDead counts the partitions with all rows on this server and on no live one.
func (e *examination) onDead(id topology.ServerID) (n int) {
	for _, l := range e.s.Leases {
		here := slices.ContainsFunc(l.InSync, func(m lease.Member) bool { return m.Server == id })
		if here && !l.Empty && !slices.ContainsFunc(l.InSync, func(m lease.Member) bool { return e.live[m.Server] }) {
			n++
		}
	}
	return n
}

// deadDo returns what to do about a dead server of which live servers have all rows, as far as maps are there; empty: no map names it.
func (e *examination) deadDo(srv master.Server, empty bool) string {
	switch {
	case len(e.admin.lacking) > 0:
		return "start it, with its store directory: it may hold rows of the tables that `no map` names"
	case srv.Staging != "":
		return "start it, with its store directory: it may hold staged rows, as `dead holder` says"
	case empty:
		return "start it, or remove it: it holds nothing"
	}
	do := fmt.Sprintf("start it; if its directory is gone, start another under its name: `spillway storage --id %s --replace-store`", srv.ID)
	enough := true
	for _, m := range e.s.Tables {
		enough = enough && m.Config.Replicas <= e.hostsWithout(srv.ID)
	}
	switch {
	case !enough:
		return do + "; its copies cannot be made elsewhere, as there are too few other hosts: to give it up, start a storage server on a host of its own first"
	case srv.Drain != nil:
		return do + "; or wait until its drain has left it no placements, and remove it"
	default:
		return do + "; or drain it and remove it"
	}
}

// hostsWithout counts the hosts of other live servers that may get placements.
func (e *examination) hostsWithout(id topology.ServerID) int {
	hosts := map[string]bool{}
	for _, srv := range e.s.Servers {
		if srv.ID != id && srv.Live && srv.Takes() {
			hosts[srv.Host] = true
		}
	}
	return len(hosts)
}

// ownClock compares the clock of the machine that the command runs on, often that of a gateway, with those of the servers that live: their heartbeats are of seconds ago.
func (e *examination) ownClock(now point.Nanos) {
	var servers clock.Peers
	for _, srv := range e.s.Servers {
		if srv.Live && !srv.Beat.Time.IsZero() {
			servers.Observe(string(srv.ID), srv.Beat.Time.UnixNano(), 0)
		}
	}
	if s := servers.Look(now, 0); s.Verdict == clock.Off {
		ahead := time.Duration(now - s.Ref).Round(time.Second)
		e.degraded("clock off", "this machine", fmt.Sprintf("its clock is %v ahead of the median of the storage servers' clocks: a gateway here goes by that median", ahead), "set the clock right, and look at its time service")
	}
}

// mixedCopies reports live servers of which some keep copies and some do not. A partition that both have is kept by fewer servers than its table asks for.
func (e *examination) mixedCopies() {
	var on, off []topology.ServerID
	for _, srv := range e.s.Servers {
		switch {
		case !srv.Live:
		case srv.Copies == registry.CopiesOn:
			on = append(on, srv.ID)
		case srv.Copies == registry.CopiesOff:
			off = append(off, srv.ID)
		}
	}
	if len(on) > 0 && len(off) > 0 {
		e.degraded("mixed copies", "cluster", fmt.Sprintf("storage.copies is on at %s and off at %s: rows are kept by fewer servers than their tables ask for, and writes wait where too few keep copies", joinIDs(on), joinIDs(off)),
			"set it alike on all, and restart those that differ one after the other")
	}
}

// fewServers reports tables that are to keep more copies than the cluster has hosts.
func (e *examination) fewServers() {
	hosts, most := e.hosts(), 0
	var few []string
	for _, m := range e.s.Tables {
		if m.Config.Replicas > hosts {
			few, most = append(few, m.Table), max(most, m.Config.Replicas)
		}
	}
	if len(few) > 0 && hosts > 0 {
		e.degraded("few servers", "cluster", fmt.Sprintf("there are storage servers on %d hosts, and %d tables are to keep each row on more: %s", hosts, len(few), strings.Join(few[:min(len(few), 4)], " ")),
			fmt.Sprintf("start storage servers until there are %d on hosts of their own: the copies are made by themselves; or accept it: `spillway table set … --replicas %d`", most, hosts))
	}
}

// hosts counts those on which partitions may get placements.
func (e *examination) hosts() int {
	hosts := map[string]bool{}
	for _, srv := range e.s.Servers {
		if srv.Drain == nil {
			hosts[srv.Host] = true
		}
	}
	return len(hosts)
}

// damaged asks the live servers for segments they cannot read.
func (e *examination) damaged(ctx context.Context) {
	rows := map[string]map[point.PartitionID]uint64{}
	defer func() { e.uneven(ctx, rows) }()
	unmapped := map[string][]topology.ServerID{}
	defer func() {
		for _, table := range slices.Sorted(maps.Keys(unmapped)) {
			e.broken("set back", table, joinIDs(unmapped[table])+" have rows of it, and the coordination store knows no such table: the store was restored from an older backup, or lost it",
				"`spillway table repair "+table+" --reason restored`; until then its rows are not read")
		}
	}()
	by, lastWhy := map[string][]topology.ServerID{}, map[string]string{} // servers that others do not reach
	defer func() { e.cutOff(by, lastWhy) }()
	var deaf []topology.ServerID // live, and without an answer
	var why error                // of the last of them
	defer func() { e.unseen(deaf, why) }()
	for _, srv := range e.s.Servers {
		st, ok := e.peers.Server(srv.ID)
		if !srv.Live {
			continue
		}
		if !ok {
			deaf, why = append(deaf, srv.ID), fault.Errorf(fault.Unavailable, "it cannot be dialled")
			continue
		}
		mapless, own := e.unmapped(ctx, st)
		for _, table := range mapless {
			unmapped[table] = append(unmapped[table], srv.ID)
		}
		e.fenced(srv.ID, own.Fence)
		for _, u := range own.Unreached {
			by[u.Server], lastWhy[u.Server] = append(by[u.Server], srv.ID), u.Why
		}
		reported := false
		stats, err := statsOf(ctx, e.s.Tables, st)
		if err != nil && srv.Unreached == "" { // else that is reported
			deaf, why = append(deaf, srv.ID), err
		}
		for i, held := range stats {
			if held == nil {
				continue
			}
			m := e.s.Tables[i]
			if held.LostFound != "" && !reported {
				reported = true
				e.degraded("lost and found", string(srv.ID), held.LostFound+": files that no catalogue entry names were put aside", "look at them; `spillway repair --dry-run` on the stopped server says whether rows are missing; rows in a file that ends with .surplus are put back as docs/runbooks/SpillwayLostAndFound.md says; remove them when they are not needed")
			}
			for i := range held.Staged {
				e.staged(m, srv.ID, &held.Staged[i])
			}
			if rows[m.Table] == nil {
				rows[m.Table] = map[point.PartitionID]uint64{}
			}
			for _, p := range held.ByPartition {
				rows[m.Table][p.ID] = max(rows[m.Table][p.ID], p.Rows) // of several copies
				switch at, ok := m.ByID(p.ID); {
				case p.Damaged == "":
				case ok && len(at.Placements) > 1:
					e.degraded("damaged copy", fmt.Sprintf("%s p%d on %s", m.Table, p.ID, srv.ID), p.Damaged, "another copy is read until then; if this stays for minutes, no copy has the file")
				default:
					e.broken("damaged segment", fmt.Sprintf("%s p%d on %s", m.Table, p.ID, srv.ID), p.Damaged, "until then it is not read, and not written after a restart; `spillway partition split` has its halves take new rows")
				}
				if p.Differs != "" {
					e.broken("copies differ", fmt.Sprintf("%s p%d led by %s", m.Table, p.ID, srv.ID), p.Differs, "keep the directories of all its servers; docs/runbooks/SpillwayCopiesDiffer.md says how to find the right copy; `spillway partition move … --from` takes the other one away, and it is filled anew")
				}
				if p.Unflushed != "" {
					e.broken("failing flush", fmt.Sprintf("%s p%d on %s", m.Table, p.ID, srv.ID), p.Unflushed, "it is tried again every minute; its rows are read and taken as ever, and the log grows until it goes well")
				}
			}
		}
	}
}

// fenced reports a store that was fenced before its server's process began.
func (e *examination) fenced(id topology.ServerID, f peer.PastFence) {
	if f.At == 0 {
		return
	}
	e.degraded("fenced before", string(id), fmt.Sprintf("its store was fenced at %s, and the process started anew since: %s", time.Unix(0, f.At).UTC().Format(time.RFC3339), f.Why),
		"docs/runbooks/SpillwayStoreFenced.md says what to look at; this goes away a day after the fence")
}

// unseen reports servers that send heartbeats and do not answer here: their rows are not known.
func (e *examination) unseen(deaf []topology.ServerID, why error) {
	if len(deaf) > 0 {
		e.degraded("not examined", joinIDs(deaf), fmt.Sprintf("heartbeats come, but not every answer: of segments, flushes and staged rows there not all is known; the last error: %v", why),
			"see that this host reaches peer.listen there, and that --peer.tls… are right; then run this again")
	}
}

// tablesAtOnce is how many tables are asked about at a time.
const tablesAtOnce = 8

// statser is the part of a server that describes its tables.
type statser interface {
	Stats(ctx context.Context, table string, topN int) (*peer.Stats, error)
}

// statsOf asks a server about tables. Those that it has no rows of are nil, and those of which it gave no answer: the error is the first of these. Once it is
// Unavailable no other table is asked about.
func statsOf(ctx context.Context, tables []*topology.Map, st statser) ([]*peer.Stats, error) {
	all := make([]*peer.Stats, len(tables))
	var one atomic.Pointer[error]
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(tablesAtOnce)
	for i, m := range tables {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			limited, cancel := context.WithTimeout(ctx, fetchMax)
			defer cancel()
			held, err := st.Stats(limited, m.Table, 0)
			switch {
			case err == nil:
				all[i] = held
			case fault.Is(err, fault.NotFound):
			case fault.Is(err, fault.Unavailable), fault.Is(err, fault.Canceled):
				return err
			default: // of this table alone
				err = fmt.Errorf("of table %s: %w", m.Table, err)
				one.CompareAndSwap(nil, &err)
			}
			return nil
		})
	}
	err := g.Wait()
	if first := one.Load(); err == nil && first != nil {
		err = *first
	}
	return all, err
}

// uneven reports tables of which one column of the ring gets far more rows than its share, and which series lie there.
func (e *examination) uneven(ctx context.Context, rows map[string]map[point.PartitionID]uint64) {
	for _, m := range e.s.Tables {
		hot := figures.Uneven(m, rows[m.Table])
		if hot == nil {
			continue
		}
		what := hot.String()
		for _, s := range on(hot.Newest) {
			st, ok := e.peers.Server(s)
			if !ok || !e.live[s] {
				continue
			}
			limited, cancel := context.WithTimeout(ctx, fetchMax)
			name, err := figures.Hottest(limited, st, m, hot.Newest)
			cancel()
			if err == nil && name != "" {
				what += "; " + name
				break
			}
		}
		e.degraded("uneven columns", fmt.Sprintf("%s p%d", m.Table, hot.Newest.ID), what,
			fmt.Sprintf("`spillway partition split %s %d --at ring-middle` divides that partition now, `spillway table set %s --weights …` lays out those to come", m.Table, hot.Newest.ID, m.Table))
	}
}

// fetchMax bounds the wait for a file from a metadata server.
const fetchMax = 5 * time.Second

// metadata asks the servers that keep each table's METADATA files for the committed one: without a majority that has it
// the map cannot be changed, so no partition can be made, moved or dropped.
func (e *examination) metadata(ctx context.Context) error {
	rows, _, err := e.store.List(ctx, mapstore.Prefix)
	if err != nil {
		return err
	}
	live := 0
	for _, srv := range e.s.Servers {
		if srv.Live && srv.Takes() {
			live++
		}
	}
	type kept struct {
		row     mapstore.Row
		lack    []topology.ServerID
		why     error
		setBack string
	}
	found := make([]kept, len(rows))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(tablesAtOnce)
	for i, row := range rows {
		g.Go(func() (err error) {
			k := &found[i]
			if k.row, k.lack, k.why, err = e.lacking(ctx, row); err == nil {
				k.setBack, err = e.setBack(ctx, row, k.row)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i := range rows {
		table, r, lack, why := mapstore.TableOf(rows[i].Key), found[i].row, found[i].lack, found[i].why
		have := len(r.Servers) - len(lack)
		switch few := min(master.MetadataServers, live); {
		case len(r.Servers) == 0:
		case have < len(r.Servers)/2+1:
			e.broken("no majority", table, fmt.Sprintf("%d of its %d metadata servers give transaction %d, so its map cannot be changed; the last answer of %s: %v", have, len(r.Servers), r.Seq, joinIDs(lack), why), "start "+joinIDs(lack)+", or one more storage server: the master has others keep it")
			e.dueTo(joinIDs(lack))
		case have < few:
			e.degraded("few metadata servers", table, fmt.Sprintf("%d servers keep its METADATA file, %d could", have, few), "wait: the master has others keep it, at once or 10 minutes after one died; `spillway master plan` shows what is coming")
			e.dueTo(cmp.Or(joinIDs(lack), "cluster"))
		}
		if what := found[i].setBack; what != "" {
			e.broken("set back", table, what, "`spillway table repair "+table+" --reason restored`; until then it gets no new partitions")
		}
	}
	return nil
}

// unmapped returns the tables of which a server has partitions or staged rows, and of which the coordination store has no row; and what else the server says of itself.
func (e *examination) unmapped(ctx context.Context, st peer.Storage) ([]string, *peer.Stats) {
	ctx, cancel := context.WithTimeout(ctx, fetchMax)
	defer cancel()
	held, err := st.Stats(ctx, "", 0)
	if err != nil {
		return nil, &peer.Stats{}
	}
	return slices.DeleteFunc(held.Unmapped, func(table string) bool {
		_, there, err := e.store.Get(ctx, mapstore.Key(table))
		return there || err != nil
	}), held
}

// setBack says how a table's row in the coordination store is older than a map that a server acted by: the store was restored from a backup. "": it is not, or it
// changes while this runs.
func (e *examination) setBack(ctx context.Context, row coord.Row, r mapstore.Row) (what string, err error) {
	if r.Seq == 0 || r.Dropped {
		return "", nil
	}
	n, err := e.newest(ctx, mapstore.TableOf(row.Key), r, "")
	if err != nil || n.File.Seq < r.Seq || n.File.Txn == r.Txn || n.Witness == "" { // what no server acted by may be on its way
		return "", nil
	}
	now, there, err := e.store.Get(ctx, row.Key)
	if err == nil && there && now.Revision == row.Revision {
		what = fmt.Sprintf("the coordination store names transaction %d (%x) of its map, and %s acted by %d (%x): the store was restored from an older backup", r.Seq, r.Txn, n.Witness, n.File.Seq, n.File.Txn)
	}
	return what, err
}

// lacking returns the metadata servers that do not return a table's committed file, and the error of the last one. A file
// may be on its way: live servers are asked again for a moment. A dropped table, or one with an unreadable row, lacks no
// server.
func (e *examination) lacking(ctx context.Context, row coord.Row) (r mapstore.Row, lack []topology.ServerID, why, err error) {
	for deadline := e.listen; ; deadline -= e.listen / 10 {
		if r, err = mapstore.DecodeRow(row); err != nil || r.Dropped {
			return mapstore.Row{}, nil, nil, nil // reported as a table without a map
		}
		lack = nil
		wait := false
		for _, s := range r.Servers {
			if err := e.keeps(ctx, s, mapstore.TableOf(row.Key), r); err != nil {
				lack, why = append(lack, s), err
				wait = wait || fault.Is(err, fault.NotFound)
			}
		}
		if !wait || deadline <= 0 {
			return r, lack, why, nil
		}
		if err := pause(ctx, e.listen/10); err != nil {
			return r, nil, nil, err
		}
		if row, _, err = e.store.Get(ctx, row.Key); err != nil {
			return r, nil, nil, err
		}
	}
}

// keeps asks a server for the committed file. A silent server is not asked.
func (e *examination) keeps(ctx context.Context, s topology.ServerID, table string, r mapstore.Row) error {
	if !e.live[s] {
		return fault.Errorf(fault.Unavailable, "it is silent")
	}
	p, ok := e.peers.Metadata(s)
	if !ok {
		return fault.Errorf(fault.Unavailable, "it is not known")
	}
	ctx, cancel := context.WithTimeout(ctx, fetchMax)
	defer cancel()
	_, err := p.Fetch(ctx, &peer.FileQuery{Table: table, Txn: r.Txn, Since: r.Txn})
	return err
}

// partitions examines each partition's lease and placements. A fault that many partitions of a table share is reported
// once.
func (e *examination) partitions() {
	for _, m := range e.s.Tables {
		lack := map[topology.ServerID]bool{} // servers whose copies lack rows
		few, copies, want := []point.PartitionID{}, []point.PartitionID{}, min(m.Config.Replicas, max(e.hosts(), 1))
		for p := range m.All() {
			key := lease.Partition{Table: m.Table, ID: p.ID}
			l, ok := e.s.Leases[key]
			e.lease(key, p, l, ok)
			e.prohibited(key, p)
			if p.State == topology.Live && len(p.Placements) < want {
				few = append(few, p.ID)
			}
			if ok && l.State != "" && !l.Empty && len(l.InSync) < want {
				copies = append(copies, p.ID)
				lacking(p, l, lack)
			}
			if p.Incomplete {
				e.degraded("incomplete", key.String(), "rows may be missing for good: a person had it go on without the servers that held them", "restore them from a backup, or accept it")
			}
		}
		if len(few) > 0 {
			e.degraded("under-replicated", m.Table, fmt.Sprintf("%d of %d partitions have fewer than %d live placements: %s", len(few), m.Len(), want, partitionNames(few)), "start more servers, on other hosts; `spillway master plan` shows what is coming")
			e.dueTo("cluster")
		}
		if len(copies) > 0 {
			e.degraded("few copies", m.Table, fmt.Sprintf("of %d of %d partitions fewer than %d servers have all rows: %s", len(copies), m.Len(), want, partitionNames(copies))+copiesOn(lack), e.fewCopiesDo(lack))
			e.dueTo(cmp.Or(joinIDs(slices.Sorted(maps.Keys(lack))), "cluster"))
		}
	}
}

// fewCopiesDo returns what to do about too few copies, if those on the given servers lack rows.
func (e *examination) fewCopiesDo(lack map[topology.ServerID]bool) string {
	dead := slices.DeleteFunc(slices.Sorted(maps.Keys(lack)), func(s topology.ServerID) bool { return e.live[s] })
	do := "wait until the others have caught up"
	switch {
	case len(lack) > 0 && len(dead) == len(lack):
		return "bring back " + joinIDs(dead) + ", or replace it, as `dead server` says; the copies then catch up by themselves"
	case len(lack) > 0:
		do += "; a server that runs and stays here has a slow disk or link, or others do not reach it: look at its spillway_brick_fsync_seconds, and for its name in the log of the leader"
	}
	return do
}

// lacking adds the servers on which the map has a copy that is not in sync.
func lacking(p *topology.Partition, l lease.Lease, to map[topology.ServerID]bool) {
	for _, at := range p.Placements {
		if !slices.ContainsFunc(l.InSync, func(x lease.Member) bool { return x.Placement == at.ID }) {
			to[at.Server] = true
		}
	}
}

// copiesOn lists the servers whose copies lack rows. It is empty if all copies have all rows, and too few are placed.
func copiesOn(lack map[topology.ServerID]bool) string {
	if len(lack) == 0 {
		return ""
	}
	return "; not in sync: the copies on " + listOf(slices.Sorted(maps.Keys(lack)), func(s topology.ServerID) string { return string(s) })
}

func (e *examination) lease(key lease.Partition, p *topology.Partition, l lease.Lease, ok bool) {
	name := fmt.Sprintf("%s p%d", key.Table, key.ID)
	switch {
	case !ok && e.s.Born[key]:
		e.broken("missing lease", key.String(), "its lease row was deleted: it is not known which servers hold its rows", "spillway partition restore "+name)
	case !ok && !slices.ContainsFunc(p.Placements, func(pl topology.Placement) bool { return e.live[pl.Server] }):
		e.broken("unowned", key.String(), "no server led it yet, and none of its servers is live", "start one of "+joinIDs(on(p))+"; the master moves it if another is live")
		e.dueTo(joinIDs(on(p)))
	case !ok, l.State == "": // new, or reported as unreadable
	case l.Offline != nil:
		e.degraded("offline", key.String(), noted("offline", *l.Offline), "spillway partition online "+name)
	case l.State == lease.Held && !e.live[l.Holder]:
		e.broken("stale lease", key.String(), fmt.Sprintf("held by %s, which is silent, and no other server acquired it", l.Holder), e.mayTake(p, l))
		e.dueTo(string(l.Holder))
	case l.State == lease.Free && l.Epoch == 0 && following.MayBeUnled(p, time.Now().UnixNano()): // it was moved before it was ever led
	case l.State == lease.Free:
		e.broken("unowned", key.String(), "no server leads it", e.mayTake(p, l))
		e.dueTo(joinIDs(on(p)))
	case !slices.ContainsFunc(p.Placements, func(pl topology.Placement) bool { return pl.Server == l.Holder }):
		e.degraded("stale lease", key.String(), fmt.Sprintf("led by %s, where it has no placement any more", l.Holder), "wait; it releases the lease when it has the map")
	}
}

// mayTake names the servers that could lead.
func (e *examination) mayTake(p *topology.Partition, l lease.Lease) string {
	var ids []topology.ServerID
	for _, m := range l.InSync {
		ids = append(ids, m.Server)
	}
	if l.Vacant() {
		ids = on(p)
	}
	for _, s := range ids {
		if e.live[s] {
			return fmt.Sprintf("wait: %s may take it; if it does not, look at its log and at prohibitions", s)
		}
	}
	if l.Empty {
		return "wait: it has no rows, and the master moves it; or start one of " + joinIDs(ids)
	}
	return "start one of those in sync: " + joinIDs(ids)
}

func (e *examination) prohibited(key lease.Partition, p *topology.Partition) {
	no := slices.Sorted(slices.Values(e.s.No[key]))
	if len(no) == 0 {
		return
	}
	do := fmt.Sprintf("spillway partition allow %s p%d %s", key.Table, key.ID, no[0])
	if !slices.ContainsFunc(p.Placements, func(pl topology.Placement) bool { return !slices.Contains(no, pl.Server) }) {
		e.broken("prohibited", key.String(), "on all its servers: "+joinIDs(no), do)
		return
	}
	e.degraded("prohibited", key.String(), "on "+joinIDs(no), do)
}

func on(p *topology.Partition) []topology.ServerID {
	var out []topology.ServerID
	for _, pl := range p.Placements {
		out = append(out, pl.Server)
	}
	return out
}

// partitionNames lists a few partitions.
func partitionNames(ids []point.PartitionID) string {
	return listOf(ids, func(id point.PartitionID) string { return fmt.Sprintf("p%d", id) })
}

// listOf lists the names of the first few of all, and how many more there are.
func listOf[T any](all []T, name func(T) string) string {
	const shown = 5
	var out []string
	for _, x := range all[:min(len(all), shown)] {
		out = append(out, name(x))
	}
	if more := len(all) - shown; more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, " ")
}
