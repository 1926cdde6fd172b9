package process

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/spillway/findings"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/ui"
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

// findings are those of `spillway doctor`.
func (p *standalone) findings(t *testing.T) []findings.Finding {
	t.Helper()
	var answer struct{ Data ui.Status }
	if code, text := p.do(t, http.MethodGet, "/api/v1/status/cluster", ""); code != http.StatusOK || json.Unmarshal([]byte(text), &answer) != nil {
		t.Fatalf("the status: %d %s", code, text)
	}
	return findings.OfStatus(&answer.Data)
}
