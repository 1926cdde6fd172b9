// Package backup writes the contents of a store into a directory that can be copied anywhere, or into a bucket (package s3), and
// restores a store.
//
//	server.Snapshot ──▶ Content: catalogue entries, segments    (rows that were acked before it began are in segments)
//	                        │
//	                      Write ──▶ PLACE/segments/<checksum>-<size>.seg     each once, however many backups name it
//	                        │       DIR/<time>.backup                      appears last: a backup that is there is whole
//	                        ▼
//	     Prune · List · Verify · Restore ──▶ an empty data directory
//
// A segment never changes (I4), so a later backup into the same place copies only new segments. Copies are checked against the
// checksum in the catalogue; damage in the store is not spread: the backup names the segment as missing.
//
// Invariants kept here: I7 (bytes fsynced, then names, then the file that makes the backup count), I8.
//
// FORMAT.md draws the files. Refused here: choosing what belongs into a backup (package server), schedules.
package backup
