// Package s3 keeps backups in a bucket of S3 or of a store that speaks its protocol.
//
//	s3://BUCKET/PREFIX ──▶ PREFIX/20261122T070552.335Z.backup · PREFIX/segments/fffffffffffffffe-1229.seg · PREFIX/LOCK
//
// The names are those of a directory with backups, so that a tool that copies files moves backups between the two.
// An object appears when it is whole, and a listing shows it at once: that is all that package backup asks of a place. Every upload
// carries its MD5, which the store checks; large files go in parts, each of which is tried again by itself; a download that breaks
// goes on at the byte where it broke.
//
// LOCK is an object that names the store that writes. One store is open in one process at a time, so that a process adopts the
// lock that its own store left behind, and needs no clock for it; the lock of another store is respected until a person removes it.
package s3
