// Package fleet makes the rows of devops-like hosts, the same for the same seed, and encodes them for any server.
//
// A host has 101 series: integer walks, counters, float percentages, constants, as in the time-series benchmark suite's
// devops use case. Measurements of writing and of reading share it, so that they speak of the same data.
package fleet
