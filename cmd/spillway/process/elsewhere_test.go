package process

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/topics"
)

// TestAToolThatAsksForWhatIsNotServedIsAnsweredWithWhatIs: a query in Flux, a push of a job, traces, and the administration's paths had "404 page not
// found", which names neither the fault nor a remedy.
func TestAToolThatAsksForWhatIsNotServedIsAnsweredWithWhatIs(t *testing.T) {
	w := openGuarded(t)
	for _, c := range []struct{ method, path, want string }{
		{"POST", "/api/v2/query?org=o", `"code":"not found","error":"Flux, SQL and InfluxQL are not evaluated here: ask in PromQL`},
		{"POST", "/t/tenant-a/api/v2/query", "ask in PromQL"},
		{"GET", "/api/v3/query_sql?q=select", "ask in PromQL"},
		{"PUT", "/metrics/job/backup/instance/a", "this is no Pushgateway"},
		{"POST", "/v1/traces", "only metrics are kept here"},
		{"POST", "/api/v1/import/prometheus", "spillway import"},
		{"POST", "/-/reload", "admin.listen"},
		{"GET", "/api/v1/admin/tables", "admin.listen"},
		{"DELETE", "/api/v1/admin/tables/tenant-a", "admin.listen"},
		{"GET", "/debug/pprof/heap", "admin.listen"},
	} {
		for _, as := range []string{"", "reader-a", "admin"} {
			if code, text := w.with(t, w.front, as, c.method, c.path, ""); code != 404 || !strings.Contains(text, c.want) {
				t.Errorf("%s %s as %q: %d %s, want 404 and %q", c.method, c.path, as, code, text, c.want)
			}
		}
	}
	// Paths that no tool is known to ask for, and paths that are served, are as before.
	for path, want := range map[string]int{"/nothing": 404, "/metrics/jobs": 404, "/-/ready": 200, "/metrics": 401} {
		if code, text := w.with(t, w.front, "", "GET", path, ""); code != want || strings.Contains(text, "admin.listen") || strings.Contains(text, "Pushgateway") {
			t.Errorf("GET %s: %d %s, want %d", path, code, text, want)
		}
	}
}

// TestTheAddressOfATablesAPIOpensThePage: clients ask it to see whether a server is there, and people open it; it was 404.
func TestTheAddressOfATablesAPIOpensThePage(t *testing.T) {
	w := openGuarded(t)
	for path, want := range map[string]string{"/t/hosts": "../#/explore?table=hosts", "/t/hosts/": "../../#/explore?table=hosts"} {
		rec := httptest.NewRecorder()
		w.front.ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
		if got := rec.Header().Get("Location"); rec.Code != 302 || got != want {
			t.Errorf("GET %s: %d to %q, want 302 to %q", path, rec.Code, got, want)
		}
	}
}

// TestTheAdminPortSaysWhereWritesAndQueriesGo: "404 page not found" named no other port, and `table top` and `kafka status` repeated not even that.
func TestTheAdminPortSaysWhereWritesAndQueriesGo(t *testing.T) {
	w := openGuarded(t)
	admin, storage := w.adminPages(), openStoragePort(t, "127.0.0.1:0").pages()
	for _, c := range []struct{ method, path string }{
		{"POST", "/write?db=default"}, {"POST", "/api/v1/query"}, {"GET", "/api/v1/status/tables"}, {"GET", "/t/default/api/v1/labels"}, {"POST", "/api/v1/admin/tsdb/delete_series"}, {"GET", "/"},
	} {
		if code, text := at(admin, c.method, c.path); code != 404 || !strings.Contains(text, "http.listen") {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, text)
		}
		if code, text := at(storage, c.method, c.path); code != 404 || !strings.Contains(text, "a gateway's http.listen") {
			t.Errorf("storage: %s %s: %d %s", c.method, c.path, code, text)
		}
	}
	// A wrong method is another fault, and a table that is not there, too.
	for path, want := range map[string]int{"/-/reload": 405, "/api/v1/admin/backup": 405, "/api/v1/admin/tables/none": 404, "/metrics": 200} {
		if code, text := at(admin, "GET", path); code != want || strings.Contains(text, "http.listen") {
			t.Errorf("GET %s: %d %.200s, want %d", path, code, text, want)
		}
	}

	front := httptest.NewServer(w.adminPages())
	defer front.Close()
	if _, err := topics.Fetch(t.Context(), client.Flags{}, front.URL); err == nil || !strings.Contains(err.Error(), "http.listen") {
		t.Errorf("kafka status at the admin port: %v", err)
	}
	old := httptest.NewServer(http.NotFoundHandler())
	defer old.Close()
	if _, err := topics.Fetch(t.Context(), client.Flags{}, old.URL); err == nil || !strings.Contains(err.Error(), "http.listen") {
		t.Errorf("kafka status at another program: %v", err)
	}
}

// at asks pages, which are reached by a name of this host.
func at(pages http.Handler, method, path string) (int, string) {
	rq := httptest.NewRequest(method, path, nil)
	rq.Host = "localhost"
	rec := httptest.NewRecorder()
	pages.ServeHTTP(rec, rq)
	return rec.Code, rec.Body.String()
}
