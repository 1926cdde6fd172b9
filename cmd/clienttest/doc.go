// Package clienttest lets the clients people have talk to Spillway: real Telegraf and real Prometheus processes write to
// a real spillway process, and what they sent is compared with what the query API gives back, value by value.
//
// It exists because a protocol is what its clients do, not what its document says: how they retry, what they take for
// success, which queries they ask first.
//
//	known lines ─▶ Telegraf ──v1, v2, remote write──▶ ┐            ┌ query, query_range, series ─▶ = what the lines say
//	exporters ──▶ Prometheus ──remote write 1.0, 2.0─▶ ├ spillway ─┤ …, exemplars, metadata ─────▶ = what Prometheus says
//	              Prometheus ◀────── remote read ────── ┘ TERM, KILL └ a query through it ─────────▶ = what the first says
//
// Everything is in tests behind the build tag "clients", since they need minutes the first time:
//
//	go test -tags clients ./cmd/clienttest/...
//
// install.sh builds the clients once, from their own modules and into .cache/bin; nothing of them enters our go.mod.
//
// Invariants it looks after from outside: I1 (what was acked is there after SIGTERM and after SIGKILL), I8 (a refusal
// reaches a client in words that make it go on instead of looping).
package clienttest
