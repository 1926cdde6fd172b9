//go:build unix

package cputime

import (
	"syscall"
	"time"
)

// Used is the processor time that all threads of this process have used, in the system too; 0 if the system does not say.
func Used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
