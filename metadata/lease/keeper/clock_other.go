//go:build !linux

package keeper

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
)

// Boottime is the wall clock on systems without a clock that counts suspends. A clock set back makes leases look younger
// than they are: clusters belong on Linux, other systems are for one process.
func Boottime() lease.Time { return lease.Time(time.Now().UnixNano()) }
