package administration

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/ui"
)

func TestATransferIsALine(t *testing.T) {
	done := time.Duration(0)
	for want, x := range map[string]ui.Transfer{
		"s1 → p8 and p9: 0.5 KiB of 0.4 KiB, 0.0 KiB/s, 0s left": {From: "s1", Into: []uint64{8, 9}, Done: 500, Total: 400, BytesPerSecond: 50, Left: &done},
		"s1 → s3: 0.1 KiB of 0.4 KiB, the rate is not known yet": {From: "s1", To: "s3", Done: 100, Total: 400},
	} {
		if got := transferText(x); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
