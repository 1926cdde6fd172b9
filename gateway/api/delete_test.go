package api_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
)

// TestADeletionThatEndsBeforeItStartsIsRefused: the answer was 204, and nothing was deleted.
func TestADeletionThatEndsBeforeItStartsIsRefused(t *testing.T) {
	a := newAPI(t, today(t, time.Now()), query.Settings{}, api.Settings{Admin: true})
	for params, want := range map[string]int{"start=2&end=1": http.StatusBadRequest, "start=1&end=1": http.StatusNoContent} {
		if w := serve(a, httptest.NewRequest(http.MethodPost, "/api/v1/admin/tsdb/delete_series?match[]=up&"+params, nil)); w.Code != want {
			t.Errorf("%s: %d %s, want %d", params, w.Code, w.Body, want)
		}
	}
}
