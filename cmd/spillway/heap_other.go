//go:build !linux

package main

func hugeHeap(int64) {} // the system has pages of its own choice
