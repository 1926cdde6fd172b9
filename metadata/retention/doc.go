// Package retention decides which partitions are dropped because they are too old, and which drops wait for a person,
// because the clock may be wrong: a host that boots in 2036 must not lose everything within a minute.
//
//	map, wall clock, clock last seen, confirmed ─▶ Judge ─▶ drop these now · hold those, because …
//
// It is pure: no clock, no lock, no I/O, and it does not look at rows. A table without new writes loses its partitions one by
// one as time passes, as any other.
package retention
