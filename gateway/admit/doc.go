// Package admit refuses early, cheaply, and with a reason.
//
// It stands between the decoders and the router and looks at one batch at a time: too many rows refuse the request, a time
// that the table cannot keep refuses the row. Accepted rows stay in their places and in their order.
//
//	decode ──▶ Batch ──▶ admit ──▶ Batch of rows that can be kept ──▶ route
//	                       └──▶ Batch.Refused: item, text, reason; Batch.RefusedRows
//
// Labels are not looked at again: point.LabelsBuilder bounds their number and lengths when a series is first seen.
// Everything here is pure: no clock, no lock, no I/O. It keeps I5: a request's rows are counted before they are routed,
// and reasons are bounded by point.RefusalsMax.
//
// Not here: write permissions (checked before there is a batch), and rates (a full queue answers behind the router).
package admit
