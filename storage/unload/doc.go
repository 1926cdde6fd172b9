// Package unload moves the rows of a sealed partition to its heirs: the halves of a split, or the wide partition that closed neighbours
// were merged into. It is a machine without clock, locks or I/O, one for each partition that unloads, for the server that leads it.
//
//	Begin ── Settings.After ─▶ ReadSlice ─▶ Read ─▶ Send ─▶ Sent ok ─▶ … ─▶ every slice is acked: Finish
//	                              ▲                   │ failed
//	                              └── after a pause ◀─┘
//
// A slice is a range of the parent's times. Its rows go to the leaders of the partitions that have their keys by the newest map, at level all and with the
// ranks they have, so that a row that is sent twice, or again by the next leader from the start, changes nothing, and a row that was written again after the
// split stays as it is. Readers ask the parent and its heirs until the parent is out of the map.
//
// A deletion removes rows from the parent first, and then from the others. Here it waits for the slices on their way, and what was read before it is read
// again: so nothing that was deleted arrives after the deletion of the others began. What an earlier leader sent may be on its way
// too: deletions wait until the heirs' leaders refuse it (ending), at most for Settings.SendWithin, unless this leader has led the partition since before it was sealed, as it mostly has.
//
// Invariants: I6 (all rows of the parent are acked at level all before Finish), I9.
package unload
