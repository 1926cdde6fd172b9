package memory

import "unsafe"

// Text identifies a string by its place in memory, as a key of maps in which strings are found without being read. A Text keeps the string's memory
// from being freed, so equal Texts always mean equal strings. Equal strings at two places have two Texts.
type Text struct {
	at *byte
	n  int
}

// TextOf returns the place of a string. It costs nothing.
func TextOf(s string) Text { return Text{unsafe.StringData(s), len(s)} }
