// Package series numbers the series of one table on one server and finds them by their labels.
//
// Labels are stored once per server and table, however many streams and partitions name them: each of those holds a Ref,
// four bytes. A select asks the index which refs match, and each partition keeps those that it has.
//
//	labels ──Intern──▶ ref ◀── streams, partitions (one reference each: Retain, Release)
//	                    │
//	                    ├─▶ entry: labels, count                     read without a lock
//	                    └─▶ postings: name ▶ value ▶ refs            a list while few, a bitmap once many
//	matchers ──Match──▶ bitmap of refs
//
// New series wait, at most waitingMax of them, and enter the postings at the next read of those, or at a Sweep. The
// difference is only one of time: every reader first enters the series that came before it.
//
// The life of a ref:
//
//	Intern ─▶ live (count > 0) ─last Release─▶ idle ─Sweep─▶ freed: found no more ─every older Pin gone─▶ free to be reused
//	            ▲                                │
//	            └───────────── Intern ───────────┘
//
// Invariants:
//   - Equal label sets have one live ref; a ref means the same labels for as long as a reference or a Pin acquired before
//     its last Release is held.
//   - Each series in the bitmap of a Match was in the index, with those labels, at some moment during the Match; a
//     series is included if its Intern returned before.
//
// Not done here: which series have rows, time ranges, limits on their number.
package series
