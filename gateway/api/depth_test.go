package api_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
)

// A few megabytes of signs cost two gigabytes and a core for minutes, past every time-out.
func TestNoQueryIsTooDeepToBeAnswered(t *testing.T) {
	a := newAPI(t, harbour(t), query.Settings{}, api.Settings{})
	post := func(path, expr string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/api/v1/"+path, strings.NewReader(url.Values{"query": {expr}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return w
	}
	for _, path := range []string{"query", "format_query", "parse_query", "query_exemplars", "query_range"} {
		if w := post(path, strings.Repeat("-", 4_000_000)+"1"); w.Code != http.StatusBadRequest {
			t.Errorf("%s of four million signs: %d %.200s, want 400", path, w.Code, w.Body)
		}
	}
	for _, path := range []string{"query", "format_query", "parse_query"} {
		if w := post(path, strings.Repeat("wind + ", 2000)+"wind"); w.Code != http.StatusOK {
			t.Errorf("%s of a long sum: %d %.200s, want 200", path, w.Code, w.Body)
		} else if w.Body.Len() > 1<<20 {
			t.Errorf("%s of a long sum: %d bytes", path, w.Body.Len())
		}
	}
}
