package lead

import (
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	chains "github.com/spillwaydb/spillway/storage/chain/runner"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

var _ chains.Leases = (*Lead)(nil)

// Copied implements Leases of the chains' runner.
func (l *Lead) Copied() []chains.Led {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []chains.Led
	for _, c := range l.mu.machine.Chains() {
		all = append(all, chains.Led(c))
	}
	return all
}

// CopiedOf implements Leases of the chains' runner.
func (l *Lead) CopiedOf(p lease.Partition) (chains.Led, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.mu.machine.Chain(p)
	return chains.Led(c), ok
}

// Changes implements Leases of the chains' runner.
func (l *Lead) Changes() uint64 { return l.steps.Load() }

// Led implements Leases of the chains' runner.
func (l *Lead) Led(p lease.Partition) (point.Epoch, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.machine.Led(p)
}

// Placed implements Leases of the chains' runner.
func (l *Lead) Placed(p lease.Partition) chain.Placements {
	placed := l.keeper.Placed(p)
	slow := l.keeper.Slow(placed)
	l.mu.Lock()
	defer l.mu.Unlock()
	least, _ := l.mu.machine.Copied(p)
	return chain.Placements{All: placed, Slow: slow, Fixed: l.mu.machine.Fixed(p), MinInSync: least, Demanded: l.mu.machine.Demanded(p.Table), Mapped: l.mu.machine.Mapped(p)}
}

// Relist implements Leases of the chains' runner.
func (l *Lead) Relist(p lease.Partition, epoch point.Epoch, ask uint64, members []lease.Member) {
	l.step(rules.Relist{Partition: p, Epoch: epoch, Ask: ask, Members: members})
}

// GiveUp implements Leases of the chains' runner.
func (l *Lead) GiveUp(p lease.Partition, why string) {
	l.mu.Lock()
	l.mu.effects = append(l.mu.effects, rules.LeaseInput{Input: lease.GiveUp{Partition: p, Why: why, Again: true}})
	l.mu.Unlock()
	l.wake()
}

// Kept implements Leases of the chains' runner: a chain keeps the in-sync list of the partition.
func (l *Lead) Kept(table string, id point.PartitionID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.mu.machine.Copied(lease.Partition{Table: table, ID: id})
	return ok
}
