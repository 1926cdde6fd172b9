// Package tables is the tables as this process knows them: each one's newest partition map, and the changes it may ask for.
//
// A reader takes a map and keeps it for a whole request: one request, one snapshot (C129). A change is a pure op of
// package topology on the newest map, committed by compare-and-swap on the table's row; whoever loses the race applies
// its op to the winner's map and tries again, so that concurrent creators end with one table (C19).
//
//	row "tables/<name>" ──watch──▶ Tables ──Get──▶ *topology.Map (immutable)
//	                    ◀──CAS─── Create · Cover · Drop · SetConfig
//
// Invariants: I2 (one owner per key), by topology's Check on everything that is read or written.
package tables
