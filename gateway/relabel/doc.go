// Package relabel rewrites or drops series by Prometheus' write_relabel_configs, for every protocol alike.
//
//	decode ──▶ point.Dict: a series that is new ──Rules.Relabel──▶ other labels, or dropped     (once a series, never a sample)
//	                └▶ known bytes ──▶ number                        rows of dropped series leave the batch before it is checked
//
// Rules are those of all tables, then those of the table. They apply to series as they are received, before limits of labels, and so
// also to what Kafka brings. Rows of a dropped series count as accepted: their sender has nothing to mend.
//
// Rules that change begin a new dictionary for each table, so that known series are rewritten by the new ones.
// Not here: relabelling of stored rows, and of queries.
package relabel
