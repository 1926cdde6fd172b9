// Package metafile is METADATA files on a storage server's disk: mapstore.Disk on the catalogue of its brick.
//
//	mapstore.Server ── Put, Get, List, Delete ──▶ Disk ──▶ brick's catalogue
//	                                                     m/file/<table> 00 <txn>   what stands before the map
//	                                                     m/map/<table> 00 <txn> n  the map, in pieces of 64 KiB, or
//	                                                     m/ops/<table> 00 <txn>    the ops that lead to it from another's
//
// The two keys of a file are written by one commit, fsynced when Put returns. What stands before the map has a key of its
// own, so that a start reads a few dozen bytes per file and not every map there is.
//
// A transaction that adds a partition to ten thousand writes a few hundred bytes, not the map again: the file is kept as
// the ops since a file that is kept whole, its root, until they are too many or too long. Every such file names its root
// and needs nothing else; a root stays for as long as a file needs it. What is read is held against the map's digest.
//
// Keeps I5 (sizes are checked before they are written) and I7 (Put returns after the fsync).
package metafile
