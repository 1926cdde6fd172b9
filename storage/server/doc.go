// Package server is a storage server: peer calls in, partition calls out.
//
//	gateway ──Stream.Define──▶ stream ids ─▶ series refs (labels once per table: storage/series)
//	        ──Stream.Insert──▶ refs ─▶ Partition.Append ─▶ brick
//	        ──Select─────────▶ a View of each partition, merged by labels, read in batches of neighbours
//	          Run ───────────▶ flush and compact what is due, keep heads within their budget, cool what is idle
//
// A partition comes into being here with its first insert, when its lease is with this server and the table's map places
// it here; an insert for any other partition is answered Stale with nothing done, so that the gateway routes again by a
// newer map (C99). The lease is asked before a change and again after its fsync, before the ack (C105). Readers who name a partition
// that is led elsewhere are told so; who names none gets what is led here. A process without others beside it has no
// leases and acts for everything; package storage/lead keeps those of a cluster's server.
//
// Invariants: I1 by leases, partition and brick; I3: rows are taken under the epoch of the lease; I5: heads, streams, selects and metadata have bounds and answers at them.
package server
