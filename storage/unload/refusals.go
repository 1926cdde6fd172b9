package unload

import (
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Refusals are the slices that a server accepts no more as the leader of heirs: those of epochs that a later leader of their partition ended. It lives as long as
// the process. One goroutine at a time.
type Refusals struct {
	parents map[lease.Partition]*refusal
	unnamed map[string]int // slices that do not name their sender and are being inserted, by table
}

// refusal is what a server knows of the slices of one partition.
type refusal struct {
	below  point.Epoch         // slices of lower epochs are refused
	inside map[point.Epoch]int // slices that are being inserted
}

// RefusalsMax bounds the partitions whose slices a server remembers to refuse. Beyond it deletions wait for them, as if the server did not answer.
const RefusalsMax = 1 << 16

// Enter reports whether a slice that a leader of a partition sent under an epoch may be inserted. Leave ends the insertion.
func (r *Refusals) Enter(p lease.Partition, epoch point.Epoch) bool {
	at := r.of(p)
	if epoch < at.below {
		return false
	}
	at.inside[epoch]++
	return true
}

// Leave ends the insertion of a slice that entered, whatever became of it.
func (r *Refusals) Leave(p lease.Partition, epoch point.Epoch) {
	at := r.of(p)
	if at.inside[epoch]--; at.inside[epoch] == 0 {
		delete(at.inside, epoch)
	}
	if at.below == 0 && len(at.inside) == 0 {
		delete(r.parents, p)
	}
}

// EnterUnnamed begins the insertion of a slice of a build that does not name its sender, in a table. It is never refused: leaders do not count on refusals as long as a server of such a
// build is registered. LeaveUnnamed ends it.
func (r *Refusals) EnterUnnamed(table string) {
	if r.unnamed == nil {
		r.unnamed = map[string]int{}
	}
	r.unnamed[table]++
}

// LeaveUnnamed ends the insertion of a slice that began with EnterUnnamed.
func (r *Refusals) LeaveUnnamed(table string) {
	if r.unnamed[table]--; r.unnamed[table] == 0 {
		delete(r.unnamed, table)
	}
}

// End refuses slices of epochs below one from now on; false: there are too many partitions. An earlier End of a higher epoch stays in force. Those that entered
// before may still be inserted: see Ended.
func (r *Refusals) End(p lease.Partition, below point.Epoch) bool {
	if r.parents[p] == nil && len(r.parents) >= RefusalsMax {
		return false
	}
	at := r.of(p)
	at.below = max(at.below, below)
	return true
}

// Ended reports whether no slice of an epoch below one is being inserted, and none of which the epoch is not known.
func (r *Refusals) Ended(p lease.Partition, below point.Epoch) bool {
	if r.unnamed[p.Table] > 0 {
		return false
	}
	at := r.parents[p]
	if at == nil {
		return true
	}
	for epoch := range at.inside {
		if epoch < below {
			return false
		}
	}
	return true
}

func (r *Refusals) of(p lease.Partition) *refusal {
	at := r.parents[p]
	if at == nil {
		if r.parents == nil {
			r.parents = map[lease.Partition]*refusal{}
		}
		at = &refusal{inside: map[point.Epoch]int{}}
		r.parents[p] = at
	}
	return at
}
