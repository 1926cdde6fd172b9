package memory

import "unsafe"

// Text identifies a string by its place in memory, as a key of maps in which strings are found without being read. It keeps the string's memory: two strings with one Text
// are the same. Equal strings at two places have two.
type Text struct {
	at *byte
	n  int
}

// TextOf returns the place of a string. It costs nothing.
func TextOf(s string) Text { return Text{unsafe.StringData(s), len(s)} }
