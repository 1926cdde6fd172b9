package frame

import (
	"encoding/binary"

	"github.com/spillwaydb/spillway/protocols/point"
)

// The low bits of an id token describe the bytes that follow it.
const (
	idSingle = 0 // nothing
	idRise   = 1 // each of the next ids is one higher
	idSame   = 2 // each of the next ids is the same
	idBits   = 2
)

// appendIDs writes ids as tokens: the distance to the id after the last one, and a run length where ids rise by one, as
// they do where a sender repeats its series in order, or stay, as they do where a series has several rows.
func appendIDs(b []byte, ids []point.DenseID) []byte {
	next := int64(0)
	for i := 0; i < len(ids); {
		kind, n := idRun(ids[i:])
		first := int64(ids[i])
		b = binary.AppendUvarint(b, zigzag(first-next)<<idBits|kind)
		if kind != idSingle {
			b = binary.AppendUvarint(b, uint64(n-2))
		}
		i += n
		next = int64(ids[i-1]) + 1
	}
	return b
}

// idRun finds the run that ids, of which there is at least one, begins with.
func idRun(ids []point.DenseID) (kind uint64, n int) {
	if len(ids) > 1 && ids[1] == ids[0] {
		return idSame, sameIDs(ids)
	}
	if n = risingIDs(ids); n > 1 {
		return idRise, n
	}
	return idSingle, 1
}

func sameIDs(ids []point.DenseID) int {
	for i, id := range ids {
		if id != ids[0] {
			return i
		}
	}
	return len(ids)
}

func risingIDs(ids []point.DenseID) int {
	want := ids[0]
	for i, id := range ids {
		if id != want || i > 0 && want == 0 { // after the last id there is none
			return i
		}
		want++
	}
	return len(ids)
}

// ids reads the output of appendIDs into ids; all must be below limit.
func (r *reader) ids(ids []point.DenseID, limit uint64) {
	next := int64(0)
	for len(ids) > 0 && r.err == nil {
		token := r.uvarint()
		first := next + unzigzag(token>>idBits)
		n, step := 1, point.DenseID(0)
		switch token & (1<<idBits - 1) {
		case idSingle:
		case idRise:
			n, step = r.run(len(ids)), 1
		case idSame:
			n = r.run(len(ids))
		default:
			r.fail("an id token is unknown")
			return
		}
		last := first + int64(n-1)*int64(step)
		if first < 0 || uint64(last) >= limit {
			r.fail("a row names a series that is not defined")
			return
		}
		id := point.DenseID(first)
		for i := range ids[:n] {
			ids[i] = id
			id += step
		}
		ids, next = ids[n:], last+1
	}
}
