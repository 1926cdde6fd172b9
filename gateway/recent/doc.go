// Package recent keeps the lists that help first when something is slow, missing or too much: the running queries, those that lasted
// long or failed, the refused requests, each with its reason, and the last senders.
//
//	query.Engine ──Begin/End──▶ Queries  ──▶ GET /api/v1/status/queries
//	intake.Front ──Note───────▶ Refusals ──▶ GET /api/v1/status/refusals
//	     "       ──Note───────▶ Senders  ──▶ GET /api/v1/status/senders
//
// Invariant I5: each list has a fixed number of entries with texts of a fixed length, whatever is sent. A full list gives
// up the oldest entry of the table that has most, so that one table cannot drive out the entries of another. Readers see
// the entries of the tables that they may read: texts hold labels and values of their table.
package recent
