//go:build race

package brick

const raceEnabled = true
