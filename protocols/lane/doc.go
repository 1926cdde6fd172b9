// Package lane leaves processors to writes: while rows are being written, queries, look-ups and compactions together use half of them; between
// writes that come again and again, all but one; else a few more threads than there are processors. An evaluation needs a turn for a page of rows
// or for a series, a look-up for a list, an answer for a buffer of its text, a compaction for a few milliseconds, so a small query waits for
// a few pages of large ones, not until they end.
//
//	query a     ▪▪▪▪▪ ─┐         the query that had the fewest ─┐
//	query b     ▪▪▪▪  ─┼─▶ waiting                              ├─ in turns ─▶ queries ─────┐  who had less
//	query c     ▪     ─┘         the worker that came first ────┘                           ├─ of the time ─▶ half of the processors
//	compaction  ▪▪▪▪▪ ─────────────────────────────────────────────────▶ background ────────┘
//
// The fewest first, so that a small query does not wait for a page of each worker of large ones. The first that came in between,
// so that small queries, however many, do not hold up a large one. Between queries and compactions time counts, not turns: neither
// keeps the other out, and segments are folded however much is asked. What one side leaves is the other's.
//
// A turn may last: Prometheus' engine keeps its turn while it computes. One that lasts for overdueAfter is left out of the count, so that queries of
// others go on; half as many as there are turns at most, or many such queries would occupy every processor.
package lane
