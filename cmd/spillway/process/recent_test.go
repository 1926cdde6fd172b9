package process

import (
	"net/http"
	"strings"
	"testing"
)

// TestQueriesAndRefusalsOfATableAreForItsReaders: texts of queries and reasons of refusals hold labels and values.
func TestQueriesAndRefusalsOfATableAreForItsReaders(t *testing.T) {
	w := openGuarded(t)
	if code, _ := w.as(t, "admin", http.MethodPost, "/write?db=tenant-b", "secret_b,of_b=label_b v="); code != http.StatusBadRequest {
		t.Fatal(code)
	}
	if code, text := w.as(t, "admin", http.MethodGet, "/t/tenant-b/api/v1/query?time=1&query=label_replace(secret_b_v,%22x%22,%22(%22,%22of_b%22,%22(%22)", ""); code == http.StatusOK {
		t.Fatal(code, text)
	}
	if code, _ := w.as(t, "", http.MethodPost, "/write?db=tenant-b", "secret_b v=1"); code != http.StatusUnauthorized {
		t.Fatal(code)
	}
	for _, c := range []struct {
		path, name       string
		refusal, strange bool
	}{
		{refusalsPath, "reader-a", false, false}, {refusalsPath, "writer-a", false, false}, {refusalsPath, "reader", true, true}, {refusalsPath + "?table=tenant-b", "admin", true, false}, {refusalsPath + "?table=tenant-a", "admin", false, false},
		{refusalsPath + "?table=tenant-b", "reader-a", false, false}, {queriesPath, "reader-a", false, false}, {queriesPath, "reader", true, false}, {queriesPath + "?table=tenant-b", "reader-a", false, false},
		{ratesPath, "reader-a", false, false},
	} {
		code, text := w.as(t, c.name, http.MethodGet, c.path, "")
		if shown := strings.Contains(text, "secret_b"); code != http.StatusOK || shown != c.refusal {
			t.Errorf("%s as %s: %d %s", c.path, c.name, code, text)
		}
		if strings.Contains(text, "tenant-b") && !c.refusal {
			t.Errorf("%s as %s names the other table: %s", c.path, c.name, text)
		}
		if strange := strings.Contains(text, `"status":401`); strange != c.strange {
			t.Errorf("%s as %s, of senders without credentials: %s", c.path, c.name, text)
		}
	}
}

// TestSendersOfATableAreForItsReaders: names of tokens, agents and metrics say much about a tenant. No answer holds a token.
func TestSendersOfATableAreForItsReaders(t *testing.T) {
	w := openGuarded(t)
	for _, table := range []string{"tenant-a", "tenant-b"} {
		if code, text := w.as(t, "admin", http.MethodPost, "/write?db="+table, "secret_of_"+table+" v=1"); code != http.StatusNoContent {
			t.Fatal(code, text)
		}
	}
	for _, c := range []struct {
		path, name string
		a, b       bool
	}{
		{sendersPath + "?table=tenant-a", "reader-a", true, false}, {sendersPath + "?table=tenant-b", "reader-a", false, false}, {sendersPath + "?table=tenant-b", "reader", false, true}, {sendersPath + "?table=tenant-a", "writer-a", false, false},
	} {
		code, text := w.as(t, c.name, http.MethodGet, c.path, "")
		a, b := strings.Contains(text, `"name":"secret_of_tenant-a`), strings.Contains(text, "tenant-b")
		if code != http.StatusOK || a != c.a || b != c.b {
			t.Errorf("%s as %s: %d %s", c.path, c.name, code, text)
		}
		if (a || b) != strings.Contains(text, `"identity":"admin"`) {
			t.Errorf("%s as %s does not say who wrote: %s", c.path, c.name, text)
		}
		if strings.Contains(text, w.tokens["admin"]) {
			t.Errorf("%s shows a token", c.path)
		}
	}
	if code, text := w.as(t, "reader-a", http.MethodGet, sendersPath, ""); code != http.StatusOK || !strings.Contains(text, `"table":"tenant-a"`) || strings.Contains(text, "tenant-b") || strings.Contains(text, "secret_of") {
		t.Errorf("of all tables: %d %s", code, text)
	}
}
