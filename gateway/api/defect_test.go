package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/gateway/recent"
	"github.com/spillwaydb/spillway/protocols/budget"
)

// TestADefectKeepsNoPlaceAndNoMemoryOfQueries: net/http goes on after a panic, so a query that ended in one must not keep
// the place or the memory of those after it.
func TestADefectKeepsNoPlaceAndNoMemoryOfQueries(t *testing.T) {
	defect := true
	src := broken{querytest.NewStore(), func(context.Context) error {
		if defect {
			panic("a defect")
		}
		return nil
	}}
	memory := budget.New("queries", 64<<20)
	shown := recent.NewQueries()
	q, err := query.New(query.Deps{Source: src, Memory: memory, Recent: shown}, query.Settings{RunningMax: 2, WaitingMax: 1})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(api.Deps{Query: q}, api.Settings{ReadRunningMax: 2})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(path string) (panicked bool, code int) {
		defer func() { panicked = recover() != nil }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil).WithContext(ctx))
		return false, rec.Code
	}
	for _, path := range []string{"/api/v1/labels", "/api/v1/query?query=wind", "/api/v1/query_range?query=wind&start=0&end=9&step=1", "/federate?match[]=wind"} {
		for range 200 {
			panicked, code := ask(path)
			if panicked && strings.Contains(path, "query") {
				t.Fatalf("%s: the connection ends without an answer", path)
			}
			if !panicked && code != http.StatusInternalServerError && code != http.StatusUnprocessableEntity {
				t.Fatalf("%s: %d instead of a defect", path, code)
			}
		}
		if used := memory.Used(); used != 0 {
			t.Errorf("%s: %d bytes stay booked", path, used)
		}
		if running := shown.Lists(time.Now(), func(string) bool { return true }).Running; len(running) != 0 {
			t.Errorf("%s: %d queries are shown as running", path, len(running))
		}
	}
	defect = false
	if _, code := ask("/api/v1/labels"); code != http.StatusOK {
		t.Errorf("look-ups afterwards: %d", code)
	}
}
