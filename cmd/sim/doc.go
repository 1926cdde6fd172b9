// Command sim plays a cluster's life in one goroutine: the real machines of metadata and storage between simulated
// networks, disks and clocks, so that a million things go wrong in a minute, and go wrong again the same way by one seed.
//
//	           ┌───────────── heap of timers: what happens next ─────────────┐
//	           │ one at a time; everything random from one source            │
//	gateways ──┤   rows, reads, changes of the map                           │
//	servers  ──┤   lease.Machine · chain.Machine · mapstore.Txn, mapstore.Shelf · lead.Plan ·      │
//	           │   topology.Apply · a brick, a disk that is synced late      │
//	store    ──┤   compare-and-swap rows, watches that are late and forget   │
//	nemesis  ──┘   loss, cuts, crashes, lost disks, pauses, wrong clocks …   ┘
//	                         │ all of it, as it happens
//	                         ▼
//	           checker: I1 acked rows are there · I2 the keyspace is covered once, maps are a chain, files on a majority ·
//	                    I3 at most one leader acts at a time, epochs never fall
//
// After the given number of events all faults stop; then, within bounded simulated time, the cluster must be whole: every
// partition led by a server in sync, every metadata server with the committed file, every client answered.
//
//	go run ./cmd/sim -seed 0x2f9c31 -events 1000000 -faults all
//	make sim SEED=0x2f9c31 EVENTS=1000000 FAULTS=partition,crash
//
// A violation prints the invariant, the last events, and the line to paste. DESIGN.md lists the simulated parts, and the others.
package main
