package lead

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

// discover compares the placements here with the maps: after every change, only the tables that changed; and from time to time all of them (C15, C16).
func (r *runner) discover(ctx context.Context) error {
	full := true
	r.step(rules.Clock{Now: r.keeper.Now()}) // before the first map: thousands of partitions may be of the future
	slow := time.NewTimer(r.jitter(r.settings.ReconcileEvery))
	defer slow.Stop()
	for {
		// The channel is obtained before the look: a change during the look closes it, so that none is missed.
		changed := r.deps.Maps.Changed()
		r.look(full)
		full = false
		looked := time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-slow.C:
			slow.Reset(r.jitter(r.settings.ReconcileEvery))
			full = true
			continue
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return nil
		// A look comes at least BatchFor after the one before, so that one look serves a burst of changes. After a quiet time it comes at once:
		// writers may wait for the halves of a split.
		case <-time.After(r.jitter(r.settings.BatchFor) - time.Since(looked)):
		}
	}
}

// look gives the machine its input: the maps that changed, or all, with the placements here.
func (r *runner) look(full bool) {
	here := map[string][]rules.Held{}
	for _, h := range r.srv.Held() {
		here[h.Table] = append(here[h.Table], rules.Held{Partition: h.Partition, Placement: h.Placement, Empty: h.Empty})
	}
	names := map[string]struct{}{}
	for name := range here {
		names[name] = struct{}{}
	}
	for _, name := range r.deps.Maps.Names() {
		names[name] = struct{}{}
	}
	in := rules.Round{Full: full}
	for name := range names { // the machine puts them in order
		m, row, _ := r.deps.Maps.At(name)
		r.mu.Lock()
		// The lock is released between tables: requests ask Kept, and Why when they are refused, under it, and must not wait for a pass over
		// thousands of tables.
		wants := full || r.mu.machine.Wants(name, m, row)
		r.mu.Unlock()
		if wants {
			t := rules.Table{Name: name, Map: m, Row: row, Held: here[name]}
			if at, ok := r.deps.Maps.Newest(name); ok && m != nil && at.Seq == m.Seq {
				t.Txn = at.Txn
			} // else a newer map came meanwhile, and is looked at next
			in.Tables = append(in.Tables, t)
		}
	}
	if len(in.Tables) > 0 || full {
		r.step(in)
	}
}

// jitter returns d plus or minus a tenth.
func (r *runner) jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

// publishEvery is how often the machine gets the load, for the next heartbeat.
const publishEvery = time.Second

func (r *runner) publish(ctx context.Context) error {
	counted := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.jitter(publishEvery)):
		}
		r.step(rules.Clock{Now: r.keeper.Now()})
		in := rules.Published{Load: r.srv.HeadLoad(), Good: r.keeper.Status().Good}
		_, in.ReadOnly = r.deps.Brick.ReadOnly()
		in.Fsync = r.deps.Brick.Fsync()
		if room, ok := r.deps.Brick.Room(); ok {
			in.Room = int64(max(1, min(room, math.MaxInt64)))
		}
		if r.deps.NoRoom != nil {
			in.NoRoom = r.deps.NoRoom()
		}
		if now := r.deps.Clock(); counted == 0 || now-counted >= rules.MeterEvery {
			counted = now
			r.step(r.accepted())
		}
		r.step(in)
	}
}

// accepted counts the rows of the partitions here.
func (r *runner) accepted() (in rules.Accepted) {
	for table, counts := range r.srv.Accepted() {
		for id, rows := range counts {
			in.All = append(in.All, rules.Count{Partition: lease.Partition{Table: table, ID: id}, Rows: rows})
		}
	}
	return in
}
