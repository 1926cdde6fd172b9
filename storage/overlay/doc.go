// Package overlay is a file system that reads from another one and never changes it: writes, renames and removals happen in memory
// only. A store is opened on it to see the result of a start, by the very code that a start runs.
//
//	Open, Stat, List ──▶ changed? ─yes─▶ memory
//	                        └──no──▶ the disk, read only
//	Create, Rename, Remove ─────────▶ memory
//
// A file of the disk that is renamed is read where it lies. It refuses to write into a large file of the disk (no code that opens a store does), and keeps nothing after its release.
package overlay
