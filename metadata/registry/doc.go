// Package registry is the list of a cluster's storage servers: the address and the store directory of each.
//
//	row "servers/<id>" ◀─CAS── a storage server, when it starts        (address, host, zone, store directory)
//	                   ◀─CAS── the server, each minute and at its end (life of the directory)
//	                   ◀─CAS── a person: drain, or remove it for good
//	                   ──watch──▶ View: gateways, the master, other servers
//
// The row changes rarely; a server's heartbeat row (package lease) shows that it is live, not this one. A server that is
// gone keeps its row until a person removes it: placements may still name it.
//
// The row also shows which of several copies of a store directory was used last (Life). A process with an older copy is refused; a process ends when another
// one is started in its place.
package registry
