package process

import (
	"os"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
)

// config are the settings of a process and its own state: processors, the heap's limit, signals.
type config struct {
	settings.Config
	processors int            // of the machine; set by spread
	heap       *heapLimit     // of the collector; set by limitHeap
	hangups    chan os.Signal // signals to reload; set by catchHangups
	ends       chan os.Signal // signals to stop; set by catchEnds. Nil: none comes
}
