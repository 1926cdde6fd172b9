package api_test

import (
	"bytes"
	"context"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// postMultipart posts parameters as curl -F does, beside a file.
func postMultipart(t *testing.T, h http.Handler, path string, params ...string) *httptest.ResponseRecorder {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for i := 0; i < len(params); i += 2 {
		if err := form.WriteField(params[i], params[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	file, err := form.CreateFormFile("file", "a.txt")
	if err == nil {
		_, err = file.Write([]byte("ahoy"))
	}
	if err == nil {
		err = form.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	rq, rec := httptest.NewRequest(http.MethodPost, path, &body), httptest.NewRecorder()
	rq.Header.Set("Content-Type", form.FormDataContentType())
	h.ServeHTTP(rec, rq)
	return rec
}

// TestAQueryMayComeAsAMultipartForm, as curl -F sends it and Prometheus reads it: its parameters were said to be missing.
func TestAQueryMayComeAsAMultipartForm(t *testing.T) {
	h := newAPI(t, harbour(t), query.Settings{}, api.Settings{})
	f := func(path string, want int, part string, params ...string) {
		t.Helper()
		if rec := postMultipart(t, h, "/api/v1/"+path, params...); rec.Code != want || !strings.Contains(rec.Body.String(), part) {
			t.Errorf("%s %q: %d %s", path, params, rec.Code, rec.Body)
		}
	}
	f("query", 200, `"pier":"north"`, "query", "wind", "time", "95")
	f("query_range", 200, `"pier":"north"`, "query", "wind", "start", "60", "end", "95", "step", "5")
	f("series", 200, `"pier":"north"`, "match[]", "wind")
	f("query", 400, `elsewhere`, "query", "wind", "db", "elsewhere") // as in any other form
	f("query", 400, `invalid parameter`)

	small := newAPI(t, harbour(t), query.Settings{}, api.Settings{FormBytesMax: 100})
	if rec := postMultipart(t, small, "/api/v1/query", "query", strings.Repeat("1", 200)); rec.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a large form: %d %s", rec.Code, rec.Body)
	}
}

// TestAFailureIsLogged whatever form its answer has: a remote read or a federation that failed by a defect left no trace.
func TestAFailureIsLogged(t *testing.T) {
	src := broken{querytest.NewStore(), func(context.Context) error { return fault.Errorf(fault.Corrupt, "the pier is broken") }}
	for _, path := range []string{"/federate?match[]=wind", "/api/v1/query?query=wind&time=4"} {
		var log bytes.Buffer
		q, err := query.New(query.Deps{Source: src}, query.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := api.New(api.Deps{Query: q, Log: slog.New(slog.NewTextHandler(&log, nil))}, api.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if resp := get(t, h, path); resp.StatusCode != http.StatusInternalServerError || strings.Count(log.String(), "the pier is broken") != 1 {
			t.Errorf("%s: %s, and the log says %q", path, resp.Status, log.String())
		}
	}
}
