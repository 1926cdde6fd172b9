//go:build !unix

package head

// mapMemory maps nothing here: the arena uses heap memory.
func mapMemory(int) []byte { return nil }

func unmapMemory([]byte) {}
