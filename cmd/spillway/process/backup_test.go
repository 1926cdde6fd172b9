package process

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/backup"
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
		if err := (&backups.Backup{To: dir, URL: admin.URL, Keep: 2}).Run(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // names are milliseconds
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*.backup")); err != nil || len(names) != 2 {
		t.Errorf("backups that were kept: %v %v", names, err)
	}
	if err := (&backups.Backup{To: "/dev/null", URL: admin.URL}).Run(); err == nil || testutil.ToFloat64(p.backups.backups.WithLabelValues("failed")) != 1 {
		t.Errorf("a backup where none can be: %v, and the metrics do not count it", err)
	}
	if n, last := testutil.ToFloat64(p.backups.backups.WithLabelValues("complete")), testutil.ToFloat64(p.backups.last); n != 3 || last < float64(now.Unix()) || last > float64(time.Now().Unix()+1) {
		t.Errorf("metrics have %.0f complete backups, the newest at %.3f", n, last)
	}
	data := filepath.Join(t.TempDir(), "restored")
	if err := (&backups.Restore{From: dir, Verify: true}).Run(); err != nil {
		t.Error(err)
	}
	if err := (&backups.Restore{From: dir, DataDir: &data}).Run(); err != nil {
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

// TestAProcessThatEndsBeforeABackupHasProgressIsSaidToHaveGone: the command asked whether a process runs there.
func TestAProcessThatEndsBeforeABackupHasProgressIsSaidToHaveGone(t *testing.T) {
	var busy atomic.Bool
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		withNews(w, "a backup", &busy, func(func(backup.Progress)) backups.News { panic(http.ErrAbortHandler) })
	}))
	defer admin.Close()
	err := (&backups.Backup{To: t.TempDir(), URL: admin.URL}).Run()
	if err == nil || !strings.Contains(err.Error(), "the process went away before the backup was done") {
		t.Errorf("the command says: %v", err)
	}
}

// TestABackupInABucketIsAStore makes backups in an S3 server, with the keys of the command's environment, and restores the newest
// after the older ones were removed.
func TestABackupInABucketIsAStore(t *testing.T) {
	mem := s3mem.New()
	if err := mem.CreateBucket("bkt"); err != nil {
		t.Fatal(err)
	}
	var written atomic.Int64 // segments
	inner := gofakes3.New(mem, gofakes3.WithHostBucket(false)).Server()
	bucket := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/bkt/a/b/segments/") {
			written.Add(1)
		}
		inner.ServeHTTP(w, r)
	}))
	defer bucket.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "AK")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SK")
	flags := backups.Bucket{Endpoint: bucket.URL, Region: "us-east-1"}

	p := open(t)
	admin := httptest.NewServer(http.HandlerFunc(p.backupPage))
	defer admin.Close()
	const to = "s3://bkt/a/b"
	var before int64
	for i := range 3 {
		if code, text := p.do(t, http.MethodPost, "/write?db=default", fmt.Sprintf("m,i=s%d v=%d", i, i)); code != http.StatusNoContent {
			t.Fatalf("%d %s", code, text)
		}
		for range 2 { // the second has nothing to copy
			before = written.Load()
			if err := (&backups.Backup{To: to, URL: admin.URL, Keep: 2, S3: flags}).Run(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Millisecond) // names are milliseconds
		}
	}
	if n := written.Load(); n != before || n == 0 {
		t.Errorf("%d segments were written, %d of them by a backup of nothing new", n, n-before)
	}
	at, err := flags.Place(to)
	if err != nil {
		t.Fatal(err)
	}
	if files, err := at.List(t.Context(), ""); err != nil || len(files) != 2 {
		t.Errorf("backups that were kept, and no lock: %v %v", files, err)
	}
	for _, c := range []backups.Restore{{List: true}, {Verify: true}} {
		c.From, c.S3 = to, flags
		if err := c.Run(); err != nil {
			t.Error(err)
		}
	}
	data := filepath.Join(t.TempDir(), "restored")
	if err := (&backups.Restore{From: to, DataDir: &data, S3: flags}).Run(); err != nil {
		t.Fatal(err)
	}
	if code, text := openIn(t, data).do(t, http.MethodGet, "/api/v1/query?query=sum(count_over_time(m_v[1h]))", ""); code != http.StatusOK || !strings.Contains(text, `"3"]`) {
		t.Errorf("restored: %d %s", code, text)
	}
}

// TestKeysForABucketDoNotCrossTheNetworkInTheClear: the admin address of another host is asked over https only.
func TestKeysForABucketDoNotCrossTheNetworkInTheClear(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AK")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SK")
	err := (&backups.Backup{To: "s3://bkt", URL: "http://192.0.2.1:8429"}).Run()
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "in the clear") {
		t.Error(err)
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
		{"application/json", `{"to": "s3://bkt", "link": true}`, http.StatusBadRequest},
		{"application/json", `{"to": "s3://bkt", "s3": {"endpoint": "nowhere"}}`, http.StatusBadRequest},
		{"application/json", `{"from": "x"}`, http.StatusBadRequest},
		{"application/json", `{`, http.StatusBadRequest},
	} {
		r := httptest.NewRequest(http.MethodPost, backups.Path, strings.NewReader(c.body))
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
