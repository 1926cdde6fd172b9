//go:build !linux

package main

func hugeHeap(int64) {} // the system chooses its pages itself
