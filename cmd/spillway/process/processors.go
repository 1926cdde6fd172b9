package process

import (
	"os"
	"runtime"
)

// Where every place of Go's scheduler (GOMAXPROCS) runs a goroutine, Go looks at the network every 10 ms, and a goroutine that became
// ready waits behind those that run, for as long again. So the scheduler gets more places than there are processors, and the
// system shares them out: it prefers a thread that waited.
//
//	flush  ─▶ ▣ ─┐
//	decode ─▶ ▣ ─┤   the system,
//	decode ─▶ ▣ ─┼─▶ in slices    ─▶ ▣ ▣ ▣ ▣ processors
//	decode ─▶ ▣ ─┤   of 3 ms
//	          ▢ ─┘ waits for the network: a request that comes is begun at once
//
// Measured in docs/proofs/hostile.md. Parts that size themselves by processors use config.processors.

// How many places the scheduler has. Each costs something: threads that wake and look for work. Line protocol in samples a CPU-second, medians of
// five in turns on 4 processors: 6.75 M with 4 places, 6.28 M with 8, 5.99 M with 12.
const (
	placesEach  = 2 // for each processor
	placesLeast = 6 // two writes, a query, a flush, a compaction, and goroutines that wait for the network
)

// spread gives the scheduler its places, and notes how many processors there are. A GOMAXPROCS that the user set stays as it is.
func (c *config) spread() {
	c.processors = runtime.GOMAXPROCS(0)
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(placesEach*c.processors, placesLeast))
	}
}
