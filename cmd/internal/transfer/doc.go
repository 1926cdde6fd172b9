// Package transfer moves rows between servers and files: it is what `spillway export` and `spillway import` run.
//
//	server ──/api/v1/export or remote read──▶ Line ──▶ OpenMetrics · text · line protocol · JSON lines · TSDB blocks
//	files ──────────────────────────────────▶ Line ──▶ remote write, 1.0 (rows between milliseconds: line protocol)
//
// A directory of Prometheus is read block by block (blocksource.go), then its write-ahead logs (headsource.go, segmentlog.go).
//
// A Line (package jsonrows) is some rows of one series. Memory is bounded: by a batch for each sender, by a line for each
// format, and for TSDB blocks by the series and chunks of one block.
//
// Both directions note how far they came: an export after each window of time, an import after each batch that was
// acknowledged together with all before it. Rows that are sent again after an interruption replace themselves.
//
// A format that cannot hold a row leaves it out and counts it in Losses, with the reason and an example.
package transfer
