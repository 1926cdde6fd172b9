// Package master looks at a cluster, plans what should be changed in its partition maps, and commits it.
//
//	tables (maps) ─┐
//	servers ───────┤                        ┌─ fence: no server may take it meanwhile ─┐
//	heartbeats ────┼─▶ State ──Plan──▶ Step ┼─▶ tables.Change (compare-and-swap) ──────┼─▶ map
//	lease rows ────┤        (pure)   (Work) └─ unfence ────────────────────────────────┘
//	sizes ─────────┘
//
// Plan is a pure function: the same state, settings and random source give the same steps, and each says why. What it
// decides: where new partitions go, what becomes of the placements of servers that are dead or drained, which empty partitions
// move when servers come or go, who keeps each table's METADATA files, what retention drops, which partitions are split because of their size and which unused
// ones are merged, and which must exist before "now" reaches them.
//
// Work is a pure machine: what it takes to carry the steps of one table out, whatever is answered, refused or lost. Runner
// performs what it asks for, several tables at a time; cmd/sim runs the same machine.
//
// Runner looks every few seconds. Only the holder of the row "master" plans; should two hold it for a moment nothing is
// lost, because each step is a compare-and-swap on what it was planned from, and an empty partition is moved only behind a fence.
//
// Invariants kept: I1 (no placement that holds the only copy of a row is ever taken away, except by retention), I2 and
// C34 (by topology's ops, which refuse), I5 (moves and partitions per round are bounded, lease rows of dropped partitions
// are swept).
//
// What it does not do: it moves no leases. Servers find the balance of leases among themselves (C108, package lease). It
// copies no rows: a placement that joins is filled by the partition's leader.
package master
