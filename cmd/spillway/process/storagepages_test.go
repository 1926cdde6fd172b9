package process

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
)

// openStoragePort returns as much of a storage server as its admin port needs, but for readiness.
func openStoragePort(t *testing.T, addr string) *storage {
	t.Helper()
	cfg := config{Config: settings.Default()}
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &storage{cfg: &cfg, log: slog.New(slog.DiscardHandler), registerer: prometheus.NewRegistry(), admin: l}
}

// TestTheAdminPortOfAStorageServerIsAsItsDocumentSays asks for each of its routes, where its host alone reaches the port and where others do.
// Clusters of other tests wait for /-/ready, and a profile of this process may be under way.
func TestTheAdminPortOfAStorageServerIsAsItsDocumentSays(t *testing.T) {
	doc := loadAPIDocument(t)
	for addr, reload := range map[string]int{"127.0.0.1:0": http.StatusOK, "0.0.0.0:0": http.StatusForbidden} {
		p := openStoragePort(t, addr)
		pages := p.pages()
		for _, page := range p.adminPages() {
			method, path, ok := strings.Cut(page.pattern, " ")
			if !ok {
				method, path = http.MethodGet, page.pattern
			}
			switch path {
			case "/-/ready", "/debug/pprof/profile", "/debug/pprof/trace":
				continue
			}
			a := apiAsk{admin: true, method: method, target: path, want: http.StatusOK}
			if path == "/-/reload" {
				a.want = reload
			}
			rq, rec := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
			rq.Host = p.admin.Addr().String()
			pages.ServeHTTP(rec, rq)
			if rec.Code != a.want {
				t.Errorf("%s %s at %s: %d %.300s, want %d", method, path, addr, rec.Code, rec.Body, a.want)
				continue
			}
			if _, route := routeOf(t, doc, &a); route != nil {
				if err := checkAgainst(t, route, &a, rq, rec); err != nil {
					t.Errorf("%s %s at %s: %v", method, path, addr, err)
				}
			}
		}
		for _, path := range []string{"/api/v1/query", "/write", "/api/v1/admin/tables", "/"} {
			rq, rec := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
			rq.Host = p.admin.Addr().String()
			if pages.ServeHTTP(rec, rq); rec.Code != http.StatusNotFound {
				t.Errorf("%s at %s: %d, and a storage server has no such route", path, addr, rec.Code)
			}
		}
	}
}
