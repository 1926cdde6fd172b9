package server

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/storage/unload/runner"
)

func TestAnUnloadIsShownInBytesOfThePartition(t *testing.T) {
	began := time.Unix(1000, 0)
	of := &peer.PartitionStats{ID: 7, Rows: 1000, Bytes: 5000}
	for _, c := range []struct {
		at   runner.Progress
		want peer.Transfer
	}{
		{runner.Progress{Since: began}, peer.Transfer{Total: 5000}},
		{runner.Progress{Since: began, Rows: 200, PerSecond: 10}, peer.Transfer{Done: 1000, Total: 5000, BytesPerSecond: 50}},
		{runner.Progress{Since: began, Rows: 1200, PerSecond: 10}, peer.Transfer{Done: 5000, Total: 5000, BytesPerSecond: 50}},                // doubles were compacted away
		{runner.Progress{Since: began, Rows: 900, PerSecond: 10, Finished: true}, peer.Transfer{Done: 5000, Total: 5000, BytesPerSecond: 50}}, // the others had expired
	} {
		c.want.Since = began.UnixNano()
		if got := unloadTransfer(c.at, of); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.at, got, c.want)
		}
	}
}
