// Package memory spares the system work with fresh memory, and maps the reading of strings that they hold already.
//
// Promise: nothing here changes a value.
package memory
