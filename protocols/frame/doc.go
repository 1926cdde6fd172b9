// Package frame is the unit of insert as bytes: one partition's rows in columns, as they lie in the log and travel down
// a chain.
//
// A frame is applied whole or not at all (C94). It needs no context to be decoded but the numbers of its series, which
// are the log's own: a follower with the same log prefix has the same id table and neither hashes nor parses a label.
//
//	peer.Insert ─▶ Frame{IDs, Times, Values, Defs…} ──Encoder.Append──▶ ┌────────┬────────────────────┐
//	                                                                    │ header │ body (columns, s2) │
//	under the partition's lock: SetSerial(b, serial, prev) ────────────▶└────────┴────────────────────┘
//	                                                                         │ one record of the log
//	    Frame ◀──Decoder.Decode── followers, recovery, flush ◀───────────────┘ and one message of the chain
//
// The body is encoded outside every lock; the serial, which must be given in the order of the log, is patched into the
// header afterwards. Header and body have a checksum each, so that no flipped bit becomes a row between the head's
// memory and the tail's disk (I6). Every float comes back with the bits it had.
//
// FORMAT.md draws the bytes, DESIGN.md has the figures.
package frame
