// Package clienttest tests Spillway with the clients in common use: real Telegraf and real Prometheus processes write to
// a real spillway process, and their samples are compared with the answers of the query API, value by value.
//
// It exists because a protocol is defined by its clients' behaviour, not by its document: how they retry, which
// answers count as success, which queries they ask first.
//
//	fixed lines ─▶ Telegraf ──v1, v2, remote write──▶ ┐            ┌ query, query_range, series ─▶ = the lines' values
//	exporters ──▶ Prometheus ──remote write 1.0, 2.0─▶ ├ spillway ─┤ …, exemplars, metadata ─────▶ = Prometheus' answer
//	              Prometheus ◀────── remote read ────── ┘ TERM, KILL └ a query through it ─────────▶ = the first one's answer
//
// Everything is in tests behind the build tag "clients", since they need minutes the first time:
//
//	go test -tags clients ./cmd/clienttest/...
//
// install.sh builds the clients once, from their own modules and into .cache/bin; they add nothing to our go.mod. Client libraries of Python and
// Node are used by the programs in libraries/, as their documentation shows.
//
// Invariants it looks after from outside: I1 (acked rows are there after SIGTERM and after SIGKILL), I8 (a refusal
// reaches a client in words that make it go on instead of looping).
package clienttest
