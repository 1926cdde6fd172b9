//go:build !race

package brick

const raceEnabled = false
