//go:build !unix

package main

import "time"

// processCPU is not known: what a server can accept is not measured here.
func processCPU() time.Duration { return 0 }
