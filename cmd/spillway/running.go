package main

import "os"

// config are the settings of a process, and what it has while it runs.
type config struct {
	settings
	processors int            // of the machine; set by spread
	heap       *heapLimit     // of the collector; set by limitHeap
	hangups    chan os.Signal // signals to reload; set by catchHangups
}
