package process

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
)

// TestShowAnswersWhoMayRead: the reader of queries checks the identity in the context. Without one it refuses every SHOW.
func TestShowAnswersWhoMayRead(t *testing.T) {
	asks := map[string]string{
		"SHOW SERIES": "secret_a_v,of_a=label_a", "SHOW MEASUREMENTS": "secret_a_v", "SHOW TAG KEYS": "of_a",
		"SHOW FIELD KEYS": "fieldKey", `SHOW TAG VALUES WITH KEY = "of_a"`: "label_a", `SHOW SERIES FROM "secret_a_v"`: "secret_a_v,of_a=label_a",
	}
	w := openGuarded(t)
	for q, want := range asks {
		target := "/query?db=tenant-a&q=" + url.QueryEscape(q)
		for name, answered := range map[string]bool{"reader-a": true, "reader": true, "admin-a": true, "admin": true, "writer-a": false, "elsewhere": false} {
			switch code, text := w.as(t, name, http.MethodGet, target, ""); {
			case code != http.StatusOK, answered && !strings.Contains(text, want), !answered && (!strings.Contains(text, "lacks the right") || strings.Contains(text, want)):
				t.Errorf("%s by %s: %d %s", q, name, code, text)
			}
		}
		if code, text := w.as(t, "", http.MethodGet, target, ""); code != http.StatusUnauthorized {
			t.Errorf("%s by nobody: %d %s", q, code, text)
		}
	}
	// A deletion by a measurement alone looks for its metrics.
	if code, text := w.as(t, "admin-a", http.MethodPost, "/api/v2/delete?bucket=tenant-a", `{"start":"2020-01-01T00:00:00Z","stop":"2020-01-02T00:00:00Z","predicate":"_measurement=\"secret_a\""}`); code != http.StatusBadRequest || !strings.Contains(text, `_field=\"v\"`) {
		t.Errorf("a deletion: %d %s", code, text)
	}
	p := open(t) // without tokens
	if code, text := p.do(t, http.MethodPost, "/write?db=tenant-a", "secret_a,of_a=label_a v=41"); code != http.StatusNoContent {
		t.Fatal(code, text)
	}
	for q, want := range asks {
		if code, text := p.do(t, http.MethodGet, "/query?db=tenant-a&q="+url.QueryEscape(q), ""); code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s without tokens: %d %s", q, code, text)
		}
	}
}

// TestShowHoldsNoMoreThanAQueryMay: its series were listed in no account of memory, however many asked at once.
func TestShowHoldsNoMoreThanAQueryMay(t *testing.T) {
	cfg := config{Config: settings.Default()}
	cfg.Query.BytesMax = 64 << 10
	p := openWith(t, t.TempDir(), cfg)
	var body strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&body, "cpu,host=h%d,path=%0200d v=1\n", i, i)
	}
	if code, text := p.do(t, http.MethodPost, "/write?db=d", body.String()); code != http.StatusNoContent {
		t.Fatal(code, text)
	}
	for _, q := range []string{"SHOW TAG KEYS", "SHOW SERIES"} {
		if code, text := p.do(t, http.MethodGet, "/query?db=d&q="+url.QueryEscape(q), ""); code != http.StatusOK || !strings.Contains(text, `"error":`) || len(text) > 1000 {
			t.Errorf("%s: %d %.300s", q, code, text)
		}
	}
	if code, text := p.do(t, http.MethodGet, "/query?db=d&q="+url.QueryEscape("SHOW SERIES LIMIT 10; SHOW MEASUREMENTS"), ""); code != http.StatusOK || !strings.Contains(text, `[["cpu_v"]]`) {
		t.Errorf("%d %.300s", code, text)
	}
	if n := p.accounts.queries.Used(); n != 0 {
		t.Errorf("%d bytes stay booked", n)
	}
}
