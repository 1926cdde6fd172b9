// Package peers is a gateway's connections to the storage servers of its cluster.
//
//	registry ──Changed──▶ Run: dial new servers, close those that are gone
//	                        │
//	Server(id) ──▶ connection ──calls──▶ server
//	                 └ breaker: a server that did not answer is left alone for a while; one call at a time checks whether it is back
//
// There is one connection per server. A call to a server that just failed several times fails at once, as Unavailable, so
// that no caller waits for a dead server; calls that the server itself refuses as Unavailable count as failures too, but
// any other answer shows that it is there, and so does the refusal of rows, descriptions and deletions: a server with a full
// disk is read. Servers in this same process are called directly.
//
// Invariant: I5 (connections are bounded).
package peers
