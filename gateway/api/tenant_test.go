package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
)

// TestATenantBehindAProxyReadsNoOtherTable: the table "other" holds the metric elsewhere; a proxy names "default".
func TestATenantBehindAProxyReadsNoOtherTable(t *testing.T) {
	h := newAPI(t, harbour(t), query.Settings{}, api.Settings{})
	f := func(want int, target, body string, header ...string) {
		t.Helper()
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for i := 0; i < len(header); i += 2 {
			r.Header.Add(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || want == 400 && !strings.Contains(w.Body.String(), `"errorType":"bad_data"`) || strings.Contains(w.Body.String(), `"elsewhere"`) {
			t.Errorf("%s %s %v: %d %s, want %d", target, body, header, w.Code, w.Body, want)
		}
	}
	mine := []string{"X-Scope-OrgID", "default"}
	f(200, "/api/v1/query?query=elsewhere", "", mine...)
	f(200, "/t/default/api/v1/query?query=elsewhere&db=default", "", mine...)
	f(400, "/t/other/api/v1/query?query=elsewhere", "", mine...)
	f(400, "/api/v1/query?query=elsewhere&db=other", "", mine...)
	f(400, "/api/v1/query?query=elsewhere&d%62=other", "", mine...)
	f(400, "/api/v1/query?query=elsewhere&bucket=other", "", mine...)
	f(400, "/api/v1/query?query=elsewhere", "", append(mine, "x-scope-orgid", "other")...)
	f(400, "/api/v1/query?query=elsewhere", "", append(mine, "X-Spillway-Table", "other")...)
	f(400, "/api/v1/query", "query=elsewhere&db=other", mine...)
	f(400, "/api/v1/query", "query=elsewhere&db=other")
	f(400, "/api/v1/query?db=default", "query=elsewhere&bucket=other")
	f(404, "/%74/other/api/v1/query?query=elsewhere", "", mine...)
	f(404, "/t/default/t/other/api/v1/query?query=elsewhere", "", mine...)
}
