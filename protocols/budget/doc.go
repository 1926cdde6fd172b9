// Package budget shares the memory of a process among its users, from one number.
//
// A process has a fixed number of bytes. Everything it holds (rows, names of series, caches, bodies, queries,
// compactions) is booked in accounts before it is allocated, and an account refuses when none are left. Accounts form a
// tree:
//
//	process 512 MiB ─┬─ heads    floor 96 MiB
//	                 ├─ queries  floor 64 MiB, max 256 MiB ─┬─ a Loan: one query
//	                 │                                      └─ a Loan: another
//	                 └─ …        memory outside all floors: first come, first served
//
// An account may always hold its floor, whatever the others do. Beyond that it draws on the memory outside all floors,
// as long as there is some, up to its max. Memory is never revoked: the holder releases it.
//
// A Loan may wait for its first chunk, and a small one to grow; a large one is refused when there is no more. So the
// memory that a loan waits for is always released: by loans that are refused, or end.
//
// A Loan books in chunks, so that a hot path costs an atomic addition for each page of rows, and a lock only for each
// chunk.
//
// Invariants (I5): for every account, used = its own bookings + for each child max(used, floor), and reservations keep
// used ≤ max; so the floors of the children of an account never exceed its max. Only Force may exceed a max, for
// memory that is there already; until that is released, reservations fail.
//
// Not here: measuring memory. Memory that is not booked does not count.
package budget
