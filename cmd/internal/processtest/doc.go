// Package processtest has what tests of real processes share: the program, built once, a standalone process that is started, asked, killed
// and started again, a small disk for it, and the environment that tests read their sizes from.
//
//	Program ─▶ .cache/test/spillway, etcd
//	New ─▶ Process: Start · Get, Do, Rows · Kill · Stop · Log
//
// Clusters are laid out by cmd/internal/processes. Rows and queries that a test compares are its own.
package processtest
