// Package tracker runs package ha's machine: it asks it about the rows of requests, and keeps its rows in the coordination store.
//
//	batch ──Resolve──▶ ┌─────────┐ ◀──watch── rows ha/…   (a standalone process has no store)
//	 rows of elected ◀─│ Machine │ ──commits─▶
//	                   └─────────┘
//
// A request asks once for each of its senders, not once for each sample.
package tracker
