//go:build clients

package clienttest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// answer is the part of an HTTP response that a client sees.
type answer struct {
	status int
	header http.Header
	body   string
}

// send makes a request as an Influx client does.
func (a api) send(method, path, contentType, encoding string, body []byte) answer {
	a.t.Helper()
	req, err := http.NewRequest(method, a.url+path, bytes.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	for name, value := range map[string]string{"Content-Type": contentType, "Content-Encoding": encoding} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// packed is gzip of the parts, each a separate member.
func packed(t *testing.T, parts ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, p := range parts {
		w := gzip.NewWriter(&b)
		if _, err := io.WriteString(w, p); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestInfluxWritesOfEveryFlavour sends the same lines by the three write APIs, plain and packed, and reads them back.
func TestInfluxWritesOfEveryFlavour(t *testing.T) {
	t.Parallel()
	s := startSpillway(t)
	start := time.Now().Add(-30 * time.Minute).Truncate(fleetStep)
	lines := fleet(start)
	half := len(lines) / 2
	plain, more := fileOf(lines[:half]), fileOf(lines[half:])
	for table, path := range map[string]string{
		"one": "/write?db=one&precision=ns&u=any&p=any", "two": "/api/v2/write?org=o&bucket=two&precision=ns", "three": "/api/v3/write_lp?db=three&precision=nanosecond",
	} {
		got := s.send("POST", path, "text/plain; charset=utf-8", "", []byte(plain))
		if got.status != http.StatusNoContent || got.body != "" {
			t.Errorf("%s: plain: %d %s", path, got.status, got.body)
		}
		got = s.send("POST", path, "", "gzip", packed(t, more[:len(more)/3], more[len(more)/3:]))
		if got.status != http.StatusNoContent || got.body != "" {
			t.Errorf("%s: packed: %d %s", path, got.status, got.body)
		}
		checkFleet(t, s.of(table), start, expected(lines, byInflux()))
	}
	if got := s.send("POST", "/write?db=one", "", "gzip", packed(t, "m f=1")[:10]); got.status != http.StatusBadRequest {
		t.Errorf("half a gzip: %d %s", got.status, got.body)
	}
	if got := s.send("POST", "/write", "", "", []byte("m f=1")); got.status != http.StatusBadRequest || !strings.Contains(got.body, "database is required") {
		t.Errorf("no database: %d %s", got.status, got.body)
	}
}

// shown are the words in the first column of an answer to SHOW …
func shown(t *testing.T, a answer) []string {
	t.Helper()
	var said struct {
		Results []struct {
			Error  string
			Series []struct{ Values [][]any }
		}
	}
	if err := json.Unmarshal([]byte(a.body), &said); err != nil || a.status != http.StatusOK || len(said.Results) != 1 || said.Results[0].Error != "" {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	var words []string
	for _, series := range said.Results[0].Series {
		for _, row := range series.Values {
			word, _ := row[0].(string)
			words = append(words, word)
		}
	}
	return words
}

// TestInfluxQueriesThatToolsAsk: the first queries of Telegraf, Grafana and Influx' shell.
func TestInfluxQueriesThatToolsAsk(t *testing.T) {
	t.Parallel()
	s := startSpillway(t)
	ask := func(method, q string) answer {
		v := url.Values{"q": {q}, "db": {"homes"}, "epoch": {"ms"}}.Encode()
		if method == http.MethodGet {
			return s.send(method, "/query?"+v, "", "", nil)
		}
		return s.send(method, "/query", "application/x-www-form-urlencoded", "", []byte(v))
	}
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		if got := ask(method, `CREATE DATABASE "homes" WITH DURATION 30d REPLICATION 1 NAME "month"`); got.status != http.StatusOK || !strings.Contains(got.body, `{"results":[{"statement_id":0}]}`) {
			t.Errorf("CREATE DATABASE: %d %s", got.status, got.body)
		}
		if got := shown(t, ask(method, "SHOW DATABASES")); !slices.Contains(got, "homes") {
			t.Errorf("SHOW DATABASES: %v", got)
		}
		if got := shown(t, ask(method, `SHOW RETENTION POLICIES on "homes"`)); len(got) == 0 {
			t.Errorf("no retention policy at all")
		}
	}
	if got := s.send("POST", "/write?db=homes", "", "", []byte("kitchen,side=left temperature=20.5,lamp=true")); got.status != http.StatusNoContent {
		t.Fatalf("write: %d %s", got.status, got.body)
	}
	if got := shown(t, ask("GET", "SHOW MEASUREMENTS LIMIT 100")); !slices.Contains(got, "kitchen_temperature") {
		t.Errorf("SHOW MEASUREMENTS: %v", got)
	}
	if got := shown(t, ask("GET", "SHOW TAG KEYS")); !slices.Contains(got, "side") {
		t.Errorf("SHOW TAG KEYS: %v", got)
	}
	if got := s.send("GET", "/ping", "", "", nil); got.status != http.StatusNoContent || got.header.Get("X-Influxdb-Version") == "" {
		t.Errorf("ping: %d %v", got.status, got.header)
	}
	if got := s.send("GET", "/health", "", "", nil); got.status != http.StatusOK || !strings.Contains(got.body, `"pass"`) {
		t.Errorf("health: %d %s", got.status, got.body)
	}
}
