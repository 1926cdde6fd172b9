package fanout

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/follow/runner"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A partition of which no row was acked has no copies: its leader alone answers, and while that is dead or silent none does, until another leads, seconds later. But
// its lease row says that it has no rows (lease.Lease.Empty), and the leader removes that mark before it accepts the first one. So the coordination store answers
// in the leader's place, if this view has all that the store had after the question was begun:
//
//	query begins ──▶ staged rows are asked for ──▶ the leader is asked ──▶ no answer ──▶ CaughtUp, and the mark is there: no rows
//	                                           └─▶ the leader owes a sign of life ───────┘
//
// A leader that was asked for a sign of life, on whatever request's behalf, and has sent nothing for follow.PingMax since (Deps.Silence), is not asked: so only the first queries wait. What
// the mark says does not depend on whether it is really dead. And a division (Divide) is planned anew without these partitions: steps whose windows reach over the edge of one have a single
// server that may evaluate them, the leader of that one.
//
//   - A row of the partition itself that was acked before is one before which the mark was removed: there is none.
//   - In a coordination store that was restored from a backup, the mark may be older than the rows. There the leader was not seen to renew its heartbeat since all rows were
//     listed (HasNoRows).
//   - A row of its keys that another partition acked before, by a newer map, would mean that this one had ended, or moved. That transaction wrote its number
//     into the lease row (lease.Guard): a number newer than the map is no answer, as a leader with a newer map is Stale.
//   - A row of other keys, in a partition that only a newer map has, is one of which the leader would have named that map. So the store is asked whether there is one.
//   - A row that waits in staging is in the answer of staging, which is older than the mark. Had it gone to the partition before, the mark would be gone.
//   - A row that moves here from a partition that unloads is still in that one, which is asked by the same map. In another try, by a newer map, the mark is looked at anew.
//
// Requests that are more than questions need the leader: it remembers a deletion for rows that come late.

// newestMax bounds the wait for the newest map.
const newestMax = 1500 * time.Millisecond

// empty returns which partitions of the map of seq surely have no row. None if there is a newer map: the leader might have named it, and rows of the asked range may be in
// partitions that only that one has.
func (s *Source) empty(ctx context.Context, r *request, seq uint64, ps []*topology.Partition) (none []*topology.Partition) {
	if s.deps.HasNoRows == nil || s.deps.CaughtUp == nil || r.whole || s.age(r.table) >= follow.DoubtAge {
		return nil
	}
	marked := func(p *topology.Partition) bool {
		return s.deps.HasNoRows(lease.Partition{Table: r.table, ID: p.ID}, seq)
	}
	if !slices.ContainsFunc(ps, marked) || s.deps.CaughtUp(ctx) != nil || !s.newest(ctx, r.table, seq) {
		return nil
	}
	for _, p := range ps {
		if marked(p) {
			none = append(none, p)
		}
	}
	return none
}

// newest asks the coordination store whether a table's map of seq is the newest one.
func (s *Source) newest(ctx context.Context, table string, seq uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, newestMax)
	defer cancel()
	m, err := s.deps.Tables.Refresh(ctx, table, 0)
	return err == nil && m.Seq == seq
}

// withRows leaves partitions without any row out of failures by the map of seq, with one look for all. A server that answered Stale is there: it may have a newer map, or
// lead in a moment.
func (s *Source) withRows(ctx context.Context, r *request, seq uint64, failed []follow.Failure) (rest []follow.Failure) {
	var silent []*topology.Partition
	for _, f := range failed {
		if f.Reason != follow.Stale {
			silent = append(silent, f.Partitions...)
		}
	}
	none := map[point.PartitionID]bool{}
	for _, p := range s.empty(ctx, r, seq, silent) {
		none[p.ID] = true
	}
	if len(none) == 0 {
		return failed
	}
	for _, f := range failed {
		if f.Partitions = slices.DeleteFunc(slices.Clone(f.Partitions), func(p *topology.Partition) bool { return none[p.ID] }); len(f.Partitions) > 0 {
			rest = append(rest, f)
		}
	}
	return rest
}

// silent reports whether a server gives no sign of life.
func (s *Source) silent(id topology.ServerID) bool {
	return s.deps.Silence != nil && s.deps.Silence(id) >= follow.PingMax
}

// planned makes the groups of a request over partitions of a map. Those that have no rows, and whose leaders give no sign of life, are left out: their marks are looked at
// once the plan has been made, and so after the question for staged rows.
func (s *Source) planned(ctx context.Context, r *request, m *topology.Map, ps []*topology.Partition, try int) ([]group, []orphan) {
	var ofSilent []*topology.Partition
	groups, orphans := r.groups(ps, s.targets(ctx, r, m, try, func(p *topology.Partition) { ofSilent = append(ofSilent, p) }))
	if len(groups) == 0 || len(ofSilent) == 0 {
		return groups, orphans
	}
	none := s.empty(ctx, r, m.Seq, ofSilent)
	if len(none) == 0 {
		return groups, orphans
	}
	ps = slices.DeleteFunc(slices.Clone(ps), func(p *topology.Partition) bool { return slices.Contains(none, p) })
	return r.groups(ps, s.targets(ctx, r, m, try, func(*topology.Partition) {}))
}

// silentLeader ends a question to a leader that says nothing for follow.SilenceMax, where none of the partitions has a row.
type silentLeader struct {
	state atomic.Int32 // of the states below
	timer *time.Timer
}

const (
	leaderAsked int32 = iota
	leaderAnswered
	leaderLeft // it is not waited for, and a late answer of it does not count
)

func (s *Source) unlessEmpty(r *request, g *group, a *runner.Attempt) *silentLeader {
	u := &silentLeader{}
	u.timer = time.AfterFunc(follow.SilenceMax, func() {
		if len(s.empty(a.Context(), r, g.by, g.partitions)) == len(g.partitions) && u.state.CompareAndSwap(leaderAsked, leaderLeft) {
			a.Close()
		}
	})
	return u
}

// answered is called when the question has ended; left: the partitions have no rows.
func (u *silentLeader) answered() (left bool) {
	u.timer.Stop()
	return !u.state.CompareAndSwap(leaderAsked, leaderAnswered)
}
