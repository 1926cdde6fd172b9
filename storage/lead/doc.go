// Package lead keeps what a storage server does in step with its leases and with the tables' maps.
//
//	tables' maps ──Changed──▶ discovery: Plan(map, what is here) ─▶ Assigned ──▶ ┌────────┐ ◀─▶ coordination store
//	                              │ seal · remove · forget · alarm               │ keeper │
//	                              ▼                                              └───┬────┘
//	 insert ─▶ server.Server ──MayAct, Hold, Alone──▶ Lead ◀──Leads, Stops, InSyncSet┘
//	                              ▲                    │ Stopped: once nothing is under way
//	                              └──Quiesce, Seal─────┘
//
// It is the server's Leases: every change asks MayAct before and after (C105), and the first row of a partition under an
// epoch waits for Hold, which makes the in-sync list this placement alone. So an empty partition may be led by any of its
// placements at any time, and one with rows by none but the one that has them.
//
// All that is decided, is decided by a machine (package rules); this package runs it. Only what a map says explicitly that is not
// older than any seen before is deleted, and never the only copy of acked rows. All else is an alarm.
//
// Invariants kept here: I1 (a frame is acked when nobody else can lead without it), I3 (the brick's epoch is raised before
// the first frame), I5 (waits and requests are bounded).
package lead
