// Package local is the coordination store of one process: rows in a separate pebble database, fsynced at every
// transaction, so that a process that needs no neighbours needs no etcd.
//
//	key "r/" + row key   value: revision (8 bytes, big endian) + row value
//	key "rev"            value: the highest revision given (8 bytes, big endian)
//
// Pebble treats an unreadable end of its log as the torn end of a crash, and a directory without its marker file
// as a new one. So a witness beside it (witness.go) records the durable state, and Open compares.
//
//	Open: read-only ─▶ rows in memory ─▶ compare with the witness ─▶ open for writing, if the disk has room
//	Commit: pebble, fsync ─▶ witness, fsync ─▶ seen by others
//
// Reading needs no free byte: on a full disk the rows are there, and Commit is Unavailable until there is room.
package local
