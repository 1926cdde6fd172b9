// Package rules decides what a storage server does about its leases and its tables' maps: a machine without a clock, lock, I/O
// or goroutine. storage/lead runs it in a server, cmd/sim runs it in its simulated ones.
//
//	Round: maps, what lies here ──▶ ┌─────────┐ ──▶ Assign, Tell: to the lease machine
//	Leads, Stops, InSyncSet ──────▶ │ Machine │ ──▶ Seal, Open, HandOver, TakeBack, Doubt, Settle: to a partition's gate
//	answers, with the question's id │         │ ──▶ Quiesce, Ready, Propose, RuleOut, ReadLease, GuardLease, Record, RemovePlacement: questions
//	Want: a first row waits ──────▶ │         │ ──▶ Changed: what waits for a lease looks again
//	Tick ─────────────────────────▶ └─────────┘ ──▶ Alarmed, Forget, Note
//
// Three parts: plan.go says what a map asks of what lies here; discover.go carries it out, in order; handover.go ends splits
// and unloads. lease.go knows what the lease machine said.
//
// Invariants kept here: I1 (nothing is removed that alone has acked rows; a partition that is handed over takes rows again only
// where nothing can hand it over late, or readers are refused), I5 (attempts and questions are bounded).
package rules
