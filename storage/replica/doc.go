// Package replica decides which segment the leader owes to which placement, and which one a placement accepts (C45–C72).
//
//	leader of a partition                                      a placement that follows
//	┌────────┐ ── Offer(slot, id, base, size, checksum, ends) ──▶ ┌──────────┐ wants it: Accept(slot, from byte n)
//	│ Sender │ ◀─ Accept ─ or ─ Decline(slot, reason, ends) ───── │ Receiver │ one for all partitions of a server, since slots
//	│        │ ── pieces, Commit(slot) ─────────────────────────▶ │          │ and space are the server's
//	└────────┘ ◀─ Ack(slot, id): durable, or waiting ──────────── └──────────┘
//	     ▲ Chain: after each flush and compaction                      │ Adopt: verify, then as one commit of the catalogue
//
// Both are machines without a clock, lock, I/O or goroutine. Their runner sends messages, reads and writes files, verifies and adopts.
//
// The rules:
//   - Only the leader makes segments; a placement that follows accepts them as they are (I4).
//   - A placement's chain of segments is one major, then minors, each based on the one before. It accepts a minor only
//     on top of its base, in place of those above it, and any segment only if that holds all frames that its own segments hold, or together
//     with those above it that do: until they are here it waits. So it loses no frame that it has (I6), whatever is lost, doubled, late, or sent by a former leader.
//   - The leader sends one segment at a time to a placement, in the order of the chain, from behind the newest one that both have; if
//     they have none in common, from the newest major (C63, C65).
//   - A follower keeps the log of frames until a segment that it received holds them. So the leader may delete minors that it compacted, whichever
//     placements have them: their frames are in the major, or in the follower's log (C52 without waiting).
//   - A placement that finds one of its segments damaged is offered the chain again, and receives the same bytes once more.
//
// Invariants kept here: I4, I5 (slots have a number and a deadline; tries are spaced), I6.
package replica
