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
	f("?partial_response=true&partial_response=false", 400, "contradicts itself")
	f("?consistency=any&consistency=leader", 400, "contradicts itself")
	f("?staged=skip&staged=read", 400, "contradicts itself")
	f("?partial_response=true&partial_response=", 200, "n2 is missed")
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

// TestARequestMaySkipStagedRows where its answer has warnings, in which the watermark travels.
func TestARequestMaySkipStagedRows(t *testing.T) {
	skips := 0
	source := broken{querytest.NewStore(), func(ctx context.Context) error {
		if query.SkipStaged(ctx) != nil {
			skips++
		}
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
	f := func(method, path, body string, status, want int) {
		t.Helper()
		skips = 0
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		h.ServeHTTP(w, r)
		if w.Code != status || skips != want {
			t.Errorf("%s %s: %d %s, skipped %d times, want %d and %d", path, body, w.Code, w.Body, skips, status, want)
		}
	}
	f("GET", "/api/v1/query?query=m&staged=skip", "", 200, 1)
	f("POST", "/api/v1/query", "query=m&staged=skip", 200, 1)
	f("GET", "/api/v1/query_range?query=m&start=0&end=60&step=15&staged=skip", "", 200, 1)
	f("GET", "/api/v1/labels?staged=skip", "", 200, 1)
	f("GET", "/api/v1/labels?staged=read", "", 200, 0)
	f("GET", "/api/v1/labels?staged=perhaps", "", 400, 0)
	f("GET", "/federate?match[]=m&staged=skip", "", 400, 0)
	f("GET", "/api/v1/export?match[]=m&staged=skip", "", 400, 0)
	f("POST", "/api/v1/export", "match[]=m&staged=skip", 400, 0)
	f("POST", "/api/v1/read?staged=skip", "", 400, 0)
}
