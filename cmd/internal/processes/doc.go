// Package processes runs a cluster of real processes on this machine: etcd members, storage servers and gateways of one
// built binary, each with a port and a directory that it keeps through all its lives. `make cluster` is this package in
// the foreground; the tests of cmd/clustertest kill, pause and restart its processes.
//
//	Plan ──Layout──▶ Cluster{Etcd, Storage, Gateways} ──Start──▶ every process answers "ready"
//	                                                     │
//	                              Process: Start · Kill · Stop · Pause · Resume · Said
//
// Done of a process reports that it ended by itself; it is not started again. Where the system can, processes die with
// their parent.
package processes
