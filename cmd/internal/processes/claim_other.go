//go:build !linux

package processes

// claim reserves nothing: chance decides.
func claim(int) bool { return true }
