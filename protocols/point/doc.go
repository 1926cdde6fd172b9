// Package point is the batch of rows that every decoder fills, and the words all packages share: series, samples, ids,
// stamps, ack levels.
//
// A decoder finds each series in a Dict by a 128-bit hash of the bytes it was written with, and appends rows in columns
// to a Batch: series id, time, value. Nothing behind the decoder parses or hashes a label again.
//
//	body ──decode──▶ Batch{IDs, Times, Values} ──route──▶ one peer.Insert a partition ──▶ log frame ──▶ head rows
//	          │
//	          └─hash──▶ Dict: raw bytes → SeriesID → labels, ring point
//
// FORMAT.md draws the bytes of labels and of native histograms, which lie in frames, logs and segments; DESIGN.md has the
// figures of Dict.
//
// It keeps I5: a Dict is bounded, whatever hostile senders make it remember.
//
// Memory: a Batch is pooled (GetBatch, Put) and owns its columns; labels are immutable strings and may be kept for ever.
package point
