// Package memory spares the system work with fresh memory.
//
// Promise: nothing here changes a value.
package memory
