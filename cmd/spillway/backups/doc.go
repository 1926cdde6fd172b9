// Package backups has the commands backup and restore, and the orders that they send to a running process: their paths, their bodies in JSON,
// and the lines of progress in the answer.
//
//	spillway backup  ── Order, RestoreOrder ──▶ admin.listen of a process
//	spillway restore ◀─────── News, News, … ───
//
// Restore without --url makes a data directory itself. Processes carry out orders elsewhere; they share the forms with the commands, and how
// a place is named: a directory, or s3://bucket/prefix.
package backups
