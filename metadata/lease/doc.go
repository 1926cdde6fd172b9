// Package lease decides when this process may act, and when another may: the lease table's arithmetic, pure.
//
// A lease table (C103) distributes partitions among servers with nothing but compare-and-swap on rows. Two kinds of row
// are enough. Each server *process* renews one heartbeat row every second; each active partition has one lease row, which
// changes only when a server acquires or releases it, or changes the in-sync list. So the store sees one write per server
// and second, however many partitions there are.
//
//	leases/beat/<server>            server, boot, store, load, held     renewed every 1 s by its process
//	leases/p/<table>/<id>           holder, boot, epoch, in-sync, ends  compare-and-swap by its holder and servers that acquire it
//	leases/born/<table>/<id>        "this partition had a lease row"    written once, with the first lease row
//	leases/no/<table>/<id>/<server> "not on this server"                written by people
//	leases/swept/<table>            up to which map rows are gone       written by the sweep of dropped partitions' rows
//
//	    0        1        2        3        4        5 s
//	B   ├─sent───┼────────┼────────┤ stops: 3 s after a good renewal was SENT
//	    │  └▶ store                │
//	A   │     └▶ seen ├────────────┼─────────────┤ acquires: 4 s after the LAST change was SEEN,
//	    │                          │             │ comparing both rows in that transaction
//
// A's 4 s begin after B's 3 s began, whatever the network does, and with clocks whose rates are within 10 % of the truth
// 4/1.1 is more than 3/0.9: B has stopped when A begins. No clock is compared with another (C113). The rule
// that C106 was before, to acquire a row that looked unchanged at two scans, lets both act; model_test.go shows it.
//
// No check covers the time between asking MayAct and acting: the process may be paused there. So the epoch, which every
// acquisition raises, is a fencing token that bricks check when they commit (I3).
//
// Maps and leases are compared in the row: the store transaction that commits a map writes the map's number into the lease rows of the partitions that it moves, ends and
// drops (Guard), and acquisitions and changes of the in-sync list wait for a map at least as new. So the first acquisition of a partition compares rows of that partition
// alone, and any number of partitions can begin at once.
//
// Machine has all these rules: Step(now, input) effects. It has no clock, lock, I/O or goroutine. Package lease/keeper drives one with a coordination store. A step
// costs as much as changed (agenda.go); its writes go in batches (batch.go).
//
// Invariants kept: I3 (epochs rise with every acquisition; the rows are never led by two at once), I5 (requests in flight are
// bounded), and: only a placement that the in-sync list names, with the store it had then, ever leads.
package lease
