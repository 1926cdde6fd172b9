// Package tables holds this process's view of the tables: the newest partition map of each, and the changes it may ask for.
//
// A reader loads a map and keeps it for a whole request: one request, one snapshot (C129). A change is made of ops,
// planned on the newest map and proposed to a metadata server (package mapstore); the loser of a race plans again on the
// winner's map, so that concurrent creators end with one table (C19).
//
//	row "tables/<name>" ──watch──▶ Machine ──which transaction?──▶ Fetch: the ops since our map, or whole ───────┐
//	                                                                                                             ▼
//	Change · Cover · Drop · SetConfig ─▶ group ─▶ plan, plan, plan … ─▶ one transaction ─▶ Get ─▶ *topology.Map
//	                                       ▲                                   │                    (immutable)
//	                                       └────────── Stale: plan again ◀──────┘
//
// Changes of one table that come together in one process are planned one after the other, each on the map that the one
// before leads to, and proposed as one transaction: a thousand writers that find a new day uncovered make one.
//
// A Machine makes the decisions (which map is the newest, when it is fetched and from which servers, when that is tried again, which is old),
// one for each table. It is pure; Tables runs them, and so does cmd/sim. mapstore.Coordinator.Fetch fetches, checks and
// hedges METADATA, in all processes alike. Each table has its own fetch: one with silent metadata servers
// delays no other.
//
// The newest map here is served for as long as no newer one can be had: neither the store nor a metadata server needs to
// answer for reads to go on (C127). With a Cache a process starts without them, too.
//
// Invariants: I2 (one owner per key), by topology; I5 (proposals that wait, and maps being fetched, are bounded); a
// table's map never goes back to a lower sequence number.
package tables
