// Package columns evaluates chains of PromQL over columns, on all cores, wherever the rows are.
//
// Prometheus' engine visits samples one by one through three layers of iterators and holds a whole selector in memory. A
// dashboard mostly asks for chains of selector, range function, operator with a number, and aggregation. Such a chain is
// evaluated here: series flow through it in batches, and only the result is kept. Gateways compile chains from expressions
// (gateway/query/columnar); storage servers evaluate those that a gateway sends them.
//
//	series ─▶ batches ─┬─▶ windows ▶ operators ─┐  in turn
//	                   └─▶ windows ▶ operators ─┴───────▶ aggregate ▶ further stages ▶ columns
//	                      as many as there are processors
//
// The result is the engine's, bit for bit where the order of its operations is defined: sums are compensated as there,
// and batches reach an aggregation in the order of their series, whichever worker evaluated them. Run gives up with
// ErrAbandoned on data that is not evaluated here (native histograms, series that become equal without their name), and the
// engine evaluates the whole expression.
//
// A column has one value for each step; a stale marker stands where there is none. No arithmetic makes that value: it is
// a signalling NaN, and processors compute quiet ones.
//
// Invariants: the engine's bound on samples is counted as the engine counts (I5); memory is that of the batches under
// way and of the result.
package columns
