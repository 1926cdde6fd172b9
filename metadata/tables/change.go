package tables

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Plan makes the ops of a change, on a map that it must only look at; no ops mean that nothing needs to change.
type Plan = func(*topology.Map) ([]topology.Op, error)

// proposal is a plan and the caller that waits for its outcome.
type proposal struct {
	plan   Plan
	result chan outcome // of one

	mu struct {
		sync.Mutex // guards the fields; held while the plan runs
		abandoned  bool
	}
}

// errAbandoned ends a proposal that is still planned when its caller has left.
var errAbandoned = fault.Errorf(fault.Canceled, "the change was given up before it was proposed")

// ops calls the plan, unless the proposal was abandoned.
func (p *proposal) ops(m *topology.Map) ([]topology.Op, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.abandoned {
		return nil, errAbandoned
	}
	return p.plan(m)
}

// abandon returns when the plan does not run, and will not run any more.
func (p *proposal) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.abandoned = true
}

type outcome struct {
	m   *topology.Map
	err error
}

// queue is the proposals of one table. While it exists, a goroutine works on it.
type queue struct{ waiting []*proposal }

// groupMax bounds the proposals of one transaction.
const groupMax = 256

// Change commits the ops that plan makes of the newest map, and gives the map they lead to; others' changes may be in the
// same transaction. plan is called again on a newer map whenever another change was faster, from another goroutine, and never
// after Change has returned: a change that still waits then is not made. One that was proposed by then may be committed,
// unless RuleOut rules it out. Errors are plan's, Invalid or Stale (an op
// refuses), NotFound, Unavailable (it may or may not be committed: look, then plan again), Throttled or Canceled.
func (t *Tables) Change(ctx context.Context, name string, plan Plan) (*topology.Map, error) {
	p := &proposal{plan: plan, result: make(chan outcome, 1)}
	if err := t.enqueue(name, p); err != nil {
		return nil, err
	}
	select {
	case o := <-p.result:
		return o.m, o.err
	case <-ctx.Done():
		p.abandon()
		return nil, fault.Annotate(ctx.Err(), "change of table %q", name)
	}
}

// RuleOut returns when no change of a table that was proposed until now on the transaction seq, or on an earlier one, can be
// committed any more, from any proposer and at any coordinator: either it is committed already, as a map up to seq
// shows, or never will be. It needs the coordination store alone. Errors are NotFound, Unavailable or Canceled.
func (t *Tables) RuleOut(ctx context.Context, name string) (seq uint64, err error) {
	d, err := t.creator.RuleOut(ctx, name)
	if err != nil {
		return 0, err
	}
	t.learnRow(name, d.Row, d.Revision)
	return d.Row.Seq, nil
}

// Ready returns when a majority of a table's metadata servers has answered a small question, so that a change proposed now
// is likely to be committed soon. Errors are NotFound, Unavailable (no majority answers) or Canceled.
func (t *Tables) Ready(ctx context.Context, name string) error {
	_, row, err := t.known(ctx, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(row.Servers))
	for _, s := range row.Servers {
		go func() { answers <- t.answers(ctx, name, s) }()
	}
	var failed error
	for good, left := 0, len(row.Servers); left > 0; left-- {
		err := <-answers
		if failed = errors.Join(failed, err); err == nil {
			good++
		}
		if 2*good > len(row.Servers) {
			return nil
		}
	}
	return fault.Wrap(failed, fault.Unavailable, "table %q: no majority of its metadata servers answers", name)
}

// answers asks a metadata server for a file that no transaction has: a healthy server answers that it does not exist.
func (t *Tables) answers(ctx context.Context, name string, s topology.ServerID) error {
	p, ok := t.deps.Metadata(s)
	if !ok {
		return fault.Errorf(fault.Unavailable, "%s is not known or not connected", s)
	}
	limit, cancel := context.WithTimeout(ctx, t.settings.ServerTimeout)
	defer cancel()
	if _, err := p.Fetch(limit, &peer.FileQuery{Table: name}); err != nil && !fault.Is(err, fault.NotFound) {
		return fault.Annotate(err, "%s", s)
	}
	return nil
}

func (t *Tables) enqueue(name string, p *proposal) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.mu.queues[name]
	if q == nil {
		q = &queue{}
		t.mu.queues[name] = q
		go t.work(name, q) // ends when no caller waits, each change within ChangeTimeout
	}
	if len(q.waiting) >= t.settings.WaitingMax {
		return fault.Errorf(fault.Throttled, "%d changes of table %q wait here", t.settings.WaitingMax, name)
	}
	q.waiting = append(q.waiting, p)
	return nil
}

func (t *Tables) work(name string, q *queue) {
	for {
		t.mu.Lock()
		n := min(len(q.waiting), groupMax)
		group := q.waiting[:n:n]
		q.waiting = q.waiting[n:]
		if n == 0 {
			delete(t.mu.queues, name)
		}
		t.mu.Unlock()
		if n == 0 {
			return
		}
		t.commitGroup(name, group)
	}
}

// commitGroup commits proposals as one transaction, or, where that is refused, one by one.
func (t *Tables) commitGroup(name string, group []*proposal) {
	ctx, cancel := context.WithTimeout(context.Background(), t.settings.ChangeTimeout)
	defer cancel()
	group, alone := slices.Clip(group), []*proposal(nil)
	defer func() {
		for _, p := range alone {
			t.commitGroup(name, []*proposal{p})
		}
	}()
	m, err := t.commit(ctx, name, &group, &alone)
	if len(group) > 1 && (fault.Is(err, fault.Invalid) || fault.Is(err, fault.Stale) || fault.Is(err, fault.TooLarge)) {
		for _, p := range group {
			t.commitGroup(name, []*proposal{p})
		}
		return
	}
	for _, p := range group {
		p.result <- outcome{m, err}
	}
}

// commit plans and proposes until the group is committed. Proposals with a failing plan are answered and leave the group;
// those that cannot be combined with others leave it for alone.
func (t *Tables) commit(ctx context.Context, name string, group, alone *[]*proposal) (*topology.Map, error) {
	var failed error
	for try := 0; ; try++ {
		if try > 0 {
			select {
			case <-ctx.Done():
				return nil, fault.Wrap(errors.Join(failed, ctx.Err()), fault.Unavailable, "table %q kept changing, or could not be changed", name)
			case <-time.After(t.jitter(min(time.Millisecond<<min(try, 10), 200*time.Millisecond))):
			}
		}
		m, row, err := t.known(ctx, name)
		if err != nil {
			return nil, err
		}
		next, ops := planGroup(m, row.Dropping, group, alone)
		if len(ops) == 0 {
			return m, nil
		}
		c := &peer.Change{Table: name, Base: row.Txn, Txn: t.newTxnID(), Ops: topology.EncodeOps(ops), Round: row.Round + 1}
		changed, err := t.propose(ctx, c, row.Servers)
		switch {
		case err == nil:
			if changed.Seq == next.Seq && changed.Txn == c.Txn {
				t.step(name, Known{Map: next, Row: mapstore.Row{Txn: c.Txn, Seq: next.Seq, Round: row.Round}})
				return next, nil
			}
			return t.Refresh(ctx, name, changed.Seq)
		case fault.Is(err, fault.Stale), fault.Is(err, fault.Unavailable), fault.Is(err, fault.Throttled), fault.Is(err, fault.Canceled):
			// Whatever the outcome, a plan on the newest map is right: either it finds its own effect, or it makes it.
			failed = err
			if _, rerr := t.Refresh(ctx, name, 0); rerr != nil && !fault.Is(rerr, fault.Unavailable) {
				return nil, rerr
			}
		default:
			return nil, err
		}
	}
}

// known returns the map to plan on, and the row that names it.
func (t *Tables) known(ctx context.Context, name string) (*topology.Map, mapstore.Row, error) {
	look := func() (*topology.Map, mapstore.Row) {
		t.mu.RLock()
		defer t.mu.RUnlock()
		if v := t.mu.tables[name]; v != nil {
			m, _ := v.At()
			row := v.Row()
			row.Dropping = v.Dropping()
			return m, row
		}
		return nil, mapstore.Row{}
	}
	m, row := look()
	if m == nil {
		if _, err := t.Refresh(ctx, name, 0); err != nil {
			return nil, row, err
		}
		m, row = look()
	}
	if m == nil {
		return nil, row, fault.Errorf(fault.NotFound, "table %q does not exist", name)
	}
	return m, row, nil
}

// planGroup runs each plan on the map that those before lead to, and returns the map that all lead to from m as
// one transaction. While the table is being dropped a plan that makes partitions fails.
func planGroup(m *topology.Map, dropping bool, group, alone *[]*proposal) (*topology.Map, []topology.Op) {
	var all []topology.Op
	next := m
	*group = slices.DeleteFunc(*group, func(p *proposal) bool {
		ops, err := p.ops(next)
		if err == nil && len(ops) > 0 {
			var after *topology.Map
			after, err = m.Apply(append(slices.Clip(all), ops...)...)
			switch {
			case err == nil && dropping && after.NextID != m.NextID:
				err = isDropping(m.Table)
			case err == nil:
				if after != m {
					next = after
					all = append(all, ops...)
				}
				return false
			case len(all) > 0:
				*alone = append(*alone, p)
				return true
			}
		}
		if err != nil {
			p.result <- outcome{nil, err}
		}
		return err != nil
	})
	if next == m {
		return m, nil
	}
	return next, all
}

// propose asks one metadata server after the other: the same transaction, so that it is committed at most once.
func (t *Tables) propose(ctx context.Context, c *peer.Change, servers []topology.ServerID) (*peer.Changed, error) {
	failed := fault.Errorf(fault.Unavailable, "asked %v", servers)
	for _, s := range t.order(servers) {
		p, ok := t.deps.Metadata(s)
		if !ok {
			failed = errors.Join(failed, fault.Errorf(fault.Unavailable, "%s is not known or not connected", s))
			continue
		}
		limit, cancel := context.WithTimeout(ctx, t.settings.ServerTimeout)
		changed, err := p.Change(limit, c)
		cancel()
		if err == nil || !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Throttled) && !fault.Is(err, fault.Canceled) {
			return changed, err
		}
		failed = errors.Join(failed, fault.Annotate(err, "%s", s))
	}
	return nil, fault.Wrap(failed, fault.Unavailable, "no metadata server of table %q commits", c.Table)
}

func (t *Tables) newTxnID() peer.TxnID {
	t.random.Lock()
	defer t.random.Unlock()
	return mapstore.NewTxnID(t.random.rng)
}

// Ensure gives the map of a table to write to, and makes the table if writers may do that. Errors are NotFound (they may
// not), Throttled (too many tables), Unavailable (also: it is being dropped) or Canceled.
func (t *Tables) Ensure(ctx context.Context, name string) (*topology.Map, error) {
	t.mu.RLock()
	v := t.mu.tables[name]
	var m *topology.Map
	dropping := v != nil && v.Dropping()
	if v != nil {
		m, _ = v.At()
	}
	t.mu.RUnlock()
	switch {
	case dropping:
		return nil, isDropping(name)
	case m != nil:
		return m, nil
	}
	if !t.settings.CreateOnWrite {
		// Another process may have made it a moment ago.
		m, err := t.Refresh(ctx, name, 0)
		if fault.Is(err, fault.NotFound) {
			err = fault.Errorf(fault.NotFound, "table %q does not exist and is not created on write", name)
		}
		return m, err
	}
	if t.pace.Take(time.Now(), 1) == 0 {
		return nil, fault.Errorf(fault.Throttled, "table %q does not exist yet, and writers make at most %d tables a second; send it again", name, t.settings.NewPerSecond)
	}
	return t.Create(ctx, name, t.settings.New)
}

// Create makes a table; an existing one is returned as it is.
func (t *Tables) Create(ctx context.Context, name string, c topology.Config) (*topology.Map, error) {
	if m, ok := t.Get(name); ok {
		return m, nil
	}
	if n, full := t.full(); full {
		return nil, fault.Errorf(fault.Throttled, "there are %d tables, at most %d are made", n, t.settings.TablesMax)
	}
	m, err := topology.New(name, c)
	if err != nil {
		return nil, err
	}
	d, err := t.creator.Create(ctx, m, t.metadataServersFor(name))
	switch {
	case err == nil:
		t.deps.Log.Info("table created", "table", name, "retention", c.Retention, "partition_width", c.PartitionWidth, "metadata_servers", d.Row.Servers)
		if d.Map != nil {
			t.step(name, Known{d.Map, d.Row, d.Revision})
			return d.Map, nil
		}
	case !fault.Is(err, fault.Stale): // another proposer was faster
		return nil, err
	}
	return t.Refresh(ctx, name, 0)
}

// full reports whether there are as many tables as may be made, and how many. Each creation asks: names are counted only near the bound, and never
// sorted, which was a third of what it cost to make one table beside 10,000 (2026-12-01).
func (t *Tables) full() (n int, full bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if n = len(t.mu.tables); n < t.settings.TablesMax {
		return n, false
	}
	n = 0
	for _, v := range t.mu.tables { // with those that were dropped
		if m, _ := v.At(); m != nil {
			n++
		}
	}
	return n, n >= t.settings.TablesMax
}

// MetadataCandidates are the servers that may keep the file of a new table: the living, and where those are fewer than want, fewer silent ones than living, so that the
// table can be made without them. Where none is known to live, all are asked.
func MetadataCandidates(live, silent []topology.ServerID, want int) []topology.ServerID {
	n := len(live)
	switch {
	case n == 0:
		n = len(silent)
	case n >= want:
		return live
	default:
		n = min(n-1, want-n, len(silent))
	}
	return append(slices.Clone(live), silent[:n]...)
}

// metadataServersFor chooses the servers that keep a new table's METADATA file: by rendezvous hashing, so that tables spread over servers.
func (t *Tables) metadataServersFor(name string) []topology.ServerID {
	servers := slices.Clone(t.deps.Servers())
	weight := func(s topology.ServerID) uint64 { return xxhash.Sum64String(name + "\x00" + string(s)) }
	slices.SortFunc(servers, func(a, b topology.ServerID) int {
		if weight(a) > weight(b) {
			return -1
		}
		return 1
	})
	return servers[:min(len(servers), t.settings.MetadataServers)]
}

// Cover gives a map in which a partition holds each of the times, making partitions as needed. Errors are those of Change; Unavailable
// also while no server can hold a new partition.
func (t *Tables) Cover(ctx context.Context, name string, times []point.Nanos) (*topology.Map, error) {
	times = slices.Clone(times)
	return t.Change(ctx, name, func(m *topology.Map) ([]topology.Op, error) {
		unplaced := false
		c := m.Covering(times, func(p point.PartitionID) []topology.Placement {
			var placed []topology.Placement
			for _, s := range t.deps.Place(name, p) {
				placed = append(placed, topology.Placement{ID: t.newPlacementID(), Server: s})
			}
			unplaced = unplaced || len(placed) == 0
			return placed
		})
		switch {
		case unplaced: // the map would refuse it as Invalid, and senders do not send again what is invalid
			return nil, fault.Errorf(fault.Unavailable, "table %q needs a new partition for these times, and no storage server takes one now: each is away, leaves, or has a full disk; spillway doctor says which", name)
		case len(c.Partitions) == 0:
			return nil, nil
		}
		return []topology.Op{c}, nil
	})
}

func (t *Tables) newPlacementID() point.PlacementID {
	t.random.Lock()
	defer t.random.Unlock()
	return point.PlacementID(t.random.rng.Uint64())
}

// Drop removes partitions from the map; servers that hold them then delete them.
func (t *Tables) Drop(ctx context.Context, name string, ids ...point.PartitionID) (*topology.Map, error) {
	ids = slices.Clone(ids)
	return t.Change(ctx, name, func(m *topology.Map) ([]topology.Op, error) {
		there := slices.DeleteFunc(slices.Clone(ids), func(id point.PartitionID) bool { _, ok := m.ByID(id); return !ok })
		if len(there) == 0 {
			return nil, nil
		}
		return []topology.Op{topology.Drop{IDs: there}}, nil
	})
}

// SetConfig changes a table's configuration.
func (t *Tables) SetConfig(ctx context.Context, name string, c topology.Config) (*topology.Map, error) {
	return t.Change(ctx, name, func(*topology.Map) ([]topology.Op, error) {
		return []topology.Op{topology.SetConfig{Config: c}}, nil
	})
}

// isDropping is the error that writers to a table get while it is being dropped.
func isDropping(name string) error {
	return fault.Errorf(fault.Unavailable, "table %q is being dropped: nothing is written to it until that has ended", name)
}

// BeginDrop marks a table as being dropped, so that it gets no more partitions, and removes its partitions from
// its map: their servers release them and delete their rows. From then on writers get Unavailable. A drop that has begun
// must be ended, by DropTable; both may be called again. A table that does not exist is fine. Errors are Unavailable, Throttled
// or Canceled.
func (t *Tables) BeginDrop(ctx context.Context, name string) error {
	_, err := t.beginDrop(ctx, name)
	return err
}

// beginDrop gives the map without partitions, or nil where there is no such table.
func (t *Tables) beginDrop(ctx context.Context, name string) (*topology.Map, error) {
	if m, ok := t.Get(name); ok && m.Len() == 0 && t.Dropping(name) {
		return m, nil
	}
	d, err := t.creator.BeginDrop(ctx, name)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t.learnRow(name, d.Row, d.Revision)
	m, err := t.Change(ctx, name, func(m *topology.Map) ([]topology.Op, error) {
		var ids []point.PartitionID
		for p := range m.All() {
			ids = append(ids, p.ID)
		}
		if len(ids) == 0 {
			return nil, nil
		}
		return []topology.Op{topology.Drop{IDs: ids}}, nil
	})
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	return m, err
}

// EndDrop ends a drop that BeginDrop began, when no server holds a partition of the table any more. A drop that another process ended is fine: a table of that
// name which was made since is left alone, with its rows. Errors are Stale (the map has partitions still), Unavailable, Throttled or Canceled.
func (t *Tables) EndDrop(ctx context.Context, name string) error {
	for {
		on, err := t.DropGoesOn(ctx, name)
		if err != nil || !on {
			return err
		}
		m, row, err := t.known(ctx, name)
		switch {
		case fault.Is(err, fault.NotFound):
			return nil
		case err != nil:
			return err
		case m.Len() > 0:
			return fault.Errorf(fault.Stale, "table %q has %d partitions still", name, m.Len())
		}
		d, err := t.creator.Drop(ctx, name, row.Txn) // compares the row
		if err == nil {
			t.learnRow(name, d.Row, d.Revision)
			t.deps.Log.Info("table dropped", "table", name, "seq", d.Row.Seq)
			return nil
		}
		if !fault.Is(err, fault.Stale) {
			return err
		}
	}
}

// DropGoesOn reports whether a drop of the table has begun and not ended, by the row in the store. Errors are Unavailable or Canceled.
func (t *Tables) DropGoesOn(ctx context.Context, name string) (bool, error) {
	if _, err := t.Refresh(ctx, name, 0); fault.Is(err, fault.NotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return t.Dropping(name), nil
}

// DropTable removes a table: first its partitions, if BeginDrop did not, then the table. The row stays, marked, so that
// a table of the same name made later never gives out the same sequence numbers and partition ids. One that does not exist
// is fine. Errors are Unavailable, Throttled or Canceled.
func (t *Tables) DropTable(ctx context.Context, name string) error {
	for {
		m, err := t.beginDrop(ctx, name)
		if err != nil || m == nil {
			return err
		}
		_, row, err := t.known(ctx, name)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if row.Seq == m.Seq && m.Len() == 0 {
			d, err := t.creator.Drop(ctx, name, row.Txn)
			if err == nil {
				t.learnRow(name, d.Row, d.Revision)
				t.deps.Log.Info("table dropped", "table", name, "seq", d.Row.Seq)
				return nil
			}
			if !fault.Is(err, fault.Stale) {
				return err
			}
		}
		if _, err := t.Refresh(ctx, name, 0); err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
	}
}
