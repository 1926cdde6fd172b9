// Package querytest is a small complete peer.Storage in memory, for tests of its readers.
//
// It keeps the promises of the interface (label order, one row a time, ranks, limits, kinds of error) by the plainest
// means: sorted slices under one lock. It has one partition that holds every key, and nothing survives it. Tests of
// speed or of durability want a real server.
package querytest
