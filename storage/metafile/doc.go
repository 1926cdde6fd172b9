// Package metafile stores METADATA files on a storage server's disk: mapstore.Disk on the catalogue of the brick.
//
//	mapstore.Server ── Put, Get, List, Delete ──▶ Disk ──▶ brick's catalogue
//	                                                     m/file/<table> 00 <txn>   the file's head
//	                                                     m/map/<table> 00 <txn> n  the map, in pieces of 64 KiB, or
//	                                                     m/link/<table> 00 <txn>   the ops that lead to it from another's
//
// The keys of a file are written by one commit, fsynced when Put returns. The head has a key of its
// own, so that a start reads a few dozen bytes per file and not every map there is.
//
// A transaction that adds a partition to a hundred thousand writes a few hundred bytes, not the map again: the file is kept as a link, the ops since the
// file before it. Now and then, in the background, one is made whole (Tidy), so that few links have to be walked. Files and links on which others stand
// are kept as long as those. Each link has a sum, and a map that is read is checked against its digest.
//
// Before, each file kept all ops since a whole one: it needed no other link, and the catalogue's compactions rewrote a hundred times the bytes that a
// transaction changed. A damaged link makes all files above it absent here; they are fetched from another metadata server.
//
// Keeps I5 (sizes are checked before they are written) and I7 (Put returns after the fsync).
package metafile
