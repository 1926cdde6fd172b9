//go:build !unix

package main

// held is not known here: whoever verifies has to see to it that no process uses the store.
func held(string) bool { return false }
