// Package mapcache keeps on disk what a gateway knows of its cluster, so that it starts and reads while the coordination
// store is away (C127).
//
//	tables ──Save──▶ <dir>/t-<table>.cache     each table's row and map                    (implements tables.Cache)
//	Store  ──keep──▶ <dir>/r-<prefix>.cache    rows of servers and leases, as listed last
//	          └──List, while the store never answered in this life──◀
//
// A file is written beside its place, fsynced, and renamed: it is the old one or the new one, whenever the power goes. What
// does not match its checksum is as if it were not there. Nothing here is the truth: whatever is done by it is refused by
// the servers if it is too old, and their answers say so.
//
// Invariants: I5 (files have a bound in bytes, all together), I7 (fsynced, then renamed).
package mapcache
