package lead

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// looked is the newest of a table that discovery has dealt with.
type looked struct {
	m   *topology.Map
	row coord.Revision
}

// reconcile plans and does what every table calls for whose map changed; all: of every table. What fails is tried again
// with the next round.
func (l *Lead) reconcile(ctx context.Context, srv *server.Server, all bool) error {
	here := map[string][]server.Held{}
	for _, h := range srv.Held() {
		here[h.Table] = append(here[h.Table], h)
	}
	names := map[string]looked{}
	higher := map[string]uint64{}
	for name := range here {
		names[name] = looked{}
	}
	for _, name := range l.deps.Maps.Names() {
		names[name] = looked{}
	}
	for name := range names {
		m, row, ok := l.deps.Maps.At(name)
		now := looked{m, row}
		if ok && !all && now == l.looked[name] {
			delete(names, name)
			continue
		}
		names[name] = now
		if ok && m.Seq > l.seen[name] {
			higher[name] = m.Seq
		}
	}
	if err := l.see(higher); err != nil { // before anything is deleted by it
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(names)) {
		now := names[name]
		if err := l.reconcileTable(ctx, srv, name, now, here[name]); err != nil {
			errs = append(errs, fault.Annotate(err, "table %q", name))
			now = looked{} // look again
		}
		l.looked[name] = now
	}
	if all {
		errs = append(errs, l.sweep(ctx, srv), l.unsee(here))
	}
	l.metrics.alarms.Set(float64(len(l.alarms)))
	return errors.Join(errs...)
}

func (l *Lead) reconcileTable(ctx context.Context, srv *server.Server, name string, now looked, here []server.Held) error {
	v := View{Map: now.m, Seen: l.seen[name], Server: l.settings.Server}
	for _, h := range here {
		v.Held = append(v.Held, Held{h.Partition, h.Placement, h.Empty, !h.Empty && l.covered(ctx, now.m, h)})
	}
	actions := Plan(v)
	l.raise(name, actions)
	if now.m == nil || now.m.Seq < v.Seen {
		return nil // nothing begins and nothing ends by what cannot be believed
	}
	if err := l.assign(ctx, srv, name, now, actions); err != nil {
		return err
	}
	var errs []error
	for _, a := range actions {
		switch a.Kind {
		case Remove:
			errs = append(errs, l.remove(srv, name, a))
		case Split:
			errs = append(errs, l.handOver(ctx, srv, name, now.m, a.Partition))
		case Final:
			errs = append(errs, l.finish(ctx, srv, name, a.Partition))
		}
	}
	return errors.Join(errs...)
}

// covered reports whether a placement that the map does not want has a lease row that lists others in sync, and not it.
func (l *Lead) covered(ctx context.Context, m *topology.Map, h server.Held) bool {
	if m == nil {
		return false
	}
	at, ok := m.ByID(h.Partition)
	if !ok {
		return false
	}
	if pl, on := at.On(l.settings.Server); on && pl.ID == h.Placement {
		return false // nobody asks
	}
	row, ok, err := l.deps.Store.Get(ctx, lease.RowKey(lease.Partition{Table: h.Table, ID: h.Partition}))
	if err != nil || !ok {
		return false
	}
	led, err := lease.DecodeLease(row.Value)
	return err == nil && len(led.InSync) > 0 && !slices.ContainsFunc(led.InSync, func(m lease.Member) bool {
		return m.Placement == h.Placement || m.Server == l.settings.Server
	})
}

// raise says what a person should look at, once, and forgets what is over.
func (l *Lead) raise(name string, actions []Action) {
	now := map[string]string{}
	for _, a := range actions {
		if a.Kind == Alarm {
			now[fmt.Sprintf("%s/%d", name, a.Partition)] = a.Why
		}
	}
	for key, why := range now {
		if l.alarms[key] == "" {
			l.deps.Log.Error("what is here does not agree with the map", "partition", key, "reason", why)
		}
		l.alarms[key] = why
	}
	for key := range l.alarms {
		if p := key[:max(0, lastSlash(key))]; p == name && now[key] == "" {
			delete(l.alarms, key)
		}
	}
}

func lastSlash(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '/' {
			return i
		}
	}
	return -1
}

// assign tells the keeper which placements may lead, all of the table in one step, and seals what unloads before.
func (l *Lead) assign(ctx context.Context, srv *server.Server, name string, now looked, actions []Action) error {
	var all []lease.Assigned
	wanted := map[lease.Partition]point.PlacementID{}
	for _, a := range actions {
		if a.Kind != Serve && a.Kind != Split && a.Kind != Unload && a.Kind != Final {
			continue
		}
		p := lease.Partition{Table: name, ID: a.Partition}
		at, _ := now.m.ByID(a.Partition)
		if a.Kind == Serve || a.Kind == Split {
			srv.Unseal(name, a.Partition) // perhaps the map took it away before
		} else {
			srv.Seal(name, a.Partition)
		}
		wanted[p] = a.Placement
		all = append(all, lease.Assigned{Partition: p, Placement: a.Placement, Placements: at.Placements, TableRow: now.row,
			BrickEpoch: l.deps.Brick.HighestEpoch(a.Placement)})
	}
	l.mu.Lock()
	for p, placement := range wanted {
		r := l.recordLocked(p)
		if r.placement != placement {
			r.placement, r.alone = placement, false
		}
	}
	l.mu.Unlock()
	if len(all) > 0 {
		if err := l.keeper.Tell(ctx, lease.Assignments{All: all}); err != nil {
			return err
		}
	}
	for p, placement := range wanted {
		l.told[p] = placement
	}
	for p := range l.told {
		if _, ok := wanted[p]; ok || p.Table != name {
			continue
		}
		if err := l.keeper.Tell(ctx, lease.Unassigned{Partition: p}); err != nil {
			return err
		}
		delete(l.told, p)
		l.mu.Lock()
		l.recordLocked(p).placement = 0
		l.mu.Unlock()
		if _, ok := now.m.ByID(p.ID); !ok {
			l.garbage[p] = struct{}{}
		}
	}
	return nil
}

func (l *Lead) remove(srv *server.Server, name string, a Action) error {
	if err := srv.RemovePlacement(name, a.Partition, a.Placement); err != nil {
		return err
	}
	l.metrics.removed.Inc()
	l.deps.Log.Info("placement removed", "table", name, "partition", a.Partition, "placement", a.Placement, "reason", a.Why)
	return nil
}

// handOver ends a split that began, if the partition is led here: it is sealed, and when nothing is under way any more its
// halves take over, in one transaction. Where that fails it takes rows again: should the transaction have been committed
// all the same, what comes meanwhile is read beside the halves, as all that it holds, and nobody reads it without them.
func (l *Lead) handOver(ctx context.Context, srv *server.Server, name string, m *topology.Map, id point.PartitionID) (err error) {
	at, ok := m.ByID(id)
	if _, led := l.MayAct(name, id); !ok || !led || at.Split == nil {
		return nil // whoever leads it does it, or we with a later round
	}
	low, proposed := at.Split.Low.ID, false
	srv.HandOver(name, id)
	defer func() {
		if err != nil {
			srv.HandOverFailed(name, id, proposed)
		}
	}()
	limited, cancel := context.WithTimeout(ctx, l.settings.StopTimeout)
	defer cancel()
	if _, err := srv.Quiesce(limited, name, id); err != nil {
		return err
	}
	_, err = l.deps.Maps.Change(limited, name, func(m *topology.Map) ([]topology.Op, error) {
		if _, led := l.MayAct(name, id); !led {
			return nil, fault.Errorf(fault.Stale, "partition %s/%d is led by another now: that one hands it over", name, id)
		}
		proposed = true
		return []topology.Op{topology.SplitFinalize{Partition: id, Low: low}}, nil
	})
	if err == nil {
		l.deps.Log.Info("partition was split", "table", name, "partition", id, "low", low)
	}
	return err
}

// finish has a partition that unloads taken out of the map if it is led here and nothing was ever written to it.
func (l *Lead) finish(ctx context.Context, srv *server.Server, name string, id point.PartitionID) error {
	epoch, ok := l.MayAct(name, id)
	if !ok {
		return nil // with the next round, if it is still there then
	}
	limited, cancel := context.WithTimeout(ctx, l.settings.StopTimeout)
	defer cancel()
	if _, err := srv.Quiesce(limited, name, id); err != nil { // it is sealed: nobody enters any more
		return err
	}
	for _, h := range srv.Held() {
		if h.Table == name && h.Partition == id && !h.Empty {
			return nil
		}
	}
	// Should our lease end while the change is under way, a server with an older map could take the partition and ack rows.
	if err := l.Hold(ctx, name, id, epoch); err != nil {
		return err
	}
	_, err := l.deps.Maps.Change(ctx, name, func(*topology.Map) ([]topology.Op, error) {
		return []topology.Op{topology.UnloadFinal{Partition: id}}, nil
	})
	return err
}

// sweep takes the lease table's rows of partitions away that were dropped, once nobody holds them.
func (l *Lead) sweep(ctx context.Context, srv *server.Server) error {
	var errs []error
	for p := range l.garbage {
		done, err := l.forget(ctx, p)
		if done {
			delete(l.garbage, p)
			srv.Forget(p.Table, p.ID)
			l.mu.Lock()
			delete(l.mu.records, p)
			l.mu.Unlock()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (l *Lead) forget(ctx context.Context, p lease.Partition) (done bool, err error) {
	m, _, ok := l.deps.Maps.At(p.Table)
	if !ok || m.Seq < l.seen[p.Table] {
		return false, nil
	}
	if _, there := m.ByID(p.ID); there || p.ID >= m.NextID {
		return true, nil
	}
	row, ok, err := l.deps.Store.Get(ctx, lease.RowKey(p))
	if err != nil {
		return false, err
	}
	if led, err := lease.DecodeLease(row.Value); ok && (err != nil || led.State == lease.Held) {
		return err != nil, nil
	}
	_, done, err = l.deps.Store.Commit(ctx, []coord.Condition{{Key: lease.RowKey(p), Revision: row.Revision}}, lease.Forget(p))
	return done, err
}
