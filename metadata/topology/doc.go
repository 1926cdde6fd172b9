// Package topology is the partition map as an immutable value; a transaction is a pure function from one map to the next.
//
// The keyspace is ring point × time. A partition is a rectangle of it, half open: [PointLo, PointHi) × [TimeLo, TimeHi).
//
//	time ▲
//	     │  ┌────────┬────────┐
//	     │  │ p7     │ p8     │   a table with two columns of the ring
//	     │  ├────────┼────────┤   and partitions one day wide
//	     │  │ p5     │ p6     │
//	     └──┴────────┴────────┴──▶ ring point
//
// Invariant (I2): no two partitions of a map overlap. Times that no partition covers yet are covered on demand, or ahead
// of time, in aligned steps of the table's partition width.
//
// The package has no clock, lock or I/O: the same op on the same map gives the same bytes everywhere.
package topology
