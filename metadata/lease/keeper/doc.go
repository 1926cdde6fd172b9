// Package keeper keeps a process's leases: it drives package lease's machine with a coordination store.
//
//	store ──watch──▶ ┌──────────────┐ ──Leads, Stops──▶ Handler (whoever loads and serves partitions)
//	      ◀─requests─│ Run: Machine │ ◀──Tell────────── assigned, stopped, give up, drain …
//	      ──answers─▶└──────┬───────┘
//	                        └─ MayAct: asked before every change of state, from any goroutine
//
// What is right is decided in package lease; here is only who waits for whom. All goroutines are born in Run and have
// ended when it returns. The clock is the machine's own, and counts the time it was suspended: after a suspend a lease
// is as old as it is for everybody else.
package keeper
