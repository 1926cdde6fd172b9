// Package coord is compare-and-swap rows with watch: all that we ask of a coordination store (C130).
//
// A row is a key, a small value and a revision. Revisions rise with every change of the store, so a row's revision shows
// whether it changed since it was read. A change is a transaction: conditions on revisions, then puts and deletes, all
// or nothing. One conformance suite (coordtest) holds for every implementation: mem for tests, local for one process
// with a directory of its own, etcd for clusters.
//
// A process that follows the same rows in several places (a storage server acquires leases by them, finds leaders by them and,
// as master, plans by them) wraps its store with Share: one watch of a prefix then serves all, each in order from its own
// revision on, as Store promises.
package coord
