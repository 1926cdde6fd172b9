// Package memory spares the system work with fresh memory.
//
// What is promised: nothing here changes a value.
package memory
