// Package repair has the command repair: it rebuilds the catalogue of a data directory that no process uses, and prints what is whole again
// and what is lost.
//
// The work is in storage/server; verify examines a store and changes nothing.
package repair
