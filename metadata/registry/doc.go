// Package registry is the list of a cluster's storage servers: the address and the store directory of each.
//
//	row "servers/<id>" ◀─CAS── a storage server, when it starts        (address, host, zone, store directory)
//	                   ◀─CAS── a person: drain, or remove it for good
//	                   ──watch──▶ View: gateways, the master, other servers
//
// The row changes rarely; a server's heartbeat row (package lease) shows that it is live, not this one. A server that is
// gone keeps its row until a person removes it: placements may still name it.
package registry
