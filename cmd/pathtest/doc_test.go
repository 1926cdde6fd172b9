// Package pathtest tests the way of rows from a gateway's forwarder to the disks of storage servers, and that of queries back, in one process
// without listeners: a path has one storage server, a spread several, with staged rows, copies and partitions that are divided.
//
// The packages on the way import each other never: what holds of all of them together is tested here.
package pathtest
