//go:build !unix

package head

// mapMemory has nothing to give here: the arena takes heap memory.
func mapMemory(int) []byte { return nil }

func unmapMemory([]byte) {}
