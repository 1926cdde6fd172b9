package process

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/lead"
	"github.com/spillwaydb/spillway/storage/metafile"
)

// wantRefused wants a start to end as one that a restart does not mend, with a sentence.
func wantRefused(t *testing.T, err error, sentence string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), sentence) || exitCode(err) != terminal.ExitUsage || !fault.Is(err, fault.Invalid) {
		t.Errorf("the start: %v", err)
	}
}

// TestRowsAreNotAckedIntoTheStoreOfAStorageServer: a standalone process on its directory acked rows into partitions that the cluster does not know.
func TestRowsAreNotAckedIntoTheStoreOfAStorageServer(t *testing.T) {
	cfg := config{Config: settings.Default()}
	cfg.DataDir, cfg.HTTP.Listen, cfg.Admin.Listen = t.TempDir(), "127.0.0.1:0", ""
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	b := storeOf(t, &cfg)
	m, err := topology.New("hosts", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	m = m.Cover([]point.Nanos{0}, func(point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: 1, Server: "s1"}, {ID: 2, Server: "s2"}}
	})
	m.Seq = 1
	if err := metafile.New(b).Put(&peer.File{Table: "hosts", Txn: peer.TxnID{1}, Seq: 1, Digest: m.Digest(), Map: m.Encode()}, m); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a refused start leaves nothing that lets the next one in
		registry := prometheus.NewRegistry()
		_, err = openStandalone(t.Context(), &cfg, slog.New(slog.DiscardHandler), registry)
		wantRefused(t, err, "is the store of a storage server: its maps have partitions on s1, s2;")
	}
	if _, err := os.Stat(filepath.Join(cfg.DataDir, coordDir)); !os.IsNotExist(err) {
		t.Errorf("the directory of a coordination store: %v", err)
	}
}

// TestRowsAreNotAckedIntoTheStoreOfAStorageServerWithoutMaps: a table's map is on three servers, and a standalone process opened the store of any other one.
func TestRowsAreNotAckedIntoTheStoreOfAStorageServerWithoutMaps(t *testing.T) {
	cfg := config{Config: settings.Default()}
	cfg.DataDir, cfg.HTTP.Listen, cfg.Admin.Listen = t.TempDir(), "127.0.0.1:0", ""
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	lived(t, &cfg)
	for range 2 {
		_, err := openStandalone(t.Context(), &cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		wantRefused(t, err, "is the store of a storage server: it served a cluster;")
	}
}

// storeOf opens the store in the data directory.
func storeOf(t *testing.T, cfg *config) *brick.Brick {
	t.Helper()
	b, err := brick.Open(brick.Deps{FS: disk(), Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Files: brick.FilesOf}, cfg.ForBrick())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lived makes the store one on which a storage server ran.
func lived(t *testing.T, cfg *config) {
	t.Helper()
	b := storeOf(t, cfg)
	l, _ := registry.Lives{}.Next(registry.Life{}, "a process")
	if err := errors.Join(lead.SaveLives(b, l), b.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestRowsOfAStandaloneProcessAreNotHiddenInACluster: a storage server on its directory was ready, and no query read the rows there.
func TestRowsOfAStandaloneProcessAreNotHiddenInACluster(t *testing.T) {
	dir := t.TempDir()
	t.Run("written", func(t *testing.T) {
		if code, text := openWith(t, dir, config{Config: settings.Default()}).do(t, http.MethodPost, "/write?db=default", "cpu usage=1"); code != http.StatusNoContent {
			t.Fatal(code, text)
		}
	})
	cfg := config{Config: settings.Default()}
	cfg.DataDir, cfg.Server.ID, cfg.Server.Host = dir, "s1", "h1"
	cfg.Peer.Listen, cfg.Admin.Listen, cfg.Peer.Insecure = "127.0.0.1:0", "", true
	cfg.Coord.URL = "etcd://127.0.0.1:1"
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop() // it would wait for the coordination store
	open := func() error {
		p := &storage{cfg: &cfg, log: slog.New(slog.DiscardHandler), registerer: prometheus.NewRegistry(), id: "s1"}
		err := p.open(ctx, false, true)
		if err := p.close(); err != nil {
			t.Error(err)
		}
		return err
	}
	wantRefused(t, open(), dir+" is the store of a standalone process")
	away := t.TempDir()
	if err := os.Rename(filepath.Join(dir, coordDir), filepath.Join(away, coordDir)); err != nil { // as after a restore, or where it was damaged
		t.Fatal(err)
	}
	wantRefused(t, open(), dir+" is the store of a standalone process")
	if err := os.Rename(filepath.Join(away, coordDir), filepath.Join(dir, coordDir)); err != nil {
		t.Fatal(err)
	}
	t.Run("read", func(t *testing.T) {
		if _, text := openWith(t, dir, config{Config: settings.Default()}).do(t, http.MethodGet, "/api/v1/query?query=cpu_usage", ""); !strings.Contains(text, `"1"`) {
			t.Error(text)
		}
	})
}

// TestAServerGoesOnWhereAStandaloneProcessRanBefore: builds from before accepted such a directory, and rows of the cluster are in it since.
func TestAServerGoesOnWhereAStandaloneProcessRanBefore(t *testing.T) {
	dir := t.TempDir()
	t.Run("written", func(t *testing.T) {
		if code, text := openWith(t, dir, config{Config: settings.Default()}).do(t, http.MethodPost, "/write?db=default", "cpu usage=1"); code != http.StatusNoContent {
			t.Fatal(code, text)
		}
	})
	cfg := config{Config: settings.Default()}
	cfg.DataDir = dir
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	lived(t, &cfg)
	b := storeOf(t, &cfg)
	defer b.Close()
	if err := notOfStandalone(b, dir, "s1"); err != nil {
		t.Error(err)
	}
}
