// Package ha elects one replica of each HA pair, and keeps only that one's rows, as Mimir's HA tracker does.
//
// Two Prometheus servers that scrape the same targets send each sample twice, with the same label "cluster" and different labels
// "__replica__". The rows of the elected replica are stored without that label. The rows of the others count as accepted and are removed, until the
// elected one is silent for the failover timeout. A request whose rows of the pair are all refused is no sign of life of the replica. Where all rows of both
// replicas are refused each is elected in turn, for a failover timeout: an election counts as a sign of life.
//
//	row of replica b ──Decide──▶ Keep: b is elected, or the elected one is silent and b is elected now
//	                             Duplicate · TooMany: the table has as many clusters as it may
//
//	        elected here first                    no row for failover_timeout
//	(none) ─────────────────────▶ elected a ─────────────────────────────────▶ elected b, the first that sends then
//	                               │     ▲                                         │
//	                               └─────┘ update_interval: its row is touched     └─▶ the row is replaced
//
// The gateways of a cluster agree through a row for each pair in the coordination store. A gateway acts by its own election until the store
// answers, and follows the row from then on. Ages are counted from the moment when this gateway saw a row change, so that clocks need not
// agree. While the store is away a gateway that receives only rows of b accepts these after the timeout: in doubt two replicas are kept, which costs
// duplicates, and none is lost.
//
// Machine: no clock, lock, I/O or goroutine. Package tracker runs it.
//
// Invariant: I5 (EntriesMax pairs, RowsPerCommit × CommitsPerTick writes a tick).
package ha
