// Package api is the Prometheus HTTP API over a query.Reader: the API that Grafana, promtool and Prometheus' remote read call.
//
//	GET /api/v1/query_range?…            table "default"
//	GET /t/<table>/api/v1/query_range?…  any table; header and ?db= work too (package tablename)
//
//	request ──table, route──▶ parameters ──▶ query.Table / Engine ──▶ answer ──encoder──▶ envelope, maybe compressed
//	                                                  │
//	                                                 error ──Kind──▶ errorType and status (errors.go)
//
// Envelopes, error types, statuses and the spelling of numbers are Prometheus'; DESIGN.md lists the differences.
// Answers are written as they are encoded, through one pooled buffer: a result of a million points costs no second copy.
// A client that goes away cancels its query. Bodies, running reads and answers have bounds (I5); errors keep their Kind
// until this package turns it into a status (I8).
package api
