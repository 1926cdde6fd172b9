// Package runner runs the chains of a server's partitions (storage/chain): it keeps every row of a table of several replicas on all of
// the in-sync list.
//
//	server ──Lead, Takes, Sure──▶ ┌────────┐ ◀── Begin, frames, pings ──▶ Wire: links to the other servers
//	partition ──Pass, Await─────▶ │ Chains │ ──Relist──▶ Leases: the lease row
//	          ◀──Follow, Cut───── └────────┘ ◀── Led, Listed
//
// A partition's machine has a goroutine of its own here: it takes inputs in order, steps, and performs the effects. What waits for a disk or
// for room on a link goes on beside it and comes back as an input.
//
// Invariants kept here: I1 (Await returns nil only for what the machine says that all have), I5 (frames in memory are bounded by
// cacheBytesMax a partition; what comes is bounded by the links' windows).
package runner
