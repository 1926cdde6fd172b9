//go:build race

package limits_test

const raceEnabled = true
