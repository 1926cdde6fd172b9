//go:build !linux

package process

func hugeHeap(int64) {} // the system chooses its pages itself
