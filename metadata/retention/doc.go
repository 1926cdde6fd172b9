// Package retention decides which partitions are dropped because they are too old, and which drops wait for a person,
// because the clock that says so may be wrong: a host that boots in 2036 must not lose everything within a minute.
//
//	map, wall clock, clock last seen ─▶ Judge ─▶ drop these now · hold those, because …
//
// Pure: no clock, no lock, no I/O. Refuses to: know of rows. A table that nobody writes to any more loses its partitions one by
// one as time passes, as any other.
package retention
