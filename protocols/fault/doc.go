// Package fault classifies errors by a Kind that survives the network.
//
// An error gets its Kind where it is first understood, keeps it through every layer that adds context (Wrap), crosses
// processes as one byte and a sentence, and is turned into an answer only at the edge, by the protocol's own table
// Kind → status (I8). Nothing between the disk and the edge guesses a Kind from the text of a message.
//
//	disk, parser, limit ──New/Errorf──▶ layers ──Wrap──▶ edge ──KindOf──▶ status of the protocol
//
// Impossible is not an error: Bug panics, so that the simulator and the tests notice it.
package fault
