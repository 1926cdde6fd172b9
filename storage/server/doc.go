// Package server is a storage server: peer calls in, partition calls out.
//
//	gateway ──Stream.Define──▶ stream ids ─▶ series refs (labels once per table: storage/series)
//	        ──Stream.Insert──▶ refs ─▶ Partition.Append ─▶ brick
//	        ──Select─────────▶ a View of each partition, merged by labels, read in batches of neighbours
//	          Run ───────────▶ flush and compact what is due, keep heads within their budget, cool what is idle
//
// A partition comes into being here with its first insert, when the table's map places it on this server; an insert for
// any other partition is answered Stale with nothing done, so that the gateway routes again by a newer map (C99).
//
// Invariants: I1 by partition and brick; I5: heads, streams, selects and metadata have bounds and answers at them.
package server
