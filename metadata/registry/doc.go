// Package registry is the storage servers of a cluster: where each is, and what it stands on.
//
//	row "servers/<id>" ◀─CAS── a storage server, when it starts        (address, host, zone, store directory)
//	                   ◀─CAS── a person: drain, or take it out for good
//	                   ──watch──▶ View: gateways, the master, other servers
//
// The row changes rarely; that a server lives is told by its heartbeat row (package lease), not here. A server that is
// gone keeps its row until a person removes it: placements may still name it.
package registry
