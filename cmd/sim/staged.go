package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/staging"
)

// atStaging is the registry as a gateway has it: staged.Registry.
type atStaging struct{ g *gateway }

// All implements staged.Registry.
func (r atStaging) All() (all []registry.Server) {
	for _, s := range r.g.w.servers {
		if row, ok := r.g.registered[s.id]; ok {
			all = append(all, row)
		}
	}
	return all
}

// Staging implements staged.Registry.
func (r atStaging) Staging(table string) (all []topology.ServerID) {
	for _, s := range r.g.w.servers {
		if row, ok := r.g.registered[s.id]; ok && row.Stages(table) {
			all = append(all, row.ID)
		}
	}
	return all
}

// Age implements staged.Registry.
func (r atStaging) Age(time.Time) time.Duration {
	if r.g.w.opt.broken == stagersNotProven {
		return 0
	}
	return time.Duration(r.g.clock() - r.g.provenAt)
}

// followRegistry has a gateway know the servers, and since when that may be old.
func (g *gateway) followRegistry() {
	sees := func(row coord.Row) {
		if row.Revision <= g.registeredAt[row.Key] {
			return
		}
		if srv, err := registry.Decode(row); err == nil {
			g.registered[srv.ID], g.registeredAt[row.Key] = srv, row.Revision
		}
	}
	g.follow(registry.Prefix, func(l listed) {
		for _, row := range l.rows {
			sees(row)
		}
	}, func(events []coord.Event) {
		for _, e := range events {
			sees(e.Row)
		}
	})
	g.every(time.Second, "prove servers", func() {
		asked, start := g.clock(), g.starts
		g.list(registry.Prefix, storeTimeout, func(l listed, ok bool) {
			if !ok || g.starts != start {
				return
			}
			for _, row := range l.rows {
				sees(row)
			}
			g.provenAt = max(g.provenAt, asked)
		})
	})
}

func (g *gateway) isLive(id topology.ServerID) bool {
	at, ok := g.beats[id]
	return ok && time.Duration(g.clock()-at) < takeAfter
}

// stage makes the row durable on as many servers as an ack of all needs.
func (w *writing) stage(due time.Time, done func(ok bool, seq uint64)) {
	g, m := w.g, w.v.m
	if m == nil || w.in.rank == 0 {
		done(false, 0)
		return
	}
	h := &holding{w: w, n: m.Config.MinInSync(), done: func(ok bool) { done(ok, m.Seq) }}
	t := g.w.history.keys[w.in.key].t
	h.f = stagedRow{staging.Frame{ID: staging.ID{Stamp: w.in.rank, Nonce: g.w.rng.Uint64()}, Table: w.v.table, MapSeq: m.Seq, Bytes: rowBytes, Rows: 1, Lo: t, Hi: t, Due: due}, w.in}
	h.choose()
}

// holding is a frame on its way to its holders. One that fails is replaced.
type holding struct {
	w     *writing
	f     stagedRow
	n     int
	have  []topology.ServerID
	avoid []topology.ServerID
	done  func(bool)
}

func (h *holding) choose() {
	g := h.w.g
	more, err := g.staged.Holders(h.n-len(h.have), h.f.ID.Nonce, slices.Concat(h.avoid, h.have))
	if err != nil {
		h.done(false)
		return
	}
	f := h.f
	f.Holders = slices.Concat(h.have, more)
	if err := f.Validate(); err != nil {
		g.w.fail("a frame cannot be staged: %v", err)
		return
	}
	more, h.have = f.Holders, nil // those that have it get the new list
	open := len(more)
	for _, id := range more {
		to := g.w.indexOf(id)
		ask(g.proc, to, stageTimeout, "stage", func(say func(bool)) { g.w.servers[to].stages(f, say) }, func(kept, answered bool) {
			if answered && kept {
				h.have = append(h.have, id)
			} else {
				h.avoid = append(h.avoid, id)
			}
			if open--; open > 0 {
				return
			}
			if least := h.n; len(h.have) < least && (g.w.opt.broken != stagedOnOne || len(h.have) == 0) {
				h.choose()
				return
			}
			g.staged.Note(g.now(), h.f.Table, h.have)
			h.done(true)
		})
	}
}

// acked ends a request for a row that was staged.
func (w *writing) ackStaged(seq uint64) {
	g := w.g
	g.w.mark(rowStaged)
	g.open--
	delete(g.unacked, w.in.value)
	g.w.n.acked++
	g.w.n.staged++
	g.w.history.ackedStaged(w.in, seq)
}

// stageAway stages the row because its leader is away; if that fails the leader is asked again.
func (w *writing) stageAway() {
	w.stage(time.Time{}, func(ok bool, seq uint64) {
		if ok {
			w.ackStaged(seq)
			return
		}
		w.g.w.mark(notStaged)
		w.request.Unstaged(w.g.now())
		w.try()
	})
}

// smear stages the row until its time.
func (w *writing) smear() {
	due := w.g.w.wall().Add(time.Duration(w.g.w.rng.Int64N(int64(5 * time.Second))))
	w.stage(due, func(ok bool, seq uint64) {
		if !ok {
			w.try()
			return
		}
		w.g.w.mark(rowSmeared)
		w.ackStaged(seq)
	})
}

// askStaged asks the servers on which rows of the table may be staged, before partitions.
func (x *selection) askStaged(then func()) {
	g := x.g
	x.holders, x.silent = nil, 0
	if !g.w.stages {
		then()
		return
	}
	x.holders = g.staged.Of(g.now(), x.v.table)
	open := len(x.holders)
	if open == 0 {
		then()
		return
	}
	g.w.mark(askedStaged)
	began := g.w.now
	start, keys := g.starts, slices.Clone(x.keys)
	for _, id := range x.holders {
		to := g.w.indexOf(id)
		ask(g.proc, to, stageTimeout, "select staged", func(say func([]row)) {
			if y := g.w.servers[to].stager; y != nil {
				say(y.rowsOf(x.v.table, keys))
			}
		}, func(rows []row, ok bool) {
			if g.starts != start {
				return
			}
			if !ok {
				x.silent++
			}
			for _, r := range rows {
				if i := slices.Index(x.keys, r.key); i >= 0 && (x.rows[i].value == 0 || r.rank > x.rows[i].rank) {
					x.rows[i] = r
				}
			}
			if open--; open > 0 {
				return
			}
			g.w.n.asked.add(len(x.holders), g.w.now-began)
			if x.silent >= x.m.Config.StagedHolders() && g.w.opt.broken != silentStagers {
				x.giveUp()
				return
			}
			then()
		})
	}
}

// rowsOf gives the staged rows of some keys.
func (x *stager) rowsOf(table string, keys []keyID) (rows []row) {
	for _, all := range []map[staging.ID]stagedRow{x.held, x.given} {
		for _, f := range all { // sorted below
			if f.Table == table && slices.Contains(keys, f.row.key) {
				rows = append(rows, f.row)
			}
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return staging.ID{Stamp: a.rank}.Compare(staging.ID{Stamp: b.rank}) })
	return rows
}

var errDeaf = fault.Errorf(fault.Canceled, "it does not answer a ping either")
