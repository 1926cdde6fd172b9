package process

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/access"
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

// TestTheAdminPortOfAStorageServerIsAsItsDocumentSays asks for each of its routes, where its host alone reaches the port and where others do: those had profiles
// and the command line, too.
// Clusters of other tests wait for /-/ready, and a profile of this process may be under way.
func TestTheAdminPortOfAStorageServerIsAsItsDocumentSays(t *testing.T) {
	doc := loadAPIDocument(t)
	for addr, private := range map[string]int{"127.0.0.1:0": http.StatusOK, "0.0.0.0:0": http.StatusForbidden} {
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
			if page.need != access.NeedNothing {
				a.want = private
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
		for from, want := range map[string]int{"127.0.0.1:1": http.StatusOK, "[::1]:1": http.StatusOK, "127.0.0.6:1": private, "10.0.0.7:1": private} {
			for _, ask := range []string{"GET /debug/pprof/cmdline", "POST /-/reload", "PUT /-/reload"} {
				method, path, _ := strings.Cut(ask, " ")
				rq, rec := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
				rq.Host, rq.RemoteAddr = p.admin.Addr().String(), from
				if pages.ServeHTTP(rec, rq); rec.Code != want {
					t.Errorf("%s at %s from %s: %d %.300s, want %d", ask, addr, from, rec.Code, rec.Body, want)
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

// TestAStorageServerAtOneAddressIsAskedFromItsHost: its own requests come from that address, and they were refused with the advice to ask 127.0.0.1, where nothing
// listens. Where it listens at all addresses a proxy on the host, which passes on the requests of others, would ask from the one that it asks.
func TestAStorageServerAtOneAddressIsAskedFromItsHost(t *testing.T) {
	at := func(addr string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)) }
	for _, c := range []struct {
		listen net.Addr
		from   string
		want   bool
	}{
		{at("10.0.0.5:8429"), "10.0.0.5:1", true}, {at("10.0.0.5:8429"), "10.0.0.7:1", false}, {at("10.0.0.5:8429"), "127.0.0.1:1", true},
		{at("[::ffff:10.0.0.5]:8429"), "10.0.0.5:1", true}, {at("0.0.0.0:8429"), "10.0.0.5:1", false}, {at("[::]:8429"), "[::1]:1", true}, {at("[::]:8429"), "127.0.0.6:1", false},
	} {
		for _, header := range []string{"", "X-Forwarded-For", "Forwarded"} {
			rq := httptest.NewRequest(http.MethodGet, "/debug/pprof/cmdline", nil)
			if rq.RemoteAddr = c.from; header != "" {
				rq.Header.Set(header, "for=10.0.0.5")
			}
			if got, want := ofOwnHost(c.listen, rq), c.want && header == ""; got != want {
				t.Errorf("%s asked from %s with %q: %t", c.listen, c.from, header, got)
			}
		}
	}
}
