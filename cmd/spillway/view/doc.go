// Package view is a process's view of its cluster: the coordination store, the storage servers and the connections to them, the leaders of
// partitions, the maps of tables.
//
//	coordination store ─▶ mapcache (a gateway's, on disk) ─▶ registry, leaders ─▶ peers ─▶ tables
//
// Gateways and storage servers have one, and so have tests that follow a cluster from outside. A gateway starts and reads from its disk when
// the store is away (C127); a storage server acts on rows that it reads.
package view
