// Package clock decides which time a gateway goes by, where the clock of its machine may be wrong: set back after a boot without a battery, restored with a
// virtual machine, set ahead for a minute until NTP runs.
//
//	storage servers' heartbeats ─▶ Peers  ─┐ State ┌─▶ stamps of rows without a time, "now" of queries: Reading.Now
//	clock that was stored last  ─▶ Memory ─┴───────┼─▶ age bounds of rows:                              Reading.Earliest
//	                       the machine's clock ────┴─▶ future bounds of rows:                           Reading.Latest
//
// In a cluster the storage servers are the witnesses: a majority of them decides (Peers). A process that is alone has no witness that says which of two
// clocks is wrong, only its memory (Memory): then a row is refused only where it is wrong by both.
//
// All decisions are pure: no clock, no lock, no I/O. Clock is the runner: it reads the clocks, and shares the newest State among goroutines.
// DESIGN.md says where a gateway reads which clock, and why.
package clock
