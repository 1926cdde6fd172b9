package lead

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

// answer obtains the answer to a question of the machine.
// Each question runs in a goroutine of its own, since any may wait for seconds, and its answer names the effect by ID: the machine drops answers to questions
// that it has given up. Quiesce, Ready, Propose and RuleOut use no slot: each waits for other servers or for writers, and must not delay reads of lease rows.
func (r *runner) answer(ctx context.Context, e rules.Effect) rules.Input {
	switch e := e.(type) {
	case rules.Quiesce:
		return r.quiesce(ctx, e)
	case rules.Ready:
		limited, cancel := context.WithTimeout(ctx, e.Within)
		defer cancel()
		return rules.Answered{ID: e.ID, OK: r.deps.Maps.Ready(limited, e.Table) == nil}
	case rules.Propose:
		return r.propose(ctx, e)
	case rules.RuleOut:
		limited, cancel := context.WithTimeout(ctx, e.Within)
		defer cancel()
		seq, err := r.deps.Maps.RuleOut(limited, e.Table)
		return rules.RuledOut{ID: e.ID, OK: err == nil, Seq: seq}
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return rules.Tick{}
	}
	limited, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	switch e := e.(type) {
	case rules.ReadLease:
		row, found, err := r.deps.Store.Get(limited, lease.RowKey(e.Partition))
		r.failed(ctx, "reading a lease row", e.Partition, err)
		return rules.LeaseRead{ID: e.ID, OK: err == nil, Found: found, Row: row}
	case rules.GuardLease:
		key := lease.RowKey(e.Partition)
		_, _, err := r.deps.Store.Commit(limited, []coord.Condition{{Key: key, Revision: e.Revision}}, []coord.Write{{Key: key, Value: e.Lease.Encode()}})
		r.failed(ctx, "guarding a lease row", e.Partition, err)
		return rules.LeaseGuarded{ID: e.ID}
	case rules.Record:
		if r.deps.Brick.Frozen() {
			return rules.Recorded{ID: e.ID, ReadOnly: true}
		}
		err := record(r.deps.Brick, e.Seqs)
		return rules.Recorded{ID: e.ID, OK: !r.failed(ctx, "recording the highest transaction", lease.Partition{Table: e.Seqs[0].Table}, err)}
	case rules.RemovePlacement:
		return rules.Removed{ID: e.ID, OK: r.remove(ctx, e)}
	}
	fault.Bug("no effect %T", e)
	return nil
}

// storeWithin bounds the time of a question to the coordination store.
const storeWithin = 5 * time.Second

func (r *runner) quiesce(ctx context.Context, e rules.Quiesce) rules.Input {
	limited, cancel := context.WithTimeout(ctx, e.Within)
	defer cancel()
	ends, err := r.srv.Quiesce(limited, e.Partition.Table, e.Partition.ID)
	return rules.Quiet{ID: e.ID, OK: err == nil, Ends: ends, Empty: r.srv.Empty(e.Partition.Table, e.Partition.ID)}
}

// Base is the newest map for which a proposal was made: if the outcome stays unknown, only a newer map can show that the proposal was refused. plan may be
// called several times, as other transactions come between.
func (r *runner) propose(ctx context.Context, e rules.Propose) rules.Input {
	limited, cancel := context.WithTimeout(ctx, e.Within)
	defer cancel()
	in := rules.Proposed{ID: e.ID}
	_, err := r.deps.Maps.Change(limited, e.Partition.Table, func(m *topology.Map) ([]topology.Op, error) {
		_, leads := r.MayAct(e.Partition.Table, e.Partition.ID)
		ops, err := e.Plan(m, leads)
		if len(ops) > 0 {
			in.Base = max(in.Base, m.Seq)
		}
		return ops, err
	})
	in.OK = err == nil
	if err != nil && ctx.Err() == nil {
		r.deps.Log.Debug("a hand-over was not committed", "partition", e.Partition.String(), "error", err)
	}
	return in
}

func (r *runner) remove(ctx context.Context, e rules.RemovePlacement) bool {
	if r.failed(ctx, "removing a placement", e.Partition, r.srv.RemovePlacement(e.Partition.Table, e.Partition.ID, e.Placement, e.IfEmpty)) {
		return false
	}
	r.metrics.removed.Inc()
	r.deps.Log.Info("placement removed", "table", e.Partition.Table, "partition", e.Partition.ID, "placement", e.Placement, "reason", e.Why)
	return true
}
