// Package query answers PromQL and Prometheus' storage interfaces from rows that lie in columns elsewhere.
//
// The engine is Prometheus'; its storage is ours. A selector becomes one peer.Select, its series come back in label
// order with their rows in columns, and iterators walk those columns without copying or converting them. Parts of an
// expression that can be evaluated over whole columns never reach the engine: package columnar evaluates them, with the
// same result.
//
//	PromQL ──gate, cut──▶ columnar ─────────────────────peer.Select──▶ Source: one server, or many merged by labels
//	             └──Engine──▶ Table ──Querier──▶ set ──peer.Select──▶
//	                          limits              └──▶ series ──▶ iterator over times []ns, values []float64, histograms
//
// Time. PromQL thinks in milliseconds, rows are kept in nanoseconds: a select covers [mint·1e6, maxt·1e6+999,999], and
// rows that share a millisecond collapse to the newest, where a stale marker never wins over a value.
//
// Invariants: nothing here grows without a bound (I5): queries that run and wait, series and rows that one query loads,
// steps, samples, and the bytes in all, which are a loan of the process' memory. An error keeps the Kind that the source
// gave it (I8), inside a promql.ErrStorage.
//
// Not here: caching of results, writing, and anything about HTTP.
package query
