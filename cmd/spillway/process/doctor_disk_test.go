package process

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/spillwaydb/spillway/cmd/spillway/findings"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/storage/brick"
)

// TestTheDoctorNamesADiskTooFullForRows: while every write was answered 503 it said that all was well, until the disk had its last 16 MiB.
func TestTheDoctorNamesADiskTooFullForRows(t *testing.T) {
	cfg := config{Config: settings.Default()}
	cfg.Storage.FreeBytesMin = 1 << 60
	p := openWith(t, t.TempDir(), cfg)
	if code, text := p.do(t, http.MethodPost, "/write?db=default", "m v=1"); code != http.StatusServiceUnavailable {
		t.Fatalf("a write: %d %s", code, text)
	}
	found := p.findings(t)
	if len(found) != 1 || !strings.Contains(found[0].What, "takes no rows") || !strings.Contains(found[0].Do, "make room") {
		t.Errorf("findings: %+v", found)
	}
}

// TestTheDoctorNamesAFenceOfTheProcessBefore: a fenced process ends within two seconds. The doctor asked the next process, and found nothing wrong.
func TestTheDoctorNamesAFenceOfTheProcessBefore(t *testing.T) {
	cfg := config{Config: settings.Default()}
	cfg.DataDir = t.TempDir()
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	b, err := brick.Open(brick.Deps{FS: disk(), Log: slog.New(slog.DiscardHandler)}, cfg.ForBrick())
	if err != nil {
		t.Fatal(err)
	}
	b.Fence(syscall.EIO)
	if err := b.Close(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	p := openWith(t, cfg.DataDir, cfg)
	found := p.findings(t)
	if len(found) != 1 || !strings.Contains(found[0].What, "The store was fenced at ") || !strings.Contains(found[0].What, syscall.EIO.Error()) || !strings.Contains(found[0].Do, "SpillwayStoreFenced.md") {
		t.Errorf("findings: %+v", found)
	}
	if code, text := p.do(t, http.MethodPost, "/write?db=default", "m v=1"); code != http.StatusNoContent {
		t.Errorf("a write: %d %s", code, text)
	}
}

// findings are those of `spillway doctor`.
func (p *standalone) findings(t *testing.T) []findings.Finding {
	t.Helper()
	var answer struct{ Data ui.Status }
	if code, text := p.do(t, http.MethodGet, "/api/v1/status/cluster", ""); code != http.StatusOK || json.Unmarshal([]byte(text), &answer) != nil {
		t.Fatalf("the status: %d %s", code, text)
	}
	return findings.OfStatus(&answer.Data)
}
