package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// Rows that a placement set aside, because its leader never had them, go to the leaders of their keys, as storage/surplus gives them.

const (
	handOverEvery = 2 * time.Second
	handOverRows  = 4 // at a time
)

// handsOver begins, or continues, to hand over the surplus rows of a partition that are set aside here.
func (s *server) handsOver(id lease.Partition) {
	if s.handing[id] {
		return
	}
	s.handing[id] = true
	s.after(s.w.spread(handOverEvery), "hand over", func() {
		s.handing[id] = false
		if r := s.disk.copies[id]; r != nil && len(r.surplus) > 0 {
			s.giveSurplus(id, r)
		}
	})
}

// giveSurplus gives the oldest rows to the leaders that have their keys by the map here. They are set aside no more once all are acked.
func (s *server) giveSurplus(id lease.Partition, r *replica) {
	rows := slices.Clone(r.surplus[:min(handOverRows, len(r.surplus))])
	open, all := len(rows), true
	for _, in := range rows {
		s.giveLeader(id.Table, in, func(acked bool) {
			all = all && acked
			if open--; open > 0 {
				return
			}
			if all && s.disk.copies[id] == r && len(r.surplus) >= len(rows) && slices.Equal(r.surplus[:len(rows)], rows) {
				was := r.surplus
				r.surplus = slices.Clone(was[len(rows):])
				s.disk.wrote(func() { r.surplus = was })
				s.disk.sync(s.proc, nil, func() {})
				s.w.n.handed += len(rows)
				s.w.mark(surplusHandedOver)
			}
			s.handsOver(id)
		})
	}
}

// giveLeader inserts a row with its rank at the leader of its key.
func (s *server) giveLeader(table string, in row, ended func(acked bool)) {
	k, m := s.w.history.keys[in.key], s.on(table).m
	var holder topology.ServerID
	var to lease.Partition
	if m != nil {
		if at, found := m.Find(k.ring, k.t); found {
			to = lease.Partition{Table: table, ID: at.ID}
			holder = s.w.check.listed[to].Holder
		}
	}
	if holder == "" {
		s.after(time.Millisecond, "no leader", func() { ended(false) })
		return
	}
	i := s.w.indexOf(holder)
	ask(s.proc, i, insertTime, "insert", func(say func(answer)) {
		if s.w.servers[i].older {
			say(answer{})
			return
		}
		s.w.servers[i].insert(to, insertion{row: in, inherited: s.w.opt.broken != surplusWins}, say)
	}, func(a answer, answered bool) { ended(answered && a.acked) })
}

// surplusWaits reports a placement with rows that its leader could have accepted; "": there is none. Rows that a leader accepted are acked, and checked as
// those are.
func (w *world) surplusWaits() string {
	for _, s := range w.servers {
		for _, id := range slices.SortedFunc(maps.Keys(s.disk.copies), comparePartitions) {
			if n := len(s.disk.copies[id].surplus); n > 0 && !s.dead && !s.older && w.check.at(id.Table).m != nil {
				return fmt.Sprintf("%d rows of %s are set aside on %s", n, id, s.id)
			}
		}
	}
	return ""
}
