// Package master looks at a cluster, plans changes of its partition maps, and commits them.
//
//	tables (maps) ─┐
//	servers ───────┤                        ┌─ fence: no other leader meanwhile ───────┐
//	heartbeats ────┼─▶ State ──Plan──▶ Step ┼─▶ tables.Change (compare-and-swap) ──────┼─▶ map
//	lease rows ────┤        (pure)   (Work) └─ unfence ────────────────────────────────┘
//	sizes ─────────┘
//
// Plan is a pure function: the same state, settings and random source give the same steps, and each step gives its reason. It
// decides where new partitions go, how the placements of dead or drained servers are replaced, which empty partitions
// move when servers come or go, which servers keep each table's METADATA files, which partitions retention drops, which are split because of
// their size, which unused ones are merged, and which must exist before "now" reaches them.
//
// Work is a pure machine: it carries out the steps of one table, whatever is answered, refused or lost. Runner
// performs its effects, several tables at a time; cmd/sim runs the same machine.
//
// Runner looks every few seconds. Only the holder of the row "master" plans. If two processes hold it for a moment, nothing is
// lost, because each step is a compare-and-swap on the state it was planned from, and an empty partition is moved only behind a fence.
//
// Invariants kept: I1 (a placement that holds the only copy of a row is never removed, except by retention), I2 and
// C34 (by topology's ops, which refuse), I5 (moves and partitions per round are bounded, lease rows of dropped partitions
// are swept).
//
// Outside its scope: it acquires and releases no leases. Servers balance the counts among themselves (C108, package lease); where one accepts far more rows than others the
// master asks in a lease row for it to be handed over (load.go). It copies no rows; the partition's leader fills a placement that joins, where servers keep copies (copy.go).
package master
