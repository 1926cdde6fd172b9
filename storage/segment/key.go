package segment

import (
	"encoding/binary"

	"github.com/spillwaydb/spillway/protocols/point"
)

// A file is written once from its first key to its last, so the order of keys is that in which parts become complete: definitions and names
// before rows, places after all groups, counts at the end.

// Keys begin with a letter for the kind of value; the letters rise in the order of writing.
const (
	keyDefinitions = 'a' // + first id: a page of definitions
	keyNames       = 'b' // the label names
	keyPostings    = 'b' // + number of the name, number of the page: values and their series
	keyGroup       = 'c' // + group + kind: its record, pages of times, blocks
	keyExemplars   = 'e' // + id
	keyPlace       = 'p' // + number of the page
	keyRanked      = 'r' // how many rows have ranks of their own
	keySeries      = 's' // the ids that have rows
	keyHeader      = 'z'
)

// Kinds of a group's keys.
const (
	kindRecord = 0
	kindTimes  = 1 // + number of the block that used the columns first
	kindBlock  = 2 // + lowest time
	kindRanks  = 3 // + number of the block
)

func key32(dst []byte, letter byte, n uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst[:0], letter), n)
}

func keyPosting(dst []byte, name, page uint32) []byte {
	return binary.BigEndian.AppendUint32(key32(dst, keyPostings, name), page)
}

func keyOfGroup(dst []byte, group uint32, kind byte) []byte {
	return append(key32(dst, keyGroup, group), kind)
}

func keyTimes(dst []byte, group, page uint32) []byte {
	return binary.BigEndian.AppendUint32(keyOfGroup(dst, group, kindTimes), page)
}

func keyRanks(dst []byte, group, block uint32) []byte {
	return binary.BigEndian.AppendUint32(keyOfGroup(dst, group, kindRanks), block)
}

// keyBlock orders times as bytes: the sign bit is flipped.
func keyBlock(dst []byte, group uint32, lo point.Nanos) []byte {
	return binary.BigEndian.AppendUint64(keyOfGroup(dst, group, kindBlock), uint64(lo)^1<<63)
}
