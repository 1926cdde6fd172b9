// Package rows decides between values: a Run is one series' rows from one source, and Merge makes one Run of many.
//
// Two values at one timestamp: a value beats a stale marker, then the higher stamp wins, then a histogram over a float,
// then the greater bits. A marker is the float or the histogram that Prometheus calls so. This is a total order, so
// every placement agrees whatever the order of arrival (C58, I6). A Run has only the range of its stamps: all its rows count as if
// they had the highest. Where that might not be right (Interleaved), runs are read with the rank of each row (MergeRanked).
//
//	head rows ─┐
//	segment 7 ─┼─ Runs ──Merge──▶ one Run, strictly rising in time
//	segment 9 ─┘
package rows
