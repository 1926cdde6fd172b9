// Package forward takes batches to the leaders of their partitions.
//
//	Write(batch) ─▶ stamp ─▶ route by ONE map ─▶ define new series on the stream ─▶ Stream.Insert … ─▶ ack when all acked
//	                            ▲   │ uncovered times: have partitions made
//	                            └───┘ Stale: a newer map, again
//
// Series are numbered by the table's dictionary, and the numbers are the streams' too: a series travels as labels once
// per server and generation. Every two hours, or when a dictionary fills up, a new generation begins; the old one lives
// until the last batch that uses it is done.
//
// Invariants: I1 (a write returns after every one of its shares was acked at the level), I5 (a dictionary is bounded).
// After an error some shares may be kept: rows are idempotent, so sending the batch again is always right.
package forward
