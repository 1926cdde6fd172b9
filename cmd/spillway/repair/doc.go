// Package repair is the command repair. It rebuilds the catalogue of a data directory that no process uses, and prints which partitions are
// complete again and which have lost rows.
//
// The work is in storage/server; verify examines a store and changes nothing.
package repair
