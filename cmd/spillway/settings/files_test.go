package settings

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer/rpc"
)

func TestDescriptorsAreShared(t *testing.T) {
	f := func(limit uint64, conns, files, wantConns, wantFiles int) {
		t.Helper()
		var c Config
		c.Intake.ConnsMax, c.Storage.OpenFilesMax = conns, files
		if err := c.descriptors(limit); err != nil {
			t.Fatal(err)
		}
		if c.Intake.ConnsMax != wantConns || c.Storage.OpenFilesMax != wantFiles {
			t.Errorf("limit %d, set %d and %d: %d connections and %d segments, want %d and %d",
				limit, conns, files, c.Intake.ConnsMax, c.Storage.OpenFilesMax, wantConns, wantFiles)
		}
	}
	f(1<<20, 0, 0, 16384, 4096)
	f(1<<63, 0, 0, 16384, 4096)
	f(4096, 0, 0, 1984, 1984)
	f(300, 0, 0, 86, 86)
	f(192, 0, 0, 32, 32)
	f(1<<20, 10, 20, 10, 20)
	f(300, 1000, 20, 86, 20)

	var c Config
	if err := c.descriptors(191); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("a limit of 191 gives %v", err)
	}
}

// TestStrangersLeaveFilesForSegments: 512 strangers had all descriptors of a storage server that may have 300 files open, and no segment could be written as long as they stayed.
func TestStrangersLeaveFilesForSegments(t *testing.T) {
	for limit, want := range map[uint64]int{192: 16, 300: 43, 1024: 224, 4096: 512, 1 << 20: 512} {
		var c Config
		if err := c.descriptors(limit); err != nil {
			t.Fatal(err)
		}
		got := c.ForPeers(rpc.Identity{}).StrangersMax
		if got != want || uint64(filesOwn+c.Storage.OpenFilesMax+2*got) > limit {
			t.Errorf("limit %d: %d strangers beside %d segments, want %d", limit, got, c.Storage.OpenFilesMax, want)
		}
	}
}

// TestAGatewaysConnectionsBoundNoStrangers: a file of settings that all processes read has few connections for gateways, and storage servers had half as many strangers: peers that
// connected at the same time closed each other's connections.
func TestAGatewaysConnectionsBoundNoStrangers(t *testing.T) {
	var c Config
	c.Intake.ConnsMax = 2
	if err := c.descriptors(1 << 20); err != nil {
		t.Fatal(err)
	}
	if got := c.ForPeers(rpc.Identity{}).StrangersMax; got != rpc.StrangersMax {
		t.Errorf("%d strangers, want %d", got, rpc.StrangersMax)
	}
}

// TestALimitOfFilesThatIsEnoughIsNoWarning: with 20,000 files, and 9,936 connections of them, the log began with a warning.
func TestALimitOfFilesThatIsEnoughIsNoWarning(t *testing.T) {
	for limit, warned := range map[uint64]bool{1_048_576: false, 20_000: false, 4096: true, 1024: true} {
		var c Config
		if err := c.descriptors(limit); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		c.NoteDescriptors(slog.New(slog.NewTextHandler(&log, nil)))
		if (log.Len() > 0) != warned {
			t.Errorf("limit %d: %d connections, %d segments, log %q", limit, c.Intake.ConnsMax, c.Storage.OpenFilesMax, &log)
		}
	}
}
