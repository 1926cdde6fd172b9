package process

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestABackupDoesNotUnlockItsStore: one that was ordered into the data directory released the LOCK there when it ended, and removed files.
func TestABackupDoesNotUnlockItsStore(t *testing.T) {
	top := t.TempDir()
	data, log, link, beside := filepath.Join(top, "segments"), filepath.Join(top, "log"), filepath.Join(top, "link"), filepath.Join(top, "beside")
	cfg := config{Config: settings.Default()}
	cfg.Storage.LogDir = log
	p := openWith(t, data, cfg)
	if err := os.Symlink(data, link); err != nil {
		t.Fatal(err)
	}
	before := tree(t, top)
	order := func(page http.HandlerFunc, field, dir string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, backups.Path, strings.NewReader(fmt.Sprintf(`{%q: %q}`, field, dir)))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		page(w, r)
		text, _ := io.ReadAll(w.Body)
		return w.Code, string(text)
	}
	for _, dir := range []string{data, log, link, top, filepath.Join(data, "new"), filepath.Join(data, "segments"), filepath.Join(link, "new", "newer")} {
		if code, text := order(p.backupPage, "to", dir); code != http.StatusBadRequest || !strings.Contains(text, "outside of it") {
			t.Errorf("backup to %s: %d %s", dir, code, text)
		}
		if code, text := order(p.restorePage, "from", dir); code != http.StatusBadRequest || !strings.Contains(text, "spillway restore --from "+dir+" --data-dir NEW") {
			t.Errorf("restore from %s: %d %s", dir, code, text)
		}
	}
	if after := tree(t, top); after != before {
		t.Errorf("files before:\n%s\nand after:\n%s", before, after)
	}
	if code, text := order(p.backupPage, "to", beside); code != http.StatusOK || !strings.Contains(text, `"name"`) {
		t.Errorf("backup to %s: %d %s", beside, code, text)
	}
}

// TestAStartInADirectoryOfBackupsNamesTheRestore: it began an empty store there, which looked like a restore that lost every row.
func TestAStartInADirectoryOfBackupsNamesTheRestore(t *testing.T) {
	dir := t.TempDir()
	admin := httptest.NewServer(http.HandlerFunc(open(t).backupPage))
	defer admin.Close()
	if err := (&backups.Backup{To: dir, URL: admin.URL}).Run(); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	cfg := config{Config: settings.Default()}
	cfg.DataDir, cfg.HTTP.Listen, cfg.Admin.Listen = dir, "127.0.0.1:0", ""
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	if _, err := openStandalone(t.Context(), &cfg, slog.New(slog.DiscardHandler), registry); err == nil || !strings.Contains(err.Error(), "spillway restore --from "+dir) {
		t.Errorf("the start: %v", err)
	} else if code := exitCode(err); code != terminal.ExitUsage || !fault.Is(err, fault.Invalid) {
		t.Errorf("the start ends with %d for %v", code, err)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("files before:\n%s\nand after:\n%s", before, after)
	}
}

// exitCode is the one of a process that an error ends; 0: the error has none.
func exitCode(err error) int {
	var coder interface{ ExitCode() int }
	if errors.As(err, &coder) {
		return coder.ExitCode()
	}
	return 0
}

// TestAProcessWithoutCoordinationMakesNoStore: a storage server made it, or opened the one of another process there, before the mistake was found.
func TestAProcessWithoutCoordinationMakesNoStore(t *testing.T) {
	processtest.NoSettings(t)
	dir := filepath.Join(t.TempDir(), "data")
	t.Setenv("SPILLWAY_DATA_DIR", dir)
	store, gate := Storage{Flags: settings.NewFlags(settings.Storage, api.Build{})}, Gateway{Flags: settings.NewFlags(settings.Gateway, api.Build{})}
	for name, start := range map[string]func() error{"storage": store.Run, "gateway": gate.Run} {
		if err := start(); err == nil || !strings.Contains(err.Error(), "--coord is missing") || exitCode(err) != terminal.ExitUsage {
			t.Errorf("the start of %s: %v", name, err)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s: %v", dir, err)
	}
}

// TestAGatewayWithoutCertificatesIsNotStartedAgain: it ended with 1, and systemd started it for ever.
func TestAGatewayWithoutCertificatesIsNotStartedAgain(t *testing.T) {
	processtest.NoSettings(t)
	t.Setenv("SPILLWAY_COORD_URL", "etcd://127.0.0.1:1")
	gate := Gateway{Flags: settings.NewFlags(settings.Gateway, api.Build{})}
	if err := gate.Run(); err == nil || !strings.Contains(err.Error(), "settings of peers") || exitCode(err) != terminal.ExitUsage {
		t.Errorf("the start: %v", err)
	}
}

// tree lists the backups, folders of segments and locks below a directory.
func tree(t *testing.T, top string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(top, func(path string, _ os.DirEntry, err error) error {
		if name := filepath.Base(path); name == "LOCK" || name == "segments" || strings.HasSuffix(name, ".backup") {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, "\n")
}
