// Package runner runs the chains of a server's partitions (storage/chain): it keeps every row of a table of several replicas on all of
// the in-sync list.
//
//	server ──Lead, Accepts, Sure▶ ┌────────┐ ◀── Begin, frames, pings ──▶ Wire: links to the other servers
//	partition ──Pass, Await─────▶ │ Chains │ ──Relist──▶ Leases: the lease row
//	          ◀──Follow, Cut───── └────────┘ ◀── Led, Listed
//
// One goroutine at a time gives a partition's machine its inputs, in order, and performs the effects: the one that brings the first input. Waits for a
// disk or for room on a link run beside it, and their results come back as inputs.
//
// Invariants kept here: I1 (Await returns nil only for frames that all have, by the machine), I5 (frames in memory are bounded by
// cacheBytesMax a partition; incoming frames are bounded by the links' windows, and of messages without one the newest of each kind waits).
package runner
