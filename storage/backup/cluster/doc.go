// Package cluster backs up all tables of a cluster into one place, and gives a backup's rows to another cluster.
//
//	Write    maps ─▶ staged rows of every server that has some ─▶ each partition's leader: flush, snapshot ─▶ segments ─▶ manifest, last
//	Restore  manifest ─▶ tables, partitions ─▶ each placement in a store of its own, read with ranks ─▶ Insert at the leaders ─▶ staged rows
//
// A backup has every row that was acked before it began. Staged rows are read before partitions: a row that left its staging meanwhile is in the snapshot of its
// partition, which comes later. A partition that is gone from the map when its turn comes was split or merged, and those that have its rows now are backed
// up anew. So a manifest has, per table, one map, and of each partition of it a snapshot as new as the map.
//
// Segments are the leader's files, byte for byte (I4): placements of a partition share them, so that the next backup copies only new ones, whichever server leads then.
// A restore writes rows with the ranks they had (I9), so that the order of parts, and a second run of it, change nothing.
//
// Refused here: schedules, and users, roles and limits, which are files of gateways.
package cluster
