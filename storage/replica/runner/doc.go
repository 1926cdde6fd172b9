// Package runner copies segments between the placements of a partition, as the machines of storage/replica decide.
//
//	storage/chain/runner ──Leading, Copy, Adopt──┐
//	                                             ▼
//	links ──messages──▶ one loop: Senders of the partitions led here, the server's Receiver ──messages──▶ links
//	                       │ Transit                                │ Accept, Adopt
//	                       ▼                                        ▼
//	                    a goroutine reads the file,              a goroutine writes the unfinished file,
//	                    pieces go at the rate of the server      verifies it, and has the chain adopt it
//
// All machines belong to the loop. What waits for a disk or for a link runs beside it, and reports to the loop.
//
// Bounds (I5): a server receives Settings.SlotsMax of the machine at once, pieces on their way are bounded by the link's window, each
// transfer has one buffer of a piece, and all of a server's transfers together send BytesPerSecond at most, and receive as many, less while
// its log is slow (replica.Rate). Frames of chains go before pieces on a link.
//
// An unfinished file lies beside the segments as <segment>.incoming.tmp. A start of the server removes those that it finds.
package runner
