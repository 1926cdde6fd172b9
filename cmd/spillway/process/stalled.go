package process

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// fsyncWaitMax is how long a write may wait for its fsync while the process calls itself ready. Longer, and senders are better served
// elsewhere; queries are answered meanwhile.
const fsyncWaitMax = 10 * time.Second

// stalled returns why a process that keeps rows is not ready for writes; nil: it is. It is again as soon as the disk answers.
func stalled(disk interface {
	OldestWait(now time.Time) time.Duration
}) error {
	if w := disk.OldestWait(time.Now()); w > fsyncWaitMax {
		return fault.Errorf(fault.Unavailable, "the disk has not answered the fsync of the oldest write for %s; look at the device of the log", w.Round(time.Second))
	}
	return nil
}
