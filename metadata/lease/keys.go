package lease

import (
	"strings"

	"github.com/spillwaydb/spillway/metadata/topology"
)

// BeatPrefix covers the heartbeat rows alone.
const BeatPrefix = beatPrefix

// ParseBeatKey returns the server of a heartbeat row's key.
func ParseBeatKey(key string) (topology.ServerID, bool) {
	s, ok := strings.CutPrefix(key, beatPrefix)
	return topology.ServerID(s), ok && s != ""
}

// ParseRowKey returns the partition of a lease row's key.
func ParseRowKey(key string) (Partition, bool) {
	path, ok := strings.CutPrefix(key, rowPrefix)
	if !ok {
		return Partition{}, false
	}
	return parsePath(path)
}

// BornKey is the key of the row which records that the partition had a lease row.
func BornKey(p Partition) string { return bornKey(p) }

// ParseBornKey returns the partition of such a key.
func ParseBornKey(key string) (Partition, bool) {
	path, ok := strings.CutPrefix(key, bornPrefix)
	if !ok {
		return Partition{}, false
	}
	return parsePath(path)
}

// ParseProhibitKey returns the partition and the server of a prohibition's key.
func ParseProhibitKey(key string) (Partition, topology.ServerID, bool) {
	path, ok := strings.CutPrefix(key, noPrefix)
	i := strings.LastIndexByte(path, '/')
	if !ok || i < 0 || i == len(path)-1 {
		return Partition{}, "", false
	}
	p, ok := parsePath(path[:i])
	return p, topology.ServerID(path[i+1:]), ok
}

// ParseSweptKey returns the table of a Swept row's key.
func ParseSweptKey(key string) (string, bool) {
	table, ok := strings.CutPrefix(key, sweptPrefix)
	return table, ok && table != ""
}
