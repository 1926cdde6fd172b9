// Package ui is the status page: the keyspace as rectangles over time and ring, who leads them, and what is being read
// from Kafka. It is one HTML page without scripts, made from a Status that the process hands in, and the same as JSON.
//
//	Source ──Status──▶ GET /                        a page for people
//	                └▶ GET /api/v1/status/cluster   the same for programs
//
// Invariant I5: a page draws PartitionsShown partitions of a table at most, the newest, and says how many it left out.
package ui
