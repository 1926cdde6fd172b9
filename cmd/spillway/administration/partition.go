package administration

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/figures"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Partition has the commands that show partitions and steer them.
type Partition struct {
	List      partitionListCmd     `cmd:"" help:"List a table's partitions, with their leaders."`
	Show      PartitionShow        `cmd:"" help:"Show all that is known of a partition."`
	Split     PartitionSplit       `cmd:"" help:"Cut a partition in two."`
	Merge     partitionMergeCmd    `cmd:"" help:"Make one of neighbours whose time has passed, with their rows."`
	Bump      partitionBumpCmd     `cmd:"" help:"Have its leader release the lease at once, so that it is loaded again."`
	Move      PartitionMove        `cmd:"" help:"Have it moved from a server to another, with its rows."`
	Prohibit  partitionProhibitCmd `cmd:"" help:"Keep a partition off a server."`
	Allow     partitionAllowCmd    `cmd:"" help:"Take a prohibition back."`
	Offline   partitionOfflineCmd  `cmd:"" help:"Keep all servers from leading a partition."`
	Online    partitionOnlineCmd   `cmd:"" help:"Let it be led again."`
	Restore   PartitionRestore     `cmd:"" help:"Put a deleted lease row back."`
	ForceJoin PartitionForceJoin   `cmd:"" help:"Let it go on with one server although the disks that hold its rows are gone: they are lost."`
}

// PartitionArg names one partition.
type PartitionArg struct {
	Table string      `arg:"" help:"Table."`
	ID    partitionID `arg:"" name:"partition" help:"Partition: 7 or p7."`
}

func (p PartitionArg) key() lease.Partition {
	return lease.Partition{Table: p.Table, ID: point.PartitionID(p.ID)}
}

// path is where the administrators' port has the partition.
func (p PartitionArg) path() string { return fmt.Sprintf("%s/p%d", partitionsPath(p.Table), p.ID) }

// partitionID is written 7 or p7.
type partitionID point.PartitionID

// UnmarshalText reads 7 or p7.
func (p *partitionID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(string(text), "p"), 10, 64)
	*p = partitionID(n)
	return fault.Wrap(err, fault.Invalid, "%q is no partition: 7 or p7", text)
}

// MarshalText writes p7.
func (p partitionID) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "p%d", uint64(p)), nil
}

// partition returns the map and the partition. Errors are NotFound.
func (a *admin) partition(p PartitionArg) (*topology.Map, *topology.Partition, error) {
	m, err := a.table(p.Table)
	if err != nil {
		return nil, nil, err
	}
	part, ok := m.ByID(point.PartitionID(p.ID))
	if !ok {
		return nil, nil, fault.Errorf(fault.NotFound, "table %q has no p%d; `spillway partition list %s` shows those it has", p.Table, p.ID, p.Table)
	}
	return m, part, nil
}

// PartitionRow is a partition as shown.
type PartitionRow struct {
	Partition uint64   `json:"partition"`
	Begin     string   `json:"begin"`
	End       string   `json:"end"`
	Ring      string   `json:"ring,omitempty"`
	State     string   `json:"state"`
	Servers   []string `json:"servers"`
	Joining   []string `json:"joining,omitempty"`
	Leader    string   `json:"leader,omitempty"`
	Epoch     uint64   `json:"epoch,omitempty"`
	InSync    []string `json:"in_sync,omitempty"`
	Lease     string   `json:"lease"` // new, held, free, offline, lost, unreadable
	Empty     bool     `json:"empty"` // no row was ever acked
	Note      string   `json:"note,omitempty"`
	// Transfers are its rows on their way; of partition show alone.
	Transfers []ui.Transfer `json:"transfers,omitempty"`
}

func showPartition(s *master.State, table string, p *topology.Partition) PartitionRow {
	r := PartitionRow{Partition: uint64(p.ID), Begin: instant(p.TimeLo), End: instant(p.TimeHi), State: p.State.String()}
	if p.PointLo != 0 || p.PointHi != 0 {
		r.Ring = fmt.Sprintf("%016x-%016x", p.PointLo, p.PointHi-1)
	}
	for _, pl := range p.Placements {
		r.Servers = append(r.Servers, string(pl.Server))
	}
	for _, pl := range p.Joining {
		r.Joining = append(r.Joining, string(pl.Server))
	}
	key := lease.Partition{Table: table, ID: p.ID}
	r.Empty = s.Empty(key)
	l, ok := s.Leases[key]
	switch {
	case !ok && s.Born[key]:
		r.Lease = "lost"
	case !ok:
		r.Lease = "new"
	case l.State == "":
		r.Lease = "unreadable"
	default:
		r.Lease, r.Leader, r.Epoch = string(l.State), string(l.Holder), uint64(l.Epoch)
	}
	if l.State == lease.Free {
		r.Leader = ""
	}
	for _, m := range l.InSync {
		r.InSync = append(r.InSync, string(m.Server))
	}
	if l.Offline != nil {
		r.Lease, r.Note = "offline", noted("offline", *l.Offline)
	}
	if no := s.No[key]; len(no) > 0 {
		r.Note = strings.TrimPrefix(r.Note+", prohibited on "+joinIDs(slices.Sorted(slices.Values(no))), ", ")
	}
	if p.Incomplete {
		r.Note = strings.TrimPrefix(r.Note+", may be incomplete", ", ")
	}
	return r
}

func noted(what string, n lease.Note) string {
	return fmt.Sprintf("%s by %s at %s: %s", what, n.Who, n.When.Format(time.RFC3339), cmp.Or(n.Reason, "no reason given"))
}

type partitionListCmd struct {
	StatusFlags `embed:""`
	Table       string    `arg:"" help:"Table."`
	From        time.Time `name:"from" help:"Only those that hold times from then on (RFC 3339)."`
	To          time.Time `name:"to" help:"Only those that hold times up to then."`
}

// Run lists a table's partitions.
func (c *partitionListCmd) Run() error {
	if c.alone() {
		return c.runAlone()
	}
	return c.with(c.run)
}

func (c *partitionListCmd) run(ctx context.Context, a *admin) error {
	m, err := a.table(c.Table)
	if err != nil {
		return err
	}
	s, _, err := a.rows(ctx)
	if err != nil {
		return err
	}
	rows := []PartitionRow{}
	for p := range m.All() {
		if (c.From.IsZero() || time.Unix(0, p.TimeHi).After(c.From)) && (c.To.IsZero() || !time.Unix(0, p.TimeLo).After(c.To)) {
			rows = append(rows, showPartition(&s, c.Table, p))
		}
	}
	return a.print(rows, func(w io.Writer) {
		fmt.Fprintln(w, "PARTITION\tBEGIN\tEND\tRING\tSTATE\tSERVERS\tLEASE\tLEADER\tIN SYNC\tNOTE")
		for _, r := range rows {
			fmt.Fprintf(w, "p%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Partition, r.Begin, r.End, cmp.Or(r.Ring, "all"), r.State,
				strings.Join(append(slices.Clone(r.Servers), plus(r.Joining)...), " "), r.Lease, cmp.Or(r.Leader, "-"), cmp.Or(strings.Join(r.InSync, " "), "-"), cmp.Or(r.Note, "-"))
		}
	})
}

func plus(joining []string) []string {
	var out []string
	for _, s := range joining {
		out = append(out, "+"+s)
	}
	return out
}

// rows reads the lease table without waiting for heartbeats.
func (a *admin) rows(ctx context.Context) (master.State, *master.Rows, error) {
	rows := master.NewRows(func() time.Duration { return 0 }, time.Hour)
	list, rev, err := a.store.List(ctx, lease.Prefix)
	if err != nil {
		return master.State{}, nil, err
	}
	if err := rows.Listed(list, rev); err != nil {
		return master.State{}, nil, err
	}
	s := master.State{Now: time.Now().UnixNano(), Tables: a.maps()}
	rows.Fill(&s, a.servers.All())
	return s, rows, nil
}

// PartitionShow shows all that is known of a partition.
type PartitionShow struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
}

// Run shows a partition.
func (c *PartitionShow) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.show(c.path(), nil)
}

func (c *PartitionShow) run(ctx context.Context, a *admin) error {
	m, p, err := a.partition(c.PartitionArg)
	if err != nil {
		return err
	}
	if a.servers == nil {
		return c.showAlone(a, m, p)
	}
	s, rows, err := a.rows(ctx)
	if err != nil {
		return err
	}
	r := showPartition(&s, c.Table, p)
	l := s.Leases[c.key()]
	var moving error
	r.Transfers, moving = a.transfers(ctx, c.Table, p, topology.ServerID(r.Leader))
	return a.print(struct {
		PartitionRow
		Row *lease.Lease `json:"lease_row,omitempty"`
	}{r, leaseOrNil(l)}, func(w io.Writer) {
		fmt.Fprintf(w, "partition\tp%d of table %s, transaction %d\ntime\t%s … %s\nring\t%s\nstate\t%s\n", r.Partition, c.Table, m.Seq, r.Begin, r.End, cmp.Or(r.Ring, "all"), r.State)
		for _, pl := range p.Placements {
			fmt.Fprintf(w, "placement\t%s  %s\n", pl.ID, pl.Server)
		}
		for _, pl := range p.Joining {
			fmt.Fprintf(w, "joining\t%s  %s\n", pl.ID, pl.Server)
		}
		for _, child := range p.Children() {
			fmt.Fprintf(w, "child\t%s\n", child)
		}
		for _, x := range r.Transfers {
			fmt.Fprintf(w, "on its way\t%s\n", transferText(x))
		}
		if moving != nil {
			fmt.Fprintf(w, "on its way\tnot known: %v\n", moving)
		}
		switch r.Lease {
		case "new":
			fmt.Fprintln(w, "lease\tno server led it yet")
		case "lost":
			fmt.Fprintf(w, "lease\tthe row is gone: `spillway partition restore %s p%d` puts it back\n", c.Table, r.Partition)
		case "unreadable":
			fmt.Fprintf(w, "lease\tthe row cannot be read: %v\n", rows.Unreadable()[lease.RowKey(c.key())])
		default:
			fmt.Fprintf(w, "lease\t%s, last led by %s, boot %s, epoch %d\n", r.Lease, cmp.Or(string(l.Holder), "no server"), cmp.Or(string(l.Boot), "-"), l.Epoch)
		}
		if l.Empty {
			fmt.Fprintln(w, "rows\tnone was ever acked")
		}
		for _, member := range l.InSync {
			fmt.Fprintf(w, "in sync\t%s  %s, store %s\n", member.Placement, member.Server, member.Store)
		}
		for _, e := range l.Ends {
			fmt.Fprintf(w, "epoch end\t%d at %d\n", e.Epoch, e.Seq)
		}
		if l.Next != nil {
			fmt.Fprintf(w, "note\t%s\n", noted("to be handed to "+string(l.Next.Server), l.Next.Note))
		}
		if l.Bump != nil {
			fmt.Fprintf(w, "note\t%s\n", noted("bumped", *l.Bump))
		}
		if r.Note != "" {
			fmt.Fprintf(w, "note\t%s\n", r.Note)
		}
	})
}

// transfers asks the leader of a partition whose rows are on their way how far they are. Errors are those of the leader, and Unavailable (it cannot be dialled).
func (a *admin) transfers(ctx context.Context, table string, p *topology.Partition, leader topology.ServerID) ([]ui.Transfer, error) {
	if len(p.Joining) == 0 && p.State != topology.Unload || leader == "" {
		return nil, nil
	}
	st, ok := a.peers.Server(leader)
	if !ok {
		return nil, fault.Errorf(fault.Unavailable, "server %s cannot be dialled", leader)
	}
	stats, err := st.Stats(ctx, table, 0)
	if err != nil {
		return nil, err
	}
	all := figures.Transfers(p, leader, figures.TransfersOf(p.ID, stats), time.Now())
	figures.SetLeaving(all, p, figures.Leaves(p, table, a.servers.Get))
	return all, nil
}

// showAlone shows a partition of a process that is alone: it leads all, without leases.
func (c *PartitionShow) showAlone(a *admin, m *topology.Map, p *topology.Partition) error {
	s := master.State{Now: time.Now().UnixNano(), Tables: a.maps()}
	r := showPartition(&s, c.Table, p)
	r.Lease, r.Leader = "alone", string(settings.LocalServer)
	return a.print(r, func(w io.Writer) {
		fmt.Fprintf(w, "partition\tp%d of table %s, transaction %d\ntime\t%s … %s\nring\t%s\nstate\t%s\nlease\tnone: the process is alone, and leads all partitions\n", r.Partition, c.Table, m.Seq, r.Begin, r.End, cmp.Or(r.Ring, "all"), r.State)
		for _, child := range p.Children() {
			fmt.Fprintf(w, "child\t%s\n", child)
		}
	})
}

func leaseOrNil(l lease.Lease) *lease.Lease {
	if l.State == "" {
		return nil
	}
	return &l
}

// PartitionSplit cuts a partition in two.
type PartitionSplit struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
	At           string `name:"at" help:"Where: a time (RFC 3339), a ring point (0x8000000000000000), or time-middle, ring-middle."`
	Cancel       bool   `name:"cancel" help:"End a split instead, which its leader has not handed over yet: the partition stays whole."`
	Reason       string `name:"reason" help:"Why, for the audit."`
	DryRun       bool   `name:"dry-run" help:"Show the plan only."`
}

// Run splits a partition. One without any write is in two pieces at once; any other is first sealed by its leader.
func (c *PartitionSplit) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.order(c.path()+"/split", partitionOrder{At: c.At, Cancel: c.Cancel, Reason: c.Reason, DryRun: c.DryRun})
}

func (c *PartitionSplit) run(ctx context.Context, a *admin) error {
	if c.Cancel != (c.At == "") {
		return fault.Errorf(fault.Invalid, "--at says where the partition is split (time-middle, ring-middle, a time as 2026-03-01T12:00:00Z, or a ring point as 0x8000000000000000), --cancel ends a split: give one of them")
	}
	m, p, err := a.partition(c.PartitionArg)
	if err != nil {
		return err
	}
	if c.Cancel {
		return c.cancel(ctx, a, p)
	}
	cut, err := cutAt(c.At, p)
	if err != nil {
		return err
	}
	s, _, err := a.look(ctx)
	if err != nil {
		return err
	}
	if s.Growth, err = a.growth(ctx); err != nil { // the halves go where the least load is expected
		return err
	}
	step, err := master.SplitAt(s, master.Settings{}, a.rng, c.Table, p.ID, cut)
	if err != nil {
		return err
	}
	if c.DryRun {
		return a.done("would %s", step.What)
	}
	return a.act(ctx, c.Reason, "table "+c.Table+": "+step.What, func() error {
		if err := master.Do(ctx, a.store, a.tables, m, step, a.log); err != nil {
			return err
		}
		return a.done("%s", step.What)
	})
}

// cancel ends a split before the leader hands the partition over. Errors are NotFound: it is not being split; Invalid: it was handed over.
func (c *PartitionSplit) cancel(ctx context.Context, a *admin, p *topology.Partition) error {
	switch p.State {
	case topology.Splitting:
	case topology.Unload:
		var into []string
		for _, id := range p.Into {
			into = append(into, fmt.Sprintf("p%d", id))
		}
		return fault.Errorf(fault.Invalid, "%s was handed over to %s already, which is not taken back; `spillway partition merge` makes one of them, once their time has passed", c.key(), strings.Join(into, " and "))
	default:
		return fault.Errorf(fault.NotFound, "%s is not being split", c.key())
	}
	low, what := p.Split.Low.ID, fmt.Sprintf("end the split of %s into p%d and p%d", c.key(), p.Split.Low.ID, p.Split.High.ID)
	if c.DryRun {
		return a.done("would %s", what)
	}
	return a.act(ctx, c.Reason, what, func() error {
		_, err := a.tables.Change(ctx, c.Table, func(*topology.Map) ([]topology.Op, error) {
			return []topology.Op{topology.SplitAbort{Partition: p.ID, Low: low}}, nil
		})
		if err != nil {
			return err
		}
		return a.done("%s stays whole", c.key())
	})
}

type partitionMergeCmd struct {
	TableFlags `embed:""`
	Table      string        `arg:"" help:"Table."`
	IDs        []partitionID `arg:"" name:"partitions" help:"Neighbours, in order: p7 p8 p9."`
	Reason     string        `name:"reason" help:"Why, for the audit."`
	DryRun     bool          `name:"dry-run" help:"Show the plan only."`
}

// Run merges partitions. Their leaders move the rows; queries read all until that is done.
func (c *partitionMergeCmd) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.order(partitionsPath(c.Table)+"/merge", partitionOrder{Partitions: c.IDs, Reason: c.Reason, DryRun: c.DryRun})
}

func (c *partitionMergeCmd) run(ctx context.Context, a *admin) error {
	m, err := a.table(c.Table)
	if err != nil {
		return err
	}
	s, _, err := a.look(ctx)
	if err != nil {
		return err
	}
	var ids []point.PartitionID
	for _, id := range c.IDs {
		ids = append(ids, point.PartitionID(id))
	}
	step, err := master.MergeOf(s, master.Settings{}, a.rng, c.Table, ids)
	if err != nil {
		return err
	}
	if c.DryRun {
		return a.done("would %s", step.What)
	}
	return a.act(ctx, c.Reason, "table "+c.Table+": "+step.What, func() error {
		if err := master.Do(ctx, a.store, a.tables, m, step, a.log); err != nil {
			return err
		}
		return a.done("%s", step.What)
	})
}

// cutAt parses the place to cut a partition at.
func cutAt(text string, p *topology.Partition) (topology.Cut, error) {
	switch {
	case text == "time-middle":
		return topology.AtTime(p.TimeLo + (p.TimeHi-p.TimeLo)/2), nil
	case text == "ring-middle":
		return topology.AtRing(p.PointLo + (p.PointHi-1-p.PointLo)/2 + 1), nil
	case strings.HasPrefix(text, "0x"):
		r, err := strconv.ParseUint(text[2:], 16, 64)
		return topology.AtRing(r), fault.Wrap(err, fault.Invalid, "--at")
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return topology.Cut{}, fault.Wrap(err, fault.Invalid, "--at is neither a time such as 2006-01-02T15:04:05Z nor a ring point such as 0x8000000000000000")
	}
	at, err := nanosOf(t)
	return topology.AtTime(at), fault.Annotate(err, "--at")
}

// nanosOf is a time that a person gave. Errors are Invalid: no row can have it.
func nanosOf(t time.Time) (point.Nanos, error) {
	if at := t.UnixNano(); time.Unix(0, at).Equal(t) {
		return at, nil
	}
	return 0, fault.Errorf(fault.Invalid, "%s lies outside of the years 1678 to 2261, which rows can have", t.Format(time.RFC3339))
}

// changeLease changes a lease row by compare-and-swap. Errors are NotFound (there is none), Corrupt, Stale (it kept
// changing) or the store's.
func (a *admin) changeLease(ctx context.Context, p lease.Partition, f func(lease.Lease) (lease.Lease, error)) error {
	for range 10 {
		row, ok, err := a.store.Get(ctx, lease.RowKey(p))
		if err != nil {
			return err
		}
		if !ok {
			return fault.Errorf(fault.NotFound, "%s has no lease row: no server led it yet, or it was deleted (see `spillway partition show %s p%d`)", p, p.Table, p.ID)
		}
		l, err := lease.DecodeLease(row.Value)
		if err != nil {
			return err
		}
		next, err := f(l)
		if err != nil {
			return err
		}
		_, ok, err = a.store.Commit(ctx, []coord.Condition{{Key: row.Key, Revision: row.Revision}}, []coord.Write{{Key: row.Key, Value: next.Encode()}})
		if err != nil || ok {
			return err
		}
	}
	return fault.Errorf(fault.Stale, "the lease row of %s kept changing: try again", p)
}

type partitionBumpCmd struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
	Reason       string `name:"reason" help:"Why, for the audit." default:"by hand"`
}

// Run makes the leader release the lease at once (C121).
func (c *partitionBumpCmd) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.order(c.path()+"/bump", partitionOrder{Reason: c.Reason})
}

func (c *partitionBumpCmd) run(ctx context.Context, a *admin) error {
	return a.act(ctx, c.Reason, "bump "+c.key().String(), func() error {
		err := a.changeLease(ctx, c.key(), func(l lease.Lease) (lease.Lease, error) { return l.Bumped(a.note(c.Reason)), nil })
		if err != nil {
			return err
		}
		return a.done("%s is released by its leader, and acquired again", c.key())
	})
}

type partitionOfflineCmd struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
	Reason       string `name:"reason" required:"" help:"Why: it is shown in errors of the partition."`
}

// Run sets a partition offline (C123).
func (c *partitionOfflineCmd) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.order(c.path()+"/offline", partitionOrder{Reason: c.Reason})
}

func (c *partitionOfflineCmd) run(ctx context.Context, a *admin) error {
	return a.act(ctx, c.Reason, "take "+c.key().String()+" offline", func() error {
		err := a.changeLease(ctx, c.key(), func(l lease.Lease) (lease.Lease, error) {
			if l.Offline != nil {
				return l, fault.Errorf(fault.Invalid, "%s is %s already", c.key(), noted("offline", *l.Offline))
			}
			return l.TakenOffline(a.note(c.Reason)), nil
		})
		if err != nil {
			return err
		}
		return a.done("%s is offline until `spillway partition online %s p%d`", c.key(), c.Table, c.ID)
	})
}

type partitionOnlineCmd struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
	Reason       string `name:"reason" help:"Why, for the audit."`
}

// Run lets a partition be led again.
func (c *partitionOnlineCmd) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.order(c.path()+"/online", partitionOrder{Reason: c.Reason})
}

func (c *partitionOnlineCmd) run(ctx context.Context, a *admin) error {
	return a.act(ctx, c.Reason, "take "+c.key().String()+" online", func() error {
		err := a.changeLease(ctx, c.key(), func(l lease.Lease) (lease.Lease, error) {
			if l.Offline == nil {
				return l, fault.Errorf(fault.Invalid, "%s is not offline", c.key())
			}
			return l.TakenOnline(), nil
		})
		if err != nil {
			return err
		}
		return a.done("%s is online", c.key())
	})
}

type partitionProhibitCmd struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
	Server       topology.ServerID `arg:"" help:"Server."`
	Reason       string            `name:"reason" required:"" help:"Why."`
}

// Run keeps a partition off a server (C122). A holder there releases its lease.
func (c *partitionProhibitCmd) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.order(c.path()+"/prohibit", partitionOrder{Server: c.Server, Reason: c.Reason})
}

func (c *partitionProhibitCmd) run(ctx context.Context, a *admin) error {
	if _, _, err := a.partition(c.PartitionArg); err != nil {
		return err
	}
	if _, ok := a.servers.Get(c.Server); !ok {
		return fault.Errorf(fault.NotFound, "there is no server %q; `spillway server list` shows those there are", c.Server)
	}
	return a.act(ctx, c.Reason, fmt.Sprintf("prohibit %s on %s", c.key(), c.Server), func() error {
		if _, _, err := a.store.Commit(ctx, nil, []coord.Write{lease.Prohibit(c.key(), c.Server, a.note(c.Reason))}); err != nil {
			return err
		}
		return a.done("%s is not led by %s until `spillway partition allow %s p%d %s`", c.key(), c.Server, c.Table, c.ID, c.Server)
	})
}

type partitionAllowCmd struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
	Server       topology.ServerID `arg:"" help:"Server."`
	Reason       string            `name:"reason" help:"Why, for the audit."`
}

// Run removes a prohibition.
func (c *partitionAllowCmd) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.order(c.path()+"/allow", partitionOrder{Server: c.Server, Reason: c.Reason})
}

func (c *partitionAllowCmd) run(ctx context.Context, a *admin) error {
	row, ok, err := a.store.Get(ctx, lease.ProhibitKey(c.key(), c.Server))
	if err != nil {
		return err
	}
	if !ok {
		return fault.Errorf(fault.NotFound, "%s is not prohibited on %s", c.key(), c.Server)
	}
	return a.act(ctx, c.Reason, fmt.Sprintf("allow %s on %s", c.key(), c.Server), func() error {
		_, ok, err := a.store.Commit(ctx, []coord.Condition{{Key: row.Key, Revision: row.Revision}}, []coord.Write{lease.Allow(c.key(), c.Server)})
		if err == nil && !ok {
			err = fault.Errorf(fault.Stale, "the prohibition changed meanwhile: look again")
		}
		if err != nil {
			return err
		}
		return a.done("%s may be led by %s", c.key(), c.Server)
	})
}

// PartitionRestore writes a lease row again that was deleted.
type PartitionRestore struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
	Holds        []topology.ServerID `name:"holds" required:"" help:"The servers that hold every acked row, in chain order."`
	Confirm      string              `name:"confirm" help:"The token that the command prints without it."`
	Reason       string              `name:"reason" required:"" help:"What happened to the row."`
}

// Run restores a lease row that was deleted: only a person can know which servers held the rows. The row is written free,
// with an epoch below every server's next one, so that a server that it names acquires it at once.
func (c *PartitionRestore) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.order(c.path()+"/restore", partitionOrder{Holds: c.Holds, Confirm: c.Confirm, Reason: c.Reason})
}

func (c *PartitionRestore) run(ctx context.Context, a *admin) error {
	_, p, err := a.partition(c.PartitionArg)
	if err != nil {
		return err
	}
	born, ok, err := a.store.Get(ctx, lease.BornKey(c.key()))
	if err != nil {
		return err
	}
	if !ok {
		return fault.Errorf(fault.Invalid, "%s never had a lease row: its placements acquire the lease by themselves", c.key())
	}
	if _, ok, err := a.store.Get(ctx, lease.RowKey(c.key())); err != nil {
		return err
	} else if ok {
		return fault.Errorf(fault.Invalid, "%s has its lease row: there is nothing to put back", c.key())
	}
	row := lease.Lease{State: lease.Free, Epoch: point.Epoch(born.Revision)}
	for _, id := range c.Holds {
		pl, ok := p.On(id)
		srv, known := a.servers.Get(id)
		if !ok || !known {
			return fault.Errorf(fault.Invalid, "%s holds no live placement of %s, or is not registered: name servers that `spillway partition show %s p%d` shows", id, c.key(), c.Table, c.ID)
		}
		row.InSync = append(row.InSync, lease.Member{Placement: pl.ID, Server: id, Store: srv.Store})
	}
	h := fnv.New32a()
	fmt.Fprintf(h, "%s %d %s", c.key(), born.Revision, joinIDs(c.Holds)) // writing to a hash never fails
	token := fmt.Sprintf("%08x", h.Sum32())
	what := fmt.Sprintf("put the lease row of %s back, its rows held by %s", c.key(), joinIDs(c.Holds))
	if c.Confirm != token {
		return fault.Errorf(fault.Invalid, "this would %s. Rows that only others acked would be lost to readers, and then deleted. If that is meant, add --confirm=%s", what, token)
	}
	return a.act(ctx, c.Reason, what, func() error {
		// A holder that is still alive restores its row by itself: give it the time to.
		if _, _, err := a.look(ctx); err != nil {
			return err
		}
		_, ok, err := a.store.Commit(ctx, []coord.Condition{{Key: lease.RowKey(c.key())}, {Key: born.Key, Revision: born.Revision}},
			[]coord.Write{{Key: lease.RowKey(c.key()), Value: row.Encode()}})
		if err == nil && !ok {
			err = fault.Errorf(fault.Stale, "another command put the row back meanwhile: look again")
		}
		if err != nil {
			return err
		}
		return a.done("%s may be led again", c.key())
	})
}
