// Package leaders reports which server leads which partition, to processes that do not lead: gateways, pages, people.
//
//	rows "leases/…" ──watch──▶ board ──Find──▶ the server to ask, or why there is none
//	                                 ──Live──▶ is a server's heartbeat seen to change
//
// Its answers are hints: only the server itself can decide whether it may act (lease/keeper), and answers Stale or Unavailable
// if not. So nothing here is fenced, and a gateway that is cut off from the coordination store continues with its last view (C127):
// leaders stay, and no server is considered dead, because only time in which the store answered counts.
//
// Invariant: I5 (one entry per row of the store).
package leaders
