// Package smear decides how long rows wait before they are forwarded to their partition (C36 to C44).
//
// All rows of a time-series cluster have the time "now". Where a partition covers seconds, one server gets them all until the next partition begins on
// another server. A delay that differs from series to series fills several partitions at once, and so keeps several servers busy:
//
//	rows forwarded at 12:00:30           without smearing          with a window of 30 s, four groups
//	12:00:00 ├ p1 on a ┤                      ·                    group 3 of 12:00:07.5 ──▶ a
//	12:00:10 ├ p2 on b ┤                      ·                    group 1 of 12:00:15   ──▶ b
//	12:00:20 ├ p3 on c ┤                      ·                    group 2 of 12:00:22.5 ──▶ c
//	12:00:30 ├ p4 on d ┤                 all of 12:00:30 ──▶ d     group 0 of 12:00:30   ──▶ d
//
// Rows that wait are durable and readable: they lie in staging. Only the partition gets them later.
//
// Nothing here has a clock, a lock or I/O. Gateways run it (gateway/forward); Simulate runs the same functions to show how the load of the servers spreads.
package smear
