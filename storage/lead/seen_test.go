package lead

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestSeenEntry(t *testing.T) {
	const golden = `{"v":1,"seq":18446744073709551615}`
	if got := string(encodeSeen(1<<64 - 1)); got != golden {
		t.Errorf("an entry is %s, want %s", got, golden)
	}
	if seq, err := decodeSeen([]byte(golden)); err != nil || seq != 1<<64-1 {
		t.Errorf("read %d, %v", seq, err)
	}
	for n := range golden {
		if _, err := decodeSeen([]byte(golden[:n])); !fault.Is(err, fault.Corrupt) {
			t.Errorf("the first %d bytes: %v, want corrupt", n, err)
		}
	}
	if _, err := decodeSeen([]byte(`{"v":2,"seq":1}`)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("version 2: %v, want corrupt", err)
	}
}
