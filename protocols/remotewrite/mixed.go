package remotewrite

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// mixed is the references of a series behind those of its first label, and the mix after each label. The series of a target follow each other in a
// request and have most labels in common; where bytes are the same up to the end of a label, so is the mix. The zero mixed belongs to no series.
//
//	before  name=a │ instance=x job=y │ mode=idle        shared(instance=x job=y mode=user)
//	now     name=a │ instance=x job=y │ mode=user        = the mix after job=y
type mixed struct {
	refs   []byte // a copy, as those of some series lie in memory that is used again
	labels int    // of which ends and mixes are known
	ends   [mixedLabels]int
	mixes  [mixedLabels]mixState
}

// The labels that are remembered, and the bytes of references; those of other series are mixed each time.
const (
	mixedLabels = 32
	mixedBytes  = 4 * mixedLabels
)

func (b *mixed) forget() { b.refs, b.labels = b.refs[:0], 0 }

// shared returns the mix of the labels that refs begin with as those before did, and where they end. The labels behind them are to be added.
func (b *mixed) shared(refs []byte) (mixState, int) {
	n := b.labels
	if !bytes.Equal(refs, b.refs) {
		same := commonLen(refs, b.refs)
		for n > 0 && b.ends[n-1] > same {
			n--
		}
		b.refs, b.labels = append(b.refs[:0], refs[:min(len(refs), mixedBytes)]...), n
	}
	if n == 0 {
		return mixBegin(), 0
	}
	return b.mixes[n-1], b.ends[n-1]
}

// add remembers the mix after the next label, which ends there.
func (b *mixed) add(end int, m mixState) {
	if b.labels < mixedLabels && end <= len(b.refs) {
		b.ends[b.labels], b.mixes[b.labels] = end, m
		b.labels++
	}
}

// commonLen counts the bytes that both begin with.
func commonLen(a, b []byte) int {
	n := min(len(a), len(b))
	for i := 0; ; i += 8 {
		if n-i < 8 {
			for i < n && a[i] == b[i] {
				i++
			}
			return i
		}
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
	}
}
