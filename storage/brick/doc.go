// Package brick is the durable floor of a storage node: data that it acknowledged comes back after any crash, byte for byte.
//
// It holds two things. The common log holds every frame of every partition, so that one fsync serves all waiting callers (C84): a
// placement's private log is the list of its extents in the common log, kept in memory. The catalogue is a small durable map for
// everything that changes rarely: placements, segment lists, highest epochs.
//
//	Append(p, serial, rec) ──▶ scratch: header + rec ──lock──▶ LogWriter block ──▶ file ──fsync──▶ every Wait up to here
//	                                                 │
//	                                                 └─▶ extents of p: (serial, file, offset, bytes)   32 B a record
//
//	log/…0001.log  [header|p1|p2|p1|……|trailer]   closed: its end is in the catalogue, anything wrong there is damage
//	log/…0002.log  [header|p2|p1|…                open: the first bad byte is the end, unless a record behind it proves
//	                                              that the bytes there had been fsynced; then it is damage
//
// A checkpoint (Release) releases extents; a file without needed extents is deleted. Pinning names the placements that hold the
// oldest files; their owners flush them, or Rewrite copies a few records forward.
//
// Keeps I1 (Wait returns nil only after the fsync), I3 (highest epochs, durable before a frame of that epoch is accepted;
// a failed write or fsync fences the brick for good), I5 (bytes in flight are bounded), I7 (directory entries and
// catalogue entries are durable before records that depend on them; deleting comes after the entry is gone).
//
// It does not compress, interpret records, retry a sync, append to a file of an earlier life, or share its directories with another process.
package brick
