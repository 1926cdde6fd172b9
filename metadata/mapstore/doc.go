// Package mapstore keeps METADATA files: a table's partition map on a majority of its metadata servers, then one
// compare-and-swap of the table's row.
//
// The coordination store is for small rows only (C03), and a map grows with its partitions. So the row names a
// transaction, and the map lies in a file of that name on N storage servers:
//
//	              Change(base, new txn, ops)               row "tables/<t>" = {txn, seq, metadata servers}
//	proposer ──────────────▶ any metadata server ── 1 read ───────────▶ is base the committed transaction?
//	                                 │
//	                                 ├─ 2 Store(ops) ─▶ own disk  ─fsync─┐
//	                                 ├─ 2 Store(ops) ─▶ another   ─fsync─┼─▶ 3 a majority has it
//	                                 └─ 2 Store(ops) ─▶ a third one  … ──┘      │ (the others follow in the background)
//	                                                                            ▼
//	proposer ◀── 5 txn, seq ─────── 4 swap the row, if it is still as read in 1: the commit point;
//	                                  in the same store transaction the number goes into the lease rows of the
//	                                  partitions that move, end or go (guards.go, lease.Guard)
//
// Ops are pure, so every server computes the same map. Servers compare digests, which ops update at the price of the parts they
// touch, and a server that comes to another map stops the transaction (C06). Where a server lacks the base it says so and
// gets the file whole. Nothing else encodes a map: a transaction costs the size of its change, not of the map.
//
// Followers (gateways, storage servers, the master, metadata servers that missed a Store) fetch by the same rule: one that
// has a map asks for the ops of each transaction since, and is sent the file whole where these are not remembered any more:
//
//	Fetch ─▶ server ──{Steps since}──▶ apply ─▶ does the digest match the server's? ─▶ the map
//	  │         └─────{Map}──────────▶ decode ─────────────────┘        │ no: fetch it whole
//	  └─▶ next server: at once after an error, beside the first after a silence
//
// Every step may be done twice: the proposer drew the transaction's name, so proposing, storing and swapping again finds
// the earlier result (C05). A lost answer of the swap is resolved by reading the row, and the history of files, and looking
// for one's own transaction (C08). A list of servers that changed meanwhile changed the row too (C09): then it begins
// again, and asks the new list.
//
// Txn (one transaction) and Shelf (the files of a server, and those it may delete) are pure machines. Coordinator and Server run them:
// Coordinator for any process that makes tables, Server for those that keep files.
//
// Invariants kept: I2 (by topology's Apply), I5 (queues, caches, undecided files), I7 (file durable
// before the row names it, deleted only when no row can name it any more). And: the committed transaction's file is on
// a majority of the row's servers.
//
// Outside its scope: the meaning of ops, deletion by time, configuration anywhere but in the map.
package mapstore
