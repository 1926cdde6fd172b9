package partition

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestTheReaderOfADamagedSegmentReadsWhatToDo: until the scrub came by, a query of a segment with a flipped bit was answered with a checksum and
// the name of a file, and no advice.
func TestTheReaderOfADamagedSegmentReadsWhatToDo(t *testing.T) {
	v := &View{}
	err := v.failed(fault.Errorf(fault.Corrupt, "segment 1-1.seg: block 0/8473: checksum mismatch"))
	if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), "1-1.seg") || !strings.Contains(err.Error(), "restore the file from a backup") {
		t.Errorf("%v (%v)", err, fault.KindOf(err))
	}
	err = v.failed(fault.Errorf(fault.Unavailable, "read 1-1.seg: input/output error"))
	if !fault.Is(err, fault.Unavailable) || strings.Contains(err.Error(), "backup") {
		t.Errorf("%v (%v)", err, fault.KindOf(err))
	}
}
