// Package remote is a coordination store at second hand: a storage server passes its own on to administrators, after it
// checked their certificates, so that commands need no access to the store itself.
//
//	command ─ coord.Store ─▶ Open ─ peer.Rows ─▶ gRPC, mutual TLS ─ role admin? ─▶ Serve ─▶ the server's coord.Store
//
// Serve refuses writes to rows by which the cluster runs itself: heartbeats and the master's. Every row that people change by
// hand may be written.
package remote
