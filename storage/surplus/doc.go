// Package surplus gives the leaders of partitions the rows that a copy set aside when it followed them.
//
//	former leader   log: … │ frames that the new leader never had        partition.Cut sets them aside in a file, with their labels
//	                        └─▶ file ─▶ each frame's rows, with their ranks ─▶ Insert at the leader, level all, Inherit ─▶ file removed
//
// Such rows were acknowledged at the levels received or one, or not at all; the file does not record which. So all of them are sent, and the leader keeps those that
// it does not have yet with that rank or a higher one: a row that was written again, overwritten or deleted since does not come back (I9). A file that is
// handed over twice, because a process died before it removed it, changes nothing.
//
// Deletions in a file are left out. A deletion is acknowledged by all copies or fails, so that these failed.
//
// Bounds (I5): one file at a time is read, which is no larger than the frames that a leader may have unacknowledged (storage/chain, Settings.BacklogBytesMax).
package surplus
