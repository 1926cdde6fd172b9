// Package staging decides what a storage server does with staged frames: rows that are durable here although their partition's leader
// has not accepted them yet.
//
// A gateway stages a frame on several servers (its holders) when the leader of its rows is away. A frame is self-contained: it defines
// every series that it names, and has the rank that the gateway gave it. So any holder can forward it to any leader at any time, twice
// too: a row that arrives again, or late, changes nothing that a higher rank has written.
//
//	gateway ──Admit──▶ being logged ──Logged──▶ held ──Due──▶ under way ──Forwarded──▶ gone; the other holders are notified and forget it
//	              │                              ▲              │
//	              └─▶ refused: the cap           └── Postponed ◀┘        Forget (another holder forwarded it) ──▶ gone
//
// The first holder forwards. The others begin when every holder before them is away, or after TurnDelay. When a holder is away, the
// first of the others stages the frame on another server.
//
// The package is pure: no clock, lock, I/O or goroutine. Package runner keeps the frames on disk and forwards them.
//
// Invariants: I1 (a frame is forgotten only after the leader acked it at level all), I5 (BytesMax and FramesMax, with an answer).
package staging
