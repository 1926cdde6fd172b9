// Package chain orders the copies of a partition: which frame goes to which placement, and which frames may be acknowledged as kept by
// all (C84, C90–C94, C101).
//
//	             Pass(sender's epoch, serial, predecessor)
//	insert ──▶ ┌──────┐ ─────────▶ ┌────────┐ ─────────▶ ┌──────┐
//	           │ head │            │ middle │            │ tail │      each passes on at once, logs, fsyncs, applies
//	 ack ◀──── └──────┘ ◀───────── └────────┘ ◀───────── └──────┘      Report: min(own fsynced and applied, successor's)
//	              │ ▲                  ▲ │
//	              │ └── Ping, Pong ────┘ │    head and members, directly: which live, where each log ends, which may call itself sure
//	              └──── Pass ──▶ joining │    the head feeds a placement that is not in the chain until it has caught up
//	                                     ▼
//	              SetList ──▶ lease row's in-sync list (metadata/lease): changed by the head alone, by compare-and-swap
//
// Machine is one placement's part, as head or as member: Step(now, input) effects, with no clock, lock, I/O or goroutine. It never sees a
// frame's body. Its runner logs, sends and cuts.
//
// The rules:
//   - A frame is accepted only if its predecessor is the log's end and its sender has the epoch that this placement promised. So two logs
//     that have one serial in common are equal up to that serial.
//   - A placement joins an epoch in four durable steps: it raises its epoch, compares the ends of its epochs with the head's, sets frames
//     aside that the head does not have and cuts them, and only then accepts and reports.
//   - The head acknowledges a frame once every placement has reported it that may be in the in-sync list. That includes a placement whose
//     listing or removal is requested and not yet answered, and one that may still be sure: the head answered its ping less than 1.3 s ago.
//   - A placement is added to the chain, and counts, before the head asks to list it; it is removed from the list before it stops counting.
//   - A member is *sure* that it has every acknowledged row for 1 s from when it sent a ping that the head answered. The head does not answer
//     members that it is about to remove, and is itself sure only while every listed member answers it under its epoch.
//   - A chain at rest is quiet: its placements do not ping and are not sure, and a frame or a read wakes them (quiet.go).
//   - A member whose process is about to end says so (Leave), is not sure from then on, and is removed without the wait of 1.3 s.
//
// Invariants kept here: I1 (`all` means: fsynced and applied by the whole list, at least min_in_sync), I3 (a sender's epoch that was
// overtaken is refused), I5 (bytes on their way to a member and bytes not yet acknowledged are bounded), I6 (logs are equal up to the serial
// they share; nothing is skipped).
//
// Not here: segments, and the repair of a placement with a log that ends before the head's log begins: it is reported as Behind, and catches up
// by storage/replica.
package chain
