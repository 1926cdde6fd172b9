// Package partition is one partition's placement on one server: rows in, kept, folded into segments, and read.
//
//	Append ──▶ frame ──▶ brick (common log, fsync) ──▶ ack
//	              └────▶ head rows ──flush──▶ minor ─┐
//	                     (frozen heads)      minor ─┼─compact──▶ major
//	                                         major ─┘
//	View = one snapshot of heads and segments ──Match──▶ series ──Read──▶ rows, one value a timestamp
//
// A placement that follows receives frames and segments of a leader elsewhere instead (follow.go):
//
//	Follow ──▶ brick, as it is ──▶ head rows ──FREEZE──▶ frozen heads ──Adopt──▶ the leader's segments
//
// Decisions are pure (policy.go: when to flush, what to compact); a thin runner around them moves the bytes.
//
// Invariants kept here:
//   - I1: Append returns when the level asked for is reached, not before.
//   - I4: a segment is never changed after it is in the catalogue.
//   - I5: heads are flushed at a byte budget, series and deletions have bounds and are Throttled beyond.
//   - I6: rows of a partition = rows in log frames after flushed() + rows in segments; nothing is in neither.
//   - I7: segment fsynced → catalogue entry → log released; a replaced segment's file is removed after that entry.
//
// FORMAT.md draws the catalogue entry; DESIGN.md has the state after a crash at each step, and the decisions.
package partition
