// Package head holds the rows of one partition that are not flushed yet: append, read, drain.
//
// An acked sample is in the log, but readers must find it too, and a flush must write it in series order. So each
// series has a chain of 64-byte blocks, outside the garbage collector's heap, into which its rows are packed at about
// two bytes each. Appending touches one line of state and one block; a read walks one chain; a flush walks the chains
// in the order of the segment and sorts nothing.
//
//	id ─▶ page of 1024 ─▶ series {last row, first and last stamp, tail}      one cache line
//	                          │
//	                          └─▶ block ─▶ block ─▶ block                    rows, oldest frame first
//	      thin page of 1024    up to four rows of each at 8 bytes, where a series has few (Settings.FewRows)
//	      groups of 32 ids ────▶ block ─▶ …                                  which frames touched the group
//	      side rows            (id) ─▶ rows that came with an older stamp than the chain's last, stamps beside them
//
// Invariants, for each series:
//   - Chain order is rank order: a row enters the chain only if its stamp is not below that of its last row.
//     Every other row goes aside with its stamp. It does not matter whether it came directly or through staging.
//   - Every row's stamp can be found exactly: the chain says how many frames of its group passed since the row before. So a
//     Read gives the same rows whatever path they took (I9), and all placements that applied the same frames agree (I6).
//   - Rows come back bit for bit: NaN payloads, -0, infinities, and any two int64 times in any order.
//
// Not done here: deciding when to flush (callers use Bytes), logging, labels.
package head
