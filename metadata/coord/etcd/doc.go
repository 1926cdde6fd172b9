// Package etcd is the coordination store of a cluster: rows in etcd, under a prefix of their own.
//
//	row key "tables/cpu"  ──▶  etcd key "<prefix>/tables/cpu"
//	row revision          ──▶  the key's ModRevision
//	Commit                ──▶  one Txn: ModRevision compared, then puts and deletes
//	Get, List             ──▶  linearizable reads, as of one revision
//	Watch                 ──▶  a watch that survives lost connections; compacted → coord.ErrCompacted
//
// Every request has a time limit, and is sent once: a Commit without an answer may have happened, and only its sender
// can find out by reading. Every fault of the network and of etcd is Unavailable, with etcd's text in the message.
//
// No other package of the product imports etcd.
package etcd
