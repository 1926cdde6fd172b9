// Package rpc is peer.Storage and peer.Metadata between processes: the same interfaces over gRPC, with rows in columns of
// raw bytes.
//
// A Server serves the Storage and Metadata of one process; a Peer is another process' view of them. A Peer differs from
// the local object only by the duration of calls and by one more error: Unavailable.
//
//	gateway                                             storage server
//	Peer ─┬─ Inserts ── define, insert, insert … ─────▶ one Storage.OpenStream ─▶ workers ─▶ fsync
//	      │     └────── ◀ acks, in any order ────────── (one gRPC stream a generation, table and server)
//	      ├─ Select ──▶ ◀ batches: labels, times, values
//	      ├─ LabelNames, Stats, Store … : a protobuf message in chunks, each way
//	      └─ Ping, when nothing was received for a while
//
//	storage server ◀══ Link: urgent messages, frames, segments ══▶ storage server      one for the placements of all partitions
//
// Promises beyond the interfaces:
//
//   - A fault keeps its Kind and its message. Failures of the network are Unavailable; the end of the caller's own context is
//     Canceled, or Unavailable if it was its deadline.
//   - A call to a peer that is gone fails at once: calls do not wait for a connection longer than ConnectMax,
//     and a peer that is frozen or cut off ends the calls in flight after SilenceMax.
//   - An error of a stream that cannot be used any more has peer.ErrStreamBroken in its chain.
//   - Every message, window and number of calls is bounded (I5), and Throttled is the answer at the bound.
//   - Certificates of one authority on both sides, unless Insecure; files are re-read when they change. Each states the
//     role of its process, which decides the calls it may make (identity.go): else Denied.
//
// It keeps I1 in that only the peer's answer says that rows are safe: a lost ack is an error.
//
// FORMAT.md draws the raw messages, DESIGN.md has figures and decisions.
package rpc
