// Package rules decides what a storage server does about its leases and its tables' maps. It is a machine without a clock, lock, I/O
// or goroutine. storage/lead runs it in a server, cmd/sim runs it in its simulated ones.
//
//	Round: maps, placements here ─▶ ┌─────────┐ ──▶ Assign, LeaseInput: to the lease machine
//	Leads, Stops, InSyncSet ──────▶ │ Machine │ ──▶ Seal, Open, HandOver, TakeBack, Doubt, Settle: to a partition's gate
//	answers, with the question's id │         │ ──▶ Quiesce, Ready, Propose, RuleOut, ReadLease, GuardLease, Record, RemovePlacement: questions
//	Want: a first row waits ──────▶ │         │ ──▶ Changed: waiters for a lease look again
//	Tick ─────────────────────────▶ └─────────┘ ──▶ Alarmed, Forget, Note
//
// Three parts: plan.go compares a map with the placements here; discover.go carries it out, in order; handover.go ends splits
// and unloads. lease.go has the lease machine's state.
//
// Invariants kept here: I1 (a placement with the only copy of acked rows is never removed; a partition that is handed over accepts rows again only
// if nothing can hand it over late, or readers are refused), I5 (attempts and questions are bounded).
package rules
