// Package processes runs a cluster of real processes on this machine: etcd members, storage servers and gateways of one
// built binary, each with a port and a directory that it keeps through all its lives. `make cluster` is this package in
// the foreground; the process tests of cmd/spillway kill, pause and restart what it started.
//
//	Plan ──Layout──▶ Cluster{Etcd, Storage, Gateways} ──Start──▶ every process answers "ready"
//	                                                     │
//	                              Process: Start · Kill · Stop · Pause · Resume · Said
//
// A process that ends by itself is told by its Done; nobody starts it again. Where the system can, processes die with the
// one that started them.
package processes
