package keeper

import (
	"golang.org/x/sys/unix"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Boottime is a clock that never jumps and continues while the machine is suspended. Go's own monotonic time does not.
func Boottime() lease.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		fault.Bug("CLOCK_BOOTTIME: %v", err)
	}
	return lease.Time(ts.Nano())
}
