// Package lead makes a storage server follow its leases and the tables' maps.
//
//	tables' maps ──Changed──▶ discovery: View{map, placements} ───▶ Assigned ──▶ ┌────────┐ ◀─▶ coordination store
//	                              │ seal · remove · forget · alarm               │ keeper │
//	                              ▼                                              └───┬────┘
//	 insert ─▶ server.Server ──MayAct, Hold, Alone──▶ Lead ◀──Leads, Stops, InSyncSet┘
//	                              ▲                    │ Stopped: once nothing is under way
//	                              └──Quiesce, Seal─────┘
//
// It is the server's Leadership: every change asks MayAct before and after (C105), and the first row of a partition under an
// epoch waits for Hold, which lists the placements on live servers as in sync; without copies, this one alone. So any placement of an empty partition
// may lead it at any time, and a partition with rows is led only by a placement that the list names.
//
// A machine (package rules) makes all decisions; this package runs it. It deletes only by the explicit words of a map that is not
// older than any seen before, and never the only copy of acked rows. Everything else is an alarm.
//
// Invariants kept here: I1 (a frame is acked when no server without it can lead), I3 (the brick's epoch is raised before
// the first frame), I5 (waits and requests are bounded).
package lead
