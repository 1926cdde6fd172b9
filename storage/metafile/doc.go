// Package metafile is METADATA files on a storage server's disk: files.Disk on the catalogue of its brick.
//
//	files.Server ── Put, Get, List, Delete ──▶ Disk ──▶ brick's catalogue
//	                                                     m/file/<table> 00 <txn>   what stands before the map
//	                                                     m/map/<table> 00 <txn>    the map
//
// The two keys of a file are written and deleted by one commit each, fsynced when Put returns. What stands before the map
// has a key of its own, so that a start reads a few dozen bytes per file and not every map there is.
//
// Keeps I5 (sizes are checked before they are written) and I7 (Put returns after the fsync).
package metafile
