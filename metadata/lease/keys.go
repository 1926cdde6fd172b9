package lease

import (
	"strings"

	"github.com/spillwaydb/spillway/metadata/topology"
)

// BeatPrefix covers the heartbeat rows alone.
const BeatPrefix = beatPrefix

// ParseBeatKey gives the server of a heartbeat row's key.
func ParseBeatKey(key string) (topology.ServerID, bool) {
	s, ok := strings.CutPrefix(key, beatPrefix)
	return topology.ServerID(s), ok && s != ""
}

// ParseRowKey gives the partition of a lease row's key.
func ParseRowKey(key string) (Partition, bool) {
	path, ok := strings.CutPrefix(key, rowPrefix)
	if !ok {
		return Partition{}, false
	}
	return parsePath(path)
}
