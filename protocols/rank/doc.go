// Package rank decides which of two writes to one series and timestamp is the later one, whatever the clocks say.
//
// Every row has a rank (point.Stamp); of two values at one time the higher rank wins. Ranks are hybrid logical clocks: they
// follow real time where it rises, and count where it does not.
//
//	   63                                             10 9        0
//	┌───────────────────────────────────────────────────┬──────────┐
//	│ unix time in units of 1,024 ns, and logical steps  │ gateway  │     a logical step adds one unit
//	└───────────────────────────────────────────────────┴──────────┘
//
//	gateway: Clock.Tick ──stamp──▶ leader: Ahead? ──yes──▶ refused with the servers' time ──▶ Clock.Refused, Tick, again
//	                                  │ no
//	                                  ▼
//	                               Seen.Late: one that was given up half a second ago is sent back for a new stamp
//	                               Seen.Take: so is an earlier try of it
//	                                  ▼
//	                               Order.Next: above all the partition's rows ──▶ log, head, segments
//
// A leader raises the rank of every row that comes to it directly, so of two acked writes that did not overlap in time the
// later one wins exactly. No clock decides that: one that is slow, set back or an hour off changes only how ranks look.
// Clocks decide between rows that no common leader ordered; there the bound of AheadMax and the median of the
// servers' clocks (Servers) limit the error.
//
// The types here are pure: no clock, no lock. Gateways (gateway/forward), leaders (storage/partition) and cmd/sim use them.
package rank
