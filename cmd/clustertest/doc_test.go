// Package clustertest tests clusters of real processes from outside: they are killed, paused, cut off, left without etcd, filled up and upgraded
// while rows are written, and every acked row is read back. A crowd is such a cluster, with the view of it that a gateway has.
//
// Most tests run in `make test-cluster` alone, those of chaos in `make chaos`.
package clustertest
