// Package runner moves the rows of the partitions that unload and are led here to their heirs (package unload has the rules).
//
//	Set ─▶ EndWrites ─▶ Begin ─▶ ReadSlice: read with ranks, one frame for each rank ─▶ Send: deliver ─▶ Sent ─▶ … ─▶ Finish ─▶ Deps.Finished
//	Delete ─▶ waits for Permit ─▶ the caller deletes ─▶ Deleted
//
// All partitions of a server together read Settings.BytesPerSecond; a slice's rows are a loan of the memory for queries, which is refused where there is
// little: foreground work goes first.
//
// Goroutines: one for each partition, and one for each slice of it that is read or on its way.
package runner
