package metafile

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// link is the stored form of a file that stands on another: the ops that lead from that one's map to its own (FORMAT.md).
// An example: a link from t7 with the transactions t8 (3 bytes of ops) and t9 (2 bytes): 01 │ t7, 16 bytes │ 03 aa bb cc │ 02 dd ee │ sum, 8 bytes.
type link struct {
	from peer.TxnID
	ops  []byte // of one transaction or several, each with its length before it
}

const (
	linkVersion = 1
	linkBefore  = 1 + 16
	linkCheck   = 8
)

func (l *link) encode() []byte {
	b := make([]byte, 0, linkBefore+len(l.ops)+linkCheck)
	b = append(b, linkVersion)
	b = append(append(b, l.from[:]...), l.ops...)
	return binary.BigEndian.AppendUint64(b, xxhash.Sum64(b))
}

// decodeLink reads what encode wrote; ops are part of b. Errors are Corrupt.
func decodeLink(b []byte) (l link, err error) {
	switch {
	case len(b) > 0 && b[0] != linkVersion:
		return l, fault.Errorf(fault.Corrupt, "a link of version %d; this build reads version %d", b[0], linkVersion)
	case len(b) < linkBefore+linkCheck:
		return l, fault.Errorf(fault.Corrupt, "a link of %d bytes", len(b))
	}
	body := b[:len(b)-linkCheck]
	if xxhash.Sum64(body) != binary.BigEndian.Uint64(b[len(body):]) {
		return l, fault.Errorf(fault.Corrupt, "a link does not match its sum")
	}
	copy(l.from[:], body[1:])
	l.ops = body[linkBefore:]
	if _, err := countSteps(l.ops); err != nil {
		return link{}, err
	}
	if l.from == (peer.TxnID{}) || len(l.ops) == 0 {
		return link{}, fault.Errorf(fault.Corrupt, "a link without ops, or to nothing")
	}
	return l, nil
}

// countSteps counts the transactions in kept ops. Errors are Corrupt.
func countSteps(b []byte) (n int, err error) {
	for len(b) > 0 {
		if _, b, err = step(b); err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// step removes the ops of one transaction from kept ones. Errors are Corrupt.
func step(b []byte) (ops, rest []byte, err error) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, fault.Errorf(fault.Corrupt, "kept ops end early")
	}
	return b[k : k+int(n)], b[k+int(n):], nil
}
