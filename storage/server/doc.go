// Package server is a storage server: peer calls in, partition calls out.
//
//	gateway ──Stream.Define──▶ stream ids ─▶ series refs (labels once per table: storage/series)
//	        ──Stream.Insert──▶ refs ─▶ Partition.Append ─▶ brick
//	        ──Select─────────▶ a View of each partition, merged by labels, read in batches of neighbours
//	          Run ───────────▶ flush and compact when due, keep heads within their budget, cool idle partitions
//
// A partition is created here by its first insert, if this server holds its lease and the table's map places it here.
// An insert for any other partition is answered Stale and changes nothing, so that the gateway routes it again by a
// newer map (C99). The lease is checked before a change and again after its fsync, before the ack (C105). A read that
// names a partition led elsewhere is answered Stale; one that names none gets the partitions led here. A process that
// runs alone has no leases and acts for everything; in a cluster package storage/lead keeps them.
//
// Invariants: I1 by leases, partition and brick; I3: rows are accepted under the epoch of the lease; I5: heads, streams,
// selects and metadata have bounds, and errors beyond.
package server
