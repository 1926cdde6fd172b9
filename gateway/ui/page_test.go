package ui_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/ui"
)

func ask(t *testing.T, h http.Handler, target string, header ...string) *http.Response {
	t.Helper()
	rq := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i < len(header); i += 2 {
		rq.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, rq)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestPageLoadsNothingFromElsewhere: the page works without the internet, below a proxy's prefix, and under a policy
// that forbids scripts and styles within it.
func TestPageLoadsNothingFromElsewhere(t *testing.T) {
	page := ui.Page()
	r := ask(t, page, "/")
	html := body(t, r)
	if r.StatusCode != 200 || !strings.Contains(html, `<div id="app">`) {
		t.Fatalf("%d %s", r.StatusCode, html)
	}
	policy := r.Header.Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}
	links := regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(html, -1)
	if len(links) < 3 {
		t.Fatalf("the page has %d links: %s", len(links), html)
	}
	for _, l := range links {
		if strings.HasPrefix(l[1], "api/") {
			continue
		}
		if !strings.HasPrefix(l[1], "./") {
			t.Errorf("%s is not relative", l[1])
		}
		if f := ask(t, page, strings.TrimPrefix(l[1], ".")); f.StatusCode != 200 {
			t.Errorf("%s: %d", l[1], f.StatusCode)
		}
	}
	for _, bad := range []string{"<script>", "<style", " style=", "onload="} {
		if strings.Contains(html, bad) {
			t.Errorf("the page has %q, which its policy forbids", bad)
		}
	}
	if r := ask(t, page, "/assets/../../go.mod"); r.StatusCode != http.StatusNotFound {
		t.Errorf("a file beside the page: %d", r.StatusCode)
	}
}

// pageBytesMax is how large the page may become, compressed.
const pageBytesMax = 700 << 10

func TestPageIsSmallAndComesOnce(t *testing.T) {
	page, sum := ui.Page(), 0
	for _, name := range []string{"/", "/assets/index.js", "/assets/editor.js", "/assets/style.css", "/icon.svg", "/NOTICE.txt"} {
		r := ask(t, page, name, "Accept-Encoding", "br, gzip")
		zipped := body(t, r)
		sum += len(zipped)
		plain := body(t, ask(t, page, name))
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(strings.NewReader(zipped))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(z)
			if err != nil || string(text) != plain {
				t.Errorf("%s: compressed, it is another: %v", name, err)
			}
		}
		tag := r.Header.Get("ETag")
		if again := ask(t, page, name, "If-None-Match", tag); tag == "" || again.StatusCode != http.StatusNotModified || body(t, again) != "" {
			t.Errorf("%s comes again: %d", name, again.StatusCode)
		}
	}
	if sum > pageBytesMax {
		t.Errorf("the page has %d bytes compressed, more than %d", sum, pageBytesMax)
	}
}

// TestNoticeNamesWhatIsBundled: the licences of the packages within require this.
func TestNoticeNamesWhatIsBundled(t *testing.T) {
	text := body(t, ask(t, ui.Page(), "/NOTICE.txt"))
	for _, name := range []string{"preact ", "uplot ", "@codemirror/view ", "@prometheus-io/codemirror-promql ", "Apache License", "MIT License"} {
		if !strings.Contains(text, name) {
			t.Errorf("the notice lacks %q", name)
		}
	}
}

func TestStatusDistinguishesUnknownFromNothing(t *testing.T) {
	zero, rows := uint64(0), uint64(7)
	day := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	source := func(_ context.Context, a ui.Ask) ui.Status {
		s := ui.Status{Version: "v1", Role: "gateway", Now: day, Tables: []ui.Table{{Name: "default", Count: 2, Unknown: 1, Partitions: []ui.Partition{
			{ID: 1, From: day, To: day.Add(time.Hour), Rows: &rows, Bytes: &zero}, {ID: 2, From: day.Add(time.Hour), To: day.Add(2 * time.Hour)},
		}}}}
		if !a.Partitions {
			s.Tables[0].Partitions = nil
		}
		if a.Forecast {
			s.Tables[0].Forecast = []ui.Forecast{{Known: true, Partitions: []ui.Expected{{ID: 9}}}}
		}
		if a.Table != "" && a.Table != "default" {
			s.Tables = nil
		}
		return s
	}
	get := func(query string, header ...string) string {
		r := ask(t, ui.JSON(source), ui.Path+query, header...)
		text := body(t, r)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			plain, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			text = string(plain)
		}
		return text
	}
	text := get("")
	var got struct {
		Status string
		Data   ui.Status
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	ps := got.Data.Tables[0].Partitions
	if got.Status != "success" || len(ps) != 2 || *ps[0].Rows != 7 || *ps[0].Bytes != 0 || ps[1].Rows != nil || got.Data.Tables[0].Rows != nil {
		t.Errorf("%s", text)
	}
	if !strings.Contains(text, `"rows":null`) {
		t.Errorf("what is not known must be null: %s", text)
	}
	if zipped := get("", "Accept-Encoding", "gzip"); zipped != text {
		t.Errorf("compressed, it is another: %s", zipped)
	}
	if text := get("?partitions=none"); strings.Contains(text, `"ring_lo"`) {
		t.Errorf("partitions that nobody asked for: %s", text)
	}
	if text := get("?table=default&forecast=show"); !strings.Contains(text, `"forecast":[{`) || !strings.Contains(text, `"bytes":null,"expected":false`) {
		t.Errorf("the forecast: %s", text)
	}
	if text := get("?forecast=show"); strings.Contains(text, `"forecast"`) {
		t.Errorf("forecasts of all tables: %s", text)
	}
	if text := get("?table=other"); strings.Contains(text, "default") {
		t.Errorf("a table that was not asked for: %s", text)
	}
}
