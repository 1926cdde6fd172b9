// Package memory spares page faults of fresh memory: its pages are huge, or written before they are read.
//
// It is no format of a wire, and lies here because protocols/point, below which nothing else of ours lies, uses it as storage and cmd do.
//
// Promise: nothing here changes a value.
package memory
