// Package connect has the settings and flags by which processes and commands reach the coordination store of a cluster, and each other: Coord and
// Peer. Each setting is declared there once; the flags of commands, which read no file, are declared beside it.
package connect
