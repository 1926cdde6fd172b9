//go:build !race

package kafka

// raceEnabled reports whether the race detector is built in.
const raceEnabled = false
