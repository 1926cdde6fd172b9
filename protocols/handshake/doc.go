// Package handshake bounds how many TLS handshakes a server computes at once. A ClientHello of 200 bytes costs its sender nothing, and the
// server 1.4 ms of a processor where its key is RSA: 1,400 new connections a second would occupy two processors, and rows would wait.
//
//	ClientHello ─▶ from 10.0.0.1 ▪▪▪▪▪▪▪▪ ─┐
//	ClientHello ─▶ from 10.0.0.2 ▪ ────────┼─▶ round robin ─▶ half of the processors ─▶ signature ─▶ the turn ends,
//	ClientHello ─▶ from 10.0.0.3 ▪▪ ───────┘                                                         the client answers
//	its answer  ─▶ ▪▪ ─────────────────────── before them ──▶ certificate, keys ──────▶ the connection is open
//
// A handshake has a turn only while it computes, and while it hands its answer to the kernel, whose buffer has room for it; never while it waits
// for the client: a slow client keeps no other out. A client that leaves while it waits is not noticed: its turn is computed all the same. Senders,
// which are addresses at a port, have turns one after the other, so the flood of one delays itself. Beyond WaitingMax the newest of the sender that
// has the most is refused, and after WaitMax any: the connection is closed.
//
// Refused here: bounds on connections that send nothing, which cost memory and no processor; each port has its own.
package handshake
