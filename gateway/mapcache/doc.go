// Package mapcache keeps on disk a gateway's view of its cluster, so that it starts and reads while the coordination store
// is away (C127).
//
//	tables ──Save──▶ <dir>/t-<table>.cache     each table's row and map                    (implements tables.Cache)
//	Store  ──keep──▶ <dir>/r-<prefix>.cache    rows of servers and leases, as listed last
//	          └──List, while the store never answered in this life──◀
//
// A file is written beside its place, fsynced, and renamed: it is the old one or the new one, whenever the power goes. A
// file that does not match its checksum is treated as missing. Nothing here is authoritative: servers refuse any request
// that is based on too old an entry, and say so in their answers.
//
// Invariants: I5 (files have a bound in bytes, all together), I7 (fsynced, then renamed).
package mapcache
