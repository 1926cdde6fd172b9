// Package cputime gives the processor time of this process: on a machine that does other work as well it says more about a cost than the clock.
//
// Refuses: time of other processes.
package cputime
