package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestABackupOfAServingProcessIsAStore follows a person at a terminal, with the process on the other side of a socket.
func TestABackupOfAServingProcessIsAStore(t *testing.T) {
	p := open(t)
	now := time.Now()
	var body strings.Builder
	for i := range 50 {
		fmt.Fprintf(&body, "m,i=s%d v=%d %d\n", i, i, now.Add(-time.Duration(i)*time.Hour).UnixNano())
	}
	for _, db := range []string{"default", "other"} {
		if code, text := p.do(t, http.MethodPost, "/write?db="+db, body.String()); code != http.StatusNoContent {
			t.Fatalf("%d %s", code, text)
		}
	}
	admin := httptest.NewServer(http.HandlerFunc(p.backupPage))
	defer admin.Close()
	dir := filepath.Join(t.TempDir(), "backups")
	for range 3 {
		if err := (&backupCmd{To: dir, URL: admin.URL, Keep: 2}).Run(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // names are milliseconds
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*.backup")); err != nil || len(names) != 2 {
		t.Errorf("backups that were kept: %v %v", names, err)
	}
	data := filepath.Join(t.TempDir(), "restored")
	if err := (&restoreCmd{From: dir, Verify: true}).Run(); err != nil {
		t.Error(err)
	}
	if err := (&restoreCmd{From: dir, DataDir: &data}).Run(); err != nil {
		t.Fatal(err)
	}
	q := openIn(t, data)
	for _, path := range []string{"", "/t/other"} {
		code, text := q.do(t, http.MethodGet, path+"/api/v1/query?query=sum(count_over_time(m_v[3d]))", "")
		if code != http.StatusOK || !strings.Contains(text, `"50"]`) || strings.Contains(text, "warnings") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if code, text := q.do(t, http.MethodPost, "/write?db=other", "m,i=s1 v=7"); code != http.StatusNoContent {
		t.Errorf("a write after the restore: %d %s", code, text)
	}
}

// TestABackupIsNotMadeByAnybodysPage: a page in a browser can post forms to any port of its host, and must not fill
// disks.
func TestABackupIsNotMadeByAnybodysPage(t *testing.T) {
	p := open(t)
	dir := filepath.Join(t.TempDir(), "backups")
	for _, c := range []struct {
		kind, body string
		want       int
	}{
		{"text/plain", fmt.Sprintf(`{"to": %q}`, dir), http.StatusUnsupportedMediaType},
		{"application/json", `{"to": "relative"}`, http.StatusBadRequest},
		{"application/json", fmt.Sprintf(`{"to": %q, "keep": -1}`, dir), http.StatusBadRequest},
		{"application/json", `{"from": "x"}`, http.StatusBadRequest},
		{"application/json", `{`, http.StatusBadRequest},
	} {
		r := httptest.NewRequest(http.MethodPost, backupPath, strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		w := httptest.NewRecorder()
		p.backupPage(w, r)
		if text, _ := io.ReadAll(w.Body); w.Code != c.want {
			t.Errorf("%s %s: %d %s, want %d", c.kind, c.body, w.Code, text, c.want)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a backup was made")
	}
}
