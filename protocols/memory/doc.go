// Package memory saves the system work with fresh memory, and lets maps find a string that they hold without reading it.
//
// Promise: nothing here changes a value.
package memory
