// Package verify has the command that examines a store which no process uses, and changes no byte of it. It reads every file of every kind, and then
// starts the store in memory, on a file system that writes nothing to the disk, and reports the messages of that start.
//
//	files ─▶ checksums, kinds ──┐
//	Program.Start on an overlay ┴▶ findings by file, the worst of which is the exit code
//
// How a process opens a store is not known here; the command gets it as a Program.
package verify
