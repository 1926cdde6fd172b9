// Package segment writes, reads and verifies the immutable segment file: the rows of one partition, sorted by series.
//
// A segment is a pebble sstable without pebble's compression. Its values are blocks that this package compresses, 32
// series by at most 512 rows each, in the order in which the writer's caller adds series (metric name, then labels), so
// that a query over one metric reads neighbours. Definitions and postings lie in dense-id order.
//
//	Define ─▶ definitions ─▶ postings ┐
//	Add ────▶ chunk ─▶ block of a group ├─▶ path.tmp ─ fsync ─▶ rename ─▶ fsync directory ─▶ Info ─▶ catalogue
//	          └ times ─▶ column, once ──┘
//
//	ids ─▶ place: (group, slot) ─▶ group record ─▶ blocks that overlap the range ─▶ chunks that are wanted ─▶ rows.Run
//
// Invariants kept here: I4 (the same calls give the same bytes; a reader never changes a file), I5 (decoders check bounds before they
// allocate, caches have a size), I7 (bytes, then name, then directory are durable before Finish returns), I8 (data that does not match its
// checksum or its form is fault.Corrupt, with the file and the key in the message).
//
// FORMAT.md draws every byte. Not done here: sorting rows, deciding between two values at one timestamp (package rows),
// choosing the segments that are compacted together (package partition).
package segment
