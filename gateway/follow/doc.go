// Package follow decides which server is asked for a partition, when a silent server is left, when a request waits, and
// when it is abandoned.
//
// Writes, reads and the simulator use these rules and no others. Runners carry them out (package runner).
//
//	Request   one write or read: tries, and the waits between them
//	             ┌───────────────────────────────────────────────────────────┐
//	             ▼                                                           │ a newer map, another leader, or the pause is over
//	          try n ─▶ Attempt per server ─▶ Done of all ─▶ answered         │
//	                      │ Again (no leader, Unavailable, Stale, moved)     │
//	                      ▼                                                  │
//	                   Wait: refresh the map after a Stale, back off ────────┘
//	                      │ the deadline, or as many tries as there may be
//	                      ▼
//	                   GiveUp
//
//	Attempt   one server, asked for one partition or several
//	          asked ─ SilenceMax without an answer ─▶ watched ─ another leads ─▶ left (Moved)
//	            │                                       ├─ nothing else from it either, nor an answer to a ping ─▶ left
//	            └──────────── answer ───────────────────┴──────▶ over
//
// The leaders in the view are hints: a server that does not lead answers Stale. Then its newest map is fetched, also
// without the coordination store, if the answer names it (peer.MapAt).
//
// Machines: no clock, lock, I/O or goroutine; time and randomness come in with the inputs. Nothing is allocated while servers answer.
//
// Invariant: I5 (tries and waits are bounded by a deadline; retries draw on their sender's budget).
package follow
