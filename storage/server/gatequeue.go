package server

import (
	"sync"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// gateQueue counts the inserts of one stream that wait at closed gates. Each also counts among the inserts that the stream may have under way
// (protocols/peer/rpc, Settings.InsertsMax and WindowBytes), so that without these bounds the hand-over of one busy partition could keep out inserts for all
// others. Beyond the bounds an insert is refused at once, and comes again with the gateway's next try.
//
// Invariant: inserts <= gateInsertsMax; bytes <= gateBytesMax, unless one waits alone.
type gateQueue struct {
	mu      sync.Mutex
	inserts int
	bytes   int
}

const (
	// gateInsertsMax is a quarter of the inserts that a stream may have under way by default.
	gateInsertsMax = 256
	// gateBytesMax is a quarter of the bytes by default.
	gateBytesMax = 16 << 20
)

// join reports whether an insert of about n bytes may wait; one that does leaves.
func (q *gateQueue) join(n int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inserts > 0 && (q.inserts >= gateInsertsMax || q.bytes+n > gateBytesMax) {
		return false
	}
	q.inserts++
	q.bytes += n
	return true
}

func (q *gateQueue) leave(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inserts--
	q.bytes -= n
}

// bytesOf estimates the size of an insert on the wire.
func bytesOf(in *peer.Insert) (n int) {
	const row, exemplar = 8 + 8 + 4, 256
	n = row*len(in.IDs) + exemplar*len(in.Exemplars)
	for _, h := range in.Hists {
		n += row + len(h.H)
	}
	return n
}
