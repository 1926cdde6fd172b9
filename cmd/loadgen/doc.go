// Command loadgen measures how much of a machine a metrics server needs for the load of a fleet of hosts.
//
// It makes the rows of devops-like hosts (101 fields each: integer walks, counters, float percentages, constants),
// encodes the bodies before the clock starts, sends them over a few connections, flat out or paced, and reads the
// server's use from /proc: CPU seconds, peak memory, bytes written. Servers are started fresh, one after the other, on
// this machine, and differ only in their command line and their write path.
//
//	hosts ─▶ rows ─▶ bodies (rw1, rw2, influx) ─▶ connections ─▶ server process ─▶ samples per CPU-second, p50/p99/max, …
//
//	loadgen -servers spillway,victoriametrics,prometheus -protocol rw1 -hosts 1000 -scrapes 60 -repeat 3
//
// Disk once everything is compacted: let spillway flush and fold as soon as the load ends, and wait until it has.
//
//	SPILLWAY_STORAGE_FLUSH_IDLE=2s SPILLWAY_STORAGE_MINORS_MAX=1 loadgen -scrapes 354 -settle 30s
//
// A new partition that makes every series new again: six scrapes a partition, as at midnight with the rates of a day.
//
//	SPILLWAY_TABLES_PARTITION_WIDTH=1m loadgen -interval 10s -scrapes 60
//
// Whether a server keeps up, minute after minute, with nothing growing. Bodies are encoded beside it: that uses a part
// of the machine, but does not count as the server's use:
//
//	loadgen -protocol influx -for 10m
//
// A figure is a ratio within one run: machines differ and are shared, so absolute numbers mean little.
package main
