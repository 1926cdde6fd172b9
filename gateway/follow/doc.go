// Package follow decides which server is asked for a partition, when a silent one is left, when a request waits, and when it gives up.
//
// Writes, reads and the simulator go by these rules and have none of their own. Runners perform them (package runner).
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
//	            └──────────── answer ─────────────────┴──────▶ over
//
// The leaders that are known are hints: a server that does not lead answers Stale. Then its newest map is fetched, also without the
// coordination store, where the answer says which it is (peer.MapAt).
//
// Machines: no clock, lock, I/O or goroutine; time and randomness come in with the inputs. Nothing is allocated while servers answer.
//
// Invariant: I5 (tries and waits are bounded by a deadline; what is sent again draws on its sender's budget).
package follow
