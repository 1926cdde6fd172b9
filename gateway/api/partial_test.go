package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestAnswersMayBePartialOnlyWhereAskedFor: otherwise missing rows are an error.
func TestAnswersMayBePartialOnlyWhereAskedFor(t *testing.T) {
	source := broken{querytest.NewStore(), func(ctx context.Context) error {
		if !query.Partial(ctx) {
			return fault.Errorf(fault.Unavailable, "server n2 is away")
		}
		query.Warn(ctx, "server n2 is missed")
		return nil
	}}
	reader, err := query.New(query.Deps{Source: source}, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(api.Deps{Query: reader}, api.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	f := func(param string, status int, text string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/labels"+param, nil))
		if w.Code != status || !strings.Contains(w.Body.String(), text) {
			t.Errorf("%q: %d %s, want %d and %q", param, w.Code, w.Body, status, text)
		}
	}
	f("", 503, "n2 is away")
	f("?partial_response=false", 503, "n2 is away")
	f("?partial_response=true", 200, `"warnings":["server n2 is missed"]`)
	f("?partial_response=perhaps", 400, "partial_response")
}

// TestARequestChoosesWhichCopiesAreRead: it may ask for leaders alone, or for any copy, whatever the settings say.
func TestARequestChoosesWhichCopiesAreRead(t *testing.T) {
	got := ""
	source := broken{querytest.NewStore(), func(ctx context.Context) error {
		leaders, said := query.LeaderOnly(ctx)
		got = fmt.Sprint(leaders, said)
		return nil
	}}
	reader, err := query.New(query.Deps{Source: source}, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(api.Deps{Query: reader}, api.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	f := func(param string, status int, want string) {
		t.Helper()
		got = ""
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/labels"+param, nil))
		if w.Code != status || got != want {
			t.Errorf("%q: %d %s, asked with %q, want %d and %q", param, w.Code, w.Body, got, status, want)
		}
	}
	f("", 200, "false false")
	f("?consistency=leader", 200, "true true")
	f("?consistency=any", 200, "false true")
	f("?consistency=tail", 400, "")
}
