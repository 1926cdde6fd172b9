package deliver

import "unsafe"

// stringPointer identifies a string by its address in memory, as a key of maps in which strings are found without being read. It keeps the string's memory from being freed, so
// equal pointers always mean equal strings. Equal strings at two addresses have two pointers.
type stringPointer struct {
	at *byte
	n  int
}

// pointerTo returns the pointer to a string. It costs nothing.
func pointerTo(s string) stringPointer { return stringPointer{unsafe.StringData(s), len(s)} }
