// Package handshake bounds how many TLS handshakes a server computes at once. A ClientHello of 200 bytes costs its sender nothing, and the
// server 1.4 ms of a processor where its key is RSA: 1,400 new connections a second would occupy two processors, and rows would wait.
//
//	ClientHello ─▶ from 10.0.0.1 ▪▪▪▪▪▪▪▪ ─┐
//	ClientHello ─▶ from 10.0.0.2 ▪ ────────┼─▶ round robin ─▶ half of the processors ─▶ signature ─▶ the turn ends,
//	ClientHello ─▶ from 10.0.0.3 ▪▪ ───────┘                                                         the client answers
//	its answer  ─▶ ▪▪ ─────────────────────── before them ──▶ certificate, keys ──────▶ the connection is open
//
// A handshake has a turn while it computes and while it writes its answer into the kernel's buffer, which has room for it. It has none while it
// waits for the client, so that a slow client delays no other. A client that leaves before its turn is not noticed, and its turn is computed all
// the same. The senders, addresses at a port, get turns one after the other: a sender that floods delays itself. When more than WaitingMax
// handshakes wait, the newest of the sender with the most is refused; each is refused after WaitMax. A refused connection is closed.
//
// Refused here: bounds on connections that send nothing, which cost memory and no processor; each port has its own.
package handshake
