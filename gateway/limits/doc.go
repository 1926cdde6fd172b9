// Package limits bounds each table's use of a gateway, so that one table's senders and readers do not use another's share.
//
//	        header          body read        decoded                  stored
//	request ──Begin──▶ … ──Ticket.Read──▶ … ──Ticket.Samples──▶ … ──Ticket.Accepted──▶ answer ──Ticket.End
//	          │ refused: requests, request_bytes, bytes_per_second, samples_per_second
//	          ▼
//	        429 or 503 with Retry-After, before a byte of the body was read
//
//	new series ──Table.NewSeries──▶ active_series (for good), new_series_per_second (passes)
//	query ─────Registry.EnterQuery▶ query_concurrency, query_timeout; QueryOf(ctx) holds the others
//
// Rates are token buckets that are checked before a request and charged after it was read: a request is accepted while the
// bucket is not empty, and may overdraw it by its own size. So nothing is read or decoded only to be refused, and no
// request is decoded twice; the debt delays the requests behind it, and the average is kept.
//
// A limit of 0 is none. A table in dry run counts what its limits would refuse, and refuses nothing.
//
// Senders cannot grow the state by their choice of names: a table has state here once it exists, tables are bounded
// (tables.max), and metrics name at most Settings.MetricsTablesMax of them, the rest together (I5). Refusals keep their
// Kind (I8): Throttled if they pass with time, Invalid and TooLarge if they do not.
//
// Nothing is done per sample: per request a lock of the table and a few additions, per new series one of each.
//
// Not here: bounds for all tables together (intake's bytes in flight, the store's budgets), and times of rows, which
// package admit compares.
package limits
