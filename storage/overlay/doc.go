// Package overlay is a file system that reads from another one and never changes it: what is written, renamed or removed
// is so in memory only. A store is opened on it to see what a start would find, by the very code that a start runs.
//
//	Open, Stat, List ──▶ changed? ─yes─▶ memory
//	                        └──no──▶ the disk, read only
//	Create, Rename, Remove ─────────▶ memory
//
// Refuses to: write into a large file that is on the disk (nothing that opens a store does), keep anything after it is let go.
package overlay
