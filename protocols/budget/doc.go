// Package budget shares the memory of a process between those that use it, from one number.
//
// A process is given so many bytes. What it holds (rows, names of series, caches, bodies, queries, compactions) is booked
// in accounts before it is allocated, and an account answers no when there is none left. Accounts form a tree:
//
//	process 512 MiB ─┬─ heads    floor 96 MiB
//	                 ├─ queries  floor 64 MiB, max 256 MiB ─┬─ a Loan: one query
//	                 │                                      └─ a Loan: another
//	                 └─ …        what is no account's floor is for whichever asks first
//
// An account may always hold its floor, whatever the others do. Beyond that it draws on what is nobody's floor, as long
// as there is some, up to its max. Nothing is ever taken back: who holds releases.
//
// A Loan may wait for its first chunk, and a small one to grow; a large one is refused when there is no more. So what is
// waited for is always given back: by those that are refused, or end.
//
// A Loan books in chunks, so that a hot path costs an atomic addition for each page of rows, and a lock only for each
// chunk.
//
// Invariants (I5): for every account, used = what it booked itself + for each child max(used, floor), and reservations
// keep used ≤ max; so the floors of the children of an account never exceed its max. Only Force may exceed a max, for
// memory that is there already; until that is released, reservations fail.
//
// Not here: measuring memory. What is not booked is not known.
package budget
