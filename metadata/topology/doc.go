// Package topology is the partition map as an immutable value; a transaction is a pure function from one map to the next.
//
// The keyspace is ring point × time. A partition is a rectangle, half open: [PointLo, PointHi) × [TimeLo, TimeHi).
//
//	time ▲        column 0     column 1
//	     │  ┌────────────┬───┬───┬───┐
//	     │  │            │p12│p13│p14│   presplit: narrow ones before now reaches them
//	now ─┼─ │    p7      ├───┴───┴───┤
//	     │  │            │    p8     │
//	     │  ├────────────┼─────┬─────┤
//	     │  │    p5      │ p10 │ p11 │   split: they replaced p6, which unloads into them
//	     │  └────────────┴─────┴─────┘
//	     └──────────────────────────────▶ ring point
//
// A proposer plans a change as ops on the newest map, with every random number and clock reading in them. All metadata
// servers apply them to the same map and get the same bytes:
//
//	proposer ──[]Op──EncodeOps──▶ server: DecodeOps ──Apply──▶ map, seq + 1 ──Encode──▶ METADATA file, checksum
//
// A partition's life. Find gives the one that accepts writes, Overlapping all that hold rows to read:
//
//	                               ┌──SplitAbort──┐
//	                               ▼              │
//	Create, Presplit ──────────▶ Live ──SplitBegin──▶ Splitting ──SplitFinalize──▶ Unload ──UnloadFinal──▶ gone
//	                               └──────────────Merge──────────────────────────────▲
//	writes                        itself           itself, until sealed            those it unloads into
//	reads                         itself           itself                          itself and those
//
// Drop and Expire end it in any state.
//
// Invariants, which ops keep and Check reports:
//   - I2: of the partitions that accept writes (Live, Splitting) no two overlap, and covered space stays covered unless an
//     op drops it. Times that nothing covers yet are covered on demand (Covering) or ahead (Presplitting), in columns.
//   - Ids and Seq only rise; an id is never given out twice.
//   - A partition lies on one server at least, on none twice, and no op brings live placements below Replicas (C34).
//   - One that unloads names the partitions that get its rows (C27), and goes after those that still unload into it.
//   - I5: partitions, placements, columns, ops and bytes are bounded by the constants …Max.
//
// A map shares with the one before it all but the few leaves that changed (index.go), so that an op on 100,000 partitions
// costs microseconds and readers may keep old maps. The package has no clock, lock or I/O. FORMAT.md draws the bytes,
// DESIGN.md has decisions and figures.
package topology
