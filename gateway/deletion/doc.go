// Package deletion orders the steps of a deletion in a table of which rows are staged.
//
//	Find ─▶ Hold ─▶ Partitions ─▶ Find ─▶ Staged ─┬▶ Partitions ─▶ Release ─▶ End
//	 │ none          │ failed       ▲             │
//	 ▼               ▼              └─────────────┘ until no server is new, twice at least
//	Partitions       StagedPart ─▶ Release ─▶ End
//
// A deletion that fails half way must not show a value again that a later one replaced before it began:
//
//   - Partitions delete before staged rows: mostly a deletion fails because a leader is away, and then newer rows are staged.
//   - Before that, servers with staged rows stop forwarding the rows of the deletion (a hold). Without it an older staged row could be forwarded after its partition deleted,
//     while the newer row that replaced it is deleted in staging: readers would see the old value until the partition deletes once more.
//   - Where some partitions deleted and others could not, the staged rows of the former are deleted too: an older one may be staged while the newer one went to its partition, as where
//     the leader was away for a moment, or a row waited by smearing and the one that replaced it did not.
//   - Partitions delete once more at the end: rows may have come from servers that know no holds.
//
// A row that moves from one server with staged rows to another is found in the next round; the last round is one without a new server. A hold is a lease: the gateway renews it, and a
// server that lost it, by its time or by a restart, refuses to delete in its staged rows.
//
// Machine: no clock, lock, I/O or goroutine. gateway/query/fanout runs it.
package deletion
