// Package keeper keeps a process's leases: it drives package lease's machine with a coordination store.
//
//	store ──watch──▶ ┌──────────────┐ ──Leads, Stops──▶ Handler (loads and serves partitions)
//	      ◀─requests─│ Run: Machine │ ◀──Send────────── assigned, stopped, give up, drain …
//	      ──answers─▶└──────┬───────┘
//	                        └─ MayAct: asked before every change of state, from any goroutine
//
// Package lease makes the decisions; this package has only the waiting. All goroutines are born in Run and have
// ended when it returns. The clock is the machine's own, and counts the time it was suspended: after a suspend a lease
// is as old as every other server sees it.
package keeper
