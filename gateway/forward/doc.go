// Package forward sends batches to the leaders of their partitions.
//
//	Write(batch) ─▶ stamp ─▶ route by ONE map ─▶ leader of each share ─▶ define new series on its stream ─▶ Insert ─▶ ack
//	                          ▲   │ uncovered times: have partitions made          │                          when all acked
//	                          │   └──────────────────────────────────────────┐     │
//	                          └── the shares that failed ◀─────────────────────────┘ Stale: a newer map or another leader
//	                              until the time-out, within the budget for retries   no leader, no answer: wait for one
//
// A lease that moves from server to server is not an error: the shares without an ack are sent to the new leader. Waiting
// costs nothing, retries do: they are bounded to a tenth of all inserts (budget). A broken stream is opened again, and all
// its series are defined on it again. A silent leader is left once another server leads.
//
// Series are numbered by the table's dictionary, and the numbers are the streams' too: a series travels as labels once
// per server and generation. Every two hours, or when a dictionary fills up slowly, a new generation begins; the old one stays
// until the last batch that uses it is done.
//
// Invariants: I1 (a write returns after every one of its shares was acked at the level), I5 (dictionaries, waits and retries are bounded).
// After an error some shares may be kept: rows are idempotent, so sending the batch again is always right.
package forward
