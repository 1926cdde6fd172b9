// Package kafka reads topics and writes their rows, and commits an offset only when everything before it is as safe as the
// topic's level demands.
//
//	             ┌────────────────────────── member: one consumer group on one cluster ──────────────────────────┐
//	poll ─▶ tracker.poll ─▶ queue ─▶ worker: decode ─ admit ─ one Write for many records ─▶ tracker.finish ─▶ commit
//	  ▲                       │ full: pause topic or partition      │ bad records                                │
//	  └─ resume ◀─ shares ◀───┘                                     └─▶ dead-letter topic or file, acked ────────┘
//
// tracker, queue, shares and later (rows that wait in their topic until they are due) are pure: they handle offsets, order and memory, and do no I/O. consumer, member and worker run
// them.
//
// Guarantees:
//
//   - No loss. An offset is committed when all records before it were settled: written and acked, or in the dead-letter
//     topic, which acked too. On revocation the work under way is finished, for a bounded time, and committed before the
//     partition moves; on loss nothing is committed.
//   - Order. Records of a partition are written in their order: of two values at one timestamp the later record's wins.
//   - No effect of repetition. Records delivered again are written again to the same rows; rows without a time get the
//     record's, or that of the first reading where the record has none. Dead letters may be repeated.
//   - Membership. Nothing that the storage does, slow, full or away, stops polls or heartbeats. Work that failed for a
//     passing reason is retried after a growing pause and is never dropped.
//   - Progress. A record that can never be written is put aside with the reason, and the partition goes on.
//
// Invariants it keeps: I1 (offsets are acks), I5 (bytes in flight are bounded for all clusters together, and booked; a topic gets an
// equal share), I8 (the Kind of an error decides between trying again and putting aside).
//
// Not here: Kafka as Spillway's log, transactions, schema registries. franz-go is imported by this package alone.
package kafka
