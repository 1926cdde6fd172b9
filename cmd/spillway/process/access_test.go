package process

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/gateway/query"
)

// guardedWorld is a process with tokens, and their rights.
type guardedWorld struct {
	*standalone
	tokens map[string]string // by name
}

// openGuarded starts a process where tenant-a and tenant-b have rows. Tenant-a has a token each for reading, writing and
// admin, and others are for the whole process.
func openGuarded(t *testing.T) *guardedWorld {
	t.Helper()
	w := &guardedWorld{tokens: map[string]string{}}
	file := "tokens:\n"
	for name, s := range map[string]access.Scope{
		"reader-a":  {Tables: []string{"tenant-a"}, May: []string{"read"}},
		"writer-a":  {Tables: []string{"tenant-a"}, May: []string{"write"}},
		"admin-a":   {Tables: []string{"tenant-a"}, May: []string{"admin"}},
		"elsewhere": {Tables: []string{"tenant-c"}, May: []string{"admin"}},
		"reader":    {Tables: []string{"*"}, May: []string{"read"}},
		"admin":     {Tables: []string{"*"}, May: []string{"admin"}},
		"scraper":   {May: []string{"metrics"}},
	} {
		token := access.NewToken()
		text, err := access.Entry(token, access.Token{Name: name, Scopes: []access.Scope{s}})
		if err != nil {
			t.Fatal(err)
		}
		w.tokens[name] = token
		file += text
	}
	cfg := config{Config: settings.Default()}
	cfg.DataDir = t.TempDir()
	cfg.HTTP.Listen, cfg.Admin.Listen, cfg.API.Admin = "127.0.0.1:0", "127.0.0.1:0", true
	cfg.HTTP.TokensFile = filepath.Join(t.TempDir(), "tokens.yml")
	if err := os.WriteFile(cfg.HTTP.TokensFile, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	p, err := openStandalone(t.Context(), &cfg, newLog(io.Discard, "", slog.LevelInfo, registry), registry)
	if err != nil {
		t.Fatal(err)
	}
	w.standalone = p
	t.Cleanup(func() {
		p.drain()
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	for _, tenant := range []string{"a", "b"} {
		line := fmt.Sprintf("secret_%[1]s,of_%[1]s=label_%[1]s v=4%[1]s 1", tenant)
		line = strings.Replace(line, "v=4"+tenant, map[string]string{"a": "v=41", "b": "v=43"}[tenant], 1)
		if code, text := w.as(t, "admin", http.MethodPost, "/write?db=tenant-"+tenant+"&precision=s", line); code != http.StatusNoContent {
			t.Fatalf("%d %s", code, text)
		}
	}
	return w
}

// as sends a request with the token of that name; "": with none.
func (w *guardedWorld) as(t *testing.T, name, method, target, body string, header ...string) (int, string) {
	t.Helper()
	return w.with(t, w.front, name, method, target, body, header...)
}

func (w *guardedWorld) with(t *testing.T, h http.Handler, name, method, target, body string, header ...string) (int, string) {
	t.Helper()
	rq := httptest.NewRequest(method, target, strings.NewReader(body))
	if name != "" {
		rq.Header.Set("Authorization", "Bearer "+w.tokens[name])
	}
	for i := 0; i < len(header); i += 2 {
		rq.Header.Add(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, rq)
	return rec.Code, rec.Body.String()
}

// storagePort names the only port of a storage server that speaks HTTP, in the list of routes.
const storagePort = "admin.listen of a storage server"

// routes returns all routes of a process that serves writes and queries, with the right that each needs.
func (w *guardedWorld) routes(t *testing.T) (public, private map[string]access.Need) {
	t.Helper()
	reader, err := query.New(query.Deps{Source: w.server}, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	promAPI, err := api.New(api.Deps{Query: reader, Checked: true}, api.Settings{Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	public, private = intake.Routes(), map[string]access.Need{}
	maps.Copy(public, promAPI.Routes())
	for _, p := range w.publicPages(promAPI) {
		public[p.pattern] = p.need
	}
	for _, p := range w.privatePages() {
		private[p.pattern] = p.need
	}
	return public, private
}

// TestEveryRouteSaysWhoMayUseIt: a new route must be added to the list here on purpose.
func TestEveryRouteSaysWhoMayUseIt(t *testing.T) {
	w := openGuarded(t)
	public, private := w.routes(t)
	var out bytes.Buffer
	list := func(title string, routes map[string]access.Need) {
		fmt.Fprintf(&out, "# %s\n", title)
		for _, r := range slices.Sorted(maps.Keys(routes)) {
			if routes[r].String() == "unset" {
				t.Errorf("%s: no need is set, so nobody can use it", r)
			}
			fmt.Fprintf(&out, "%-10s %s\n", routes[r], r)
		}
	}
	list("http.listen", public)
	list("admin.listen", private)
	ofStorage := map[string]access.Need{}
	for _, p := range openStoragePort(t, "127.0.0.1:0").adminPages() {
		ofStorage[p.pattern] = p.need
	}
	list(storagePort, ofStorage)
	const golden = "testdata/routes.txt"
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("the routes changed; decide who may use them, and rewrite with -update:\n%s", &out)
	}
}

// TestRoutesHoldTokensAgainstTheirNeed tries every route with every token.
func TestRoutesHoldTokensAgainstTheirNeed(t *testing.T) {
	w := openGuarded(t)
	public, _ := w.routes(t)
	may := map[access.Need][]string{ // the tokens allowed; the others get 403
		access.NeedRead:     {"reader-a", "admin-a", "reader", "admin"},
		access.NeedWrite:    {"writer-a", "admin-a", "admin"},
		access.NeedAdmin:    {"admin-a", "admin"},
		access.NeedMetrics:  {"scraper", "reader", "admin"},
		access.NeedReadAll:  {"reader", "admin"},
		access.NeedAdminAll: {"admin"},
	}
	for route, need := range public {
		method, path, ok := strings.Cut(route, " ")
		if !ok {
			continue // a prefix, with its routes listed separately
		}
		path = strings.ReplaceAll(strings.ReplaceAll(path, ":name", "job"), "{$}", "")
		header := []string{"X-Scope-OrgID", "tenant-a"}
		if code, text := w.as(t, "", method, path, "", header...); (code == http.StatusUnauthorized) != (need != access.NeedNothing) {
			t.Errorf("%s without credentials: %d %s", route, code, text)
		}
		if code, text := w.with(t, w.front, "", method, path, "", append(header, "Authorization", "Bearer wrong")...); (code == http.StatusUnauthorized || code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable) != (need != access.NeedNothing) {
			t.Errorf("%s with a wrong token: %d %s", route, code, text)
		}
		for name := range w.tokens {
			code, text := w.as(t, name, method, path, "", header...)
			all := need == access.NeedNothing || need == access.NeedIdentity
			if allowed := all || slices.Contains(may[need], name); allowed != (code != http.StatusForbidden && code != http.StatusUnauthorized) {
				t.Errorf("%s (%s) as %s: %d %s", route, need, name, code, text)
			}
		}
	}
}

// TestATokenOfOneTableSeesNothingOfAnother asks every route that returns data for rows of tenant-b, in every way that
// names a table, with tokens for tenant-a.
func TestATokenOfOneTableSeesNothingOfAnother(t *testing.T) {
	w := openGuarded(t)
	public, _ := w.routes(t)
	exprs := []string{`{__name__=~".+"}`, "secret_b_v", `{of_b!=""}`, `count({__name__!=""})`}
	var asked, answered int
	ask := func(name, method, target, body string, header ...string) {
		t.Helper()
		asked++
		code, text := w.as(t, name, method, target, body, header...)
		if code == http.StatusOK || code == http.StatusNoContent {
			answered++
		}
		for _, secret := range []string{"secret_b", "of_b", "label_b", "tenant-b", `"43"`} {
			quoted := strings.Contains(target+body+strings.Join(header, " "), secret) // some routes repeat the request
			if secret == "tenant-b" && name == "scraper" && strings.Contains(target, "/metrics?") {
				continue // metrics of the whole process name its tables
			}
			if strings.Contains(text, secret) && !quoted {
				t.Errorf("%s: %s %s %s %q: %d shows %s: %.300s", name, method, target, body, header, code, secret, text)
			}
		}
	}
	for route := range public {
		method, path, ok := strings.Cut(route, " ")
		if !ok || strings.HasSuffix(path, "delete_series") {
			continue
		}
		path = strings.ReplaceAll(path, "{$}", "")
		for _, label := range []string{"__name__", "of_b"} {
			for _, expr := range exprs {
				params := url.Values{"query": {expr}, "match[]": {expr}, "q": {"SHOW DATABASES; SHOW MEASUREMENTS"}, "start": {"0"}, "end": {"100"}, "step": {"10"}, "time": {"1"}}
				for _, name := range []string{"reader-a", "admin-a", "writer-a", "elsewhere", "scraper"} {
					p := strings.ReplaceAll(path, ":name", label)
					form := []string{"Content-Type", "application/x-www-form-urlencoded"}
					send := func(p, q string, header ...string) {
						if method == http.MethodPost {
							ask(name, method, p+"?"+q, params.Encode(), append(form, header...)...)
						} else {
							ask(name, method, p+"?"+q+"&"+params.Encode(), "", header...)
						}
					}
					send("/t/tenant-a"+p, "")
					send("/t/tenant-b"+p, "")
					send("/t/tenant-a"+p, "db=tenant-b")
					send(p, "db=tenant-b")
					send(p, "", "X-Scope-OrgID", "tenant-b")
					send(p, "", "X-Scope-OrgID", "tenant-a", "X-Spillway-Table", "tenant-b")
					send(p, "bucket=tenant-b", "X-Scope-OrgID", "tenant-a")
					send(p, "")
				}
			}
		}
	}
	for _, q := range []string{"SHOW MEASUREMENTS ON \"tenant-b\"", "SHOW SERIES ON \"tenant-b\"", "SHOW TAG KEYS ON \"tenant-b\"", "SHOW RETENTION POLICIES ON \"tenant-b\"", "CREATE DATABASE \"tenant-b\"", "SHOW DATABASES"} {
		code, text := w.as(t, "reader-a", http.MethodPost, "/query?q="+url.QueryEscape(q), "")
		if strings.Contains(text, "secret_b") || code != http.StatusOK || q != "SHOW DATABASES" && !strings.Contains(text, `lacks the right`) || q == "SHOW DATABASES" && strings.Contains(text, "tenant-b") {
			t.Errorf("%s: %d %s", q, code, text)
		}
	}
	if answered < asked/20 {
		t.Errorf("only %d of %d requests were answered: the test asks nothing", answered, asked)
	}
	if code, text := w.as(t, "reader-a", http.MethodGet, "/t/tenant-a/api/v1/query?query=secret_a_v&time=1", ""); code != http.StatusOK || !strings.Contains(text, `"41"`) {
		t.Errorf("its own table: %d %s", code, text)
	}
}

// TestRemoteReadStaysInItsTable: remote read has matchers, and no expression.
func TestRemoteReadStaysInItsTable(t *testing.T) {
	w := openGuarded(t)
	raw, err := proto.Marshal(&prompb.ReadRequest{Queries: []*prompb.Query{{EndTimestampMs: 1e6, Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_RE, Name: "__name__", Value: ".+"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	body := string(snappy.Encode(nil, raw))
	for target, want := range map[string]int{"/t/tenant-a/api/v1/read": 200, "/t/tenant-b/api/v1/read": 403, "/api/v1/read": 403, "/t/tenant-a/api/v1/read?db=tenant-b": 400} {
		code, text := w.as(t, "reader-a", http.MethodPost, target, body)
		plain, _ := snappy.Decode(nil, []byte(text))
		if code != want || strings.Contains(string(plain), "secret_b") || want == 200 && !strings.Contains(string(plain), "secret_a") {
			t.Errorf("%s: %d, want %d: %q", target, code, want, plain)
		}
	}
}

// TestBackupsOfAClusterNeedCredentialsOnLoopbackToo: any user of a gateway's host could read all tables, and write into them.
func TestBackupsOfAClusterNeedCredentialsOnLoopbackToo(t *testing.T) {
	w := openGuarded(t)
	ask := func(name string) (codes []int) {
		t.Helper()
		for _, p := range w.privatePages() {
			if p.pattern == "POST "+backups.Path || p.pattern == "POST "+backups.RestorePath {
				code, _ := w.with(t, p.handler, name, http.MethodPost, strings.TrimPrefix(p.pattern, "POST "), "")
				codes = append(codes, code)
			}
		}
		return codes
	}
	if codes := ask(""); !slices.Equal(codes, []int{415, 415}) {
		t.Errorf("of a process that is alone its host may: %v", codes)
	}
	w.behind.administer = administration.OrdersOfCluster(administration.Cluster{}, func() error { return nil })
	for name, want := range map[string]int{"": 401, "reader": 403, "admin-a": 403, "admin": 415} {
		if codes := ask(name); !slices.Equal(codes, []int{want, want}) {
			t.Errorf("%q at a gateway: %v, want %d", name, codes, want)
		}
	}
}

// TestAReloadThatFailedIsShown, and until when: the API said that all reloads go well, and none ever came.
func TestAReloadThatFailedIsShown(t *testing.T) {
	w := openGuarded(t)
	shown := func() (well bool, at time.Time) {
		t.Helper()
		code, text := w.as(t, "admin", http.MethodGet, "/api/v1/status/runtimeinfo", "")
		var answer struct {
			Data struct {
				ReloadConfigSuccess bool
				LastConfigTime      time.Time
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s %v", code, text, err)
		}
		return answer.Data.ReloadConfigSuccess, answer.Data.LastConfigTime
	}
	good, err := os.ReadFile(w.cfg.HTTP.TokensFile)
	if err != nil {
		t.Fatal(err)
	}
	well, start := shown()
	if !well || start.IsZero() {
		t.Errorf("at the start: %t at %v", well, start)
	}
	write := func(text []byte) error {
		if err := os.WriteFile(w.cfg.HTTP.TokensFile, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return w.reloader().reload()
	}
	if err := write([]byte("tokens: [{}]")); err == nil {
		t.Fatal("a bad file was taken")
	}
	if well, at := shown(); well || !at.Equal(start) {
		t.Errorf("after a reload that failed: %t at %v", well, at)
	}
	if err := write(good); err != nil {
		t.Fatal(err)
	}
	if well, at := shown(); !well || !at.After(start) {
		t.Errorf("after a good one: %t at %v", well, at)
	}
}

func TestDeletingNeedsAdminOfTheTable(t *testing.T) {
	w := openGuarded(t)
	const path = "/api/v1/admin/tsdb/delete_series?match[]=" + "%7B__name__%3D~%22.%2B%22%7D"
	for _, c := range []struct {
		name, prefix string
		want         int
	}{{"reader-a", "/t/tenant-a", 403}, {"writer-a", "/t/tenant-a", 403}, {"admin-a", "/t/tenant-b", 403}, {"admin-a", "", 403}, {"admin-a", "/t/tenant-a", 204}} {
		if code, text := w.as(t, c.name, http.MethodPost, c.prefix+path, ""); code != c.want {
			t.Errorf("%s at %s: %d %s, want %d", c.name, c.prefix, code, text, c.want)
		}
	}
	if _, text := w.as(t, "admin", http.MethodGet, "/t/tenant-b/api/v1/query?query=secret_b_v&time=1", ""); !strings.Contains(text, `"43"`) {
		t.Errorf("tenant-b lost its rows: %s", text)
	}
	code, _ := w.as(t, "admin", http.MethodPost, "/t/tenant-b"+path, "", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	if code != 403 {
		t.Errorf("a page of another origin deletes: %d", code)
	}
}

// TestRefusalsAreInTheSendersWords: Telegraf, Prometheus and OpenTelemetry decide by status and form whether to drop or
// resend a batch.
func TestRefusalsAreInTheSendersWords(t *testing.T) {
	w := openGuarded(t)
	for _, c := range []struct {
		target    string
		unknown   string
		forbidden string
		header    []string
	}{
		{"/write?db=tenant-a", `{"error":"authorization failed"}`, `{"error":"\"reader-a\" lacks the right \"write\" on table \"tenant-a\""}`, nil},
		{"/api/v2/write?bucket=tenant-a", `{"code":"unauthorized","message":"unauthorized access"}`, `"code":"forbidden"`, nil},
		{"/api/v3/write_lp?db=tenant-a", `"error":`, `"error":`, nil},
		{"/t/tenant-a/api/v1/write", "not known here", "lacks the right", nil},
		{"/t/tenant-a/v1/metrics", `"code":16`, `"code":7`, []string{"Content-Type", "application/json"}},
		{"/t/tenant-a/api/v1/query?query=up", `{"error":"the token or password is not known here","errorType":"unauthorized","status":"error"}`, "", nil},
		{"/query?q=SHOW+DATABASES", `{"error":"authorization failed"}`, "", nil},
	} {
		rq := httptest.NewRequest(http.MethodPost, c.target, nil)
		rq.Header.Set("Authorization", "Bearer wrong")
		for i := 0; i < len(c.header); i += 2 {
			rq.Header.Add(c.header[i], c.header[i+1])
		}
		rec := httptest.NewRecorder()
		w.front.ServeHTTP(rec, rq)
		if rec.Code != 401 || !strings.Contains(rec.Body.String(), c.unknown) || rec.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %v %s, want %s", c.target, rec.Code, rec.Header(), rec.Body, c.unknown)
		}
		if c.forbidden == "" {
			continue
		}
		if code, text := w.as(t, "reader-a", http.MethodPost, c.target, "", c.header...); code != 403 || !strings.Contains(text, c.forbidden) {
			t.Errorf("%s: %d %s, want %s", c.target, code, text, c.forbidden)
		}
	}
	// Influx v1 clients can only send parameters.
	target := "/write?db=tenant-a&precision=s&u=anybody&p=" + url.QueryEscape(w.tokens["writer-a"])
	if code, text := w.as(t, "", http.MethodPost, target, "m v=1 1"); code != 204 {
		t.Errorf("u and p: %d %s", code, text)
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+w.tokens["reader-a"]))
	if code, text := w.as(t, "", http.MethodGet, "/", ""); code != 200 || strings.Contains(text, "tenant-") {
		t.Errorf("the page, which has no data of its own: %d %s", code, text)
	}
	if code, text := w.as(t, "", http.MethodGet, "/api/v1/status/cluster", "", "Authorization", basic); code != 200 || strings.Contains(text, "tenant-b") || !strings.Contains(text, "tenant-a") {
		t.Errorf("what the page shows: %d %s", code, text)
	}
	if code, _ := w.as(t, "", http.MethodGet, "/t/tenant-a/api/v1/query?query=1&u=x&p="+w.tokens["reader-a"], ""); code != 401 {
		t.Errorf("a token in the URL of a query is taken: %d", code)
	}
}

// TestAdminPagesAnswerNoOtherPages: on loopback they need no credentials, and a browser of the host reaches them.
func TestAdminPagesAnswerNoOtherPages(t *testing.T) {
	w := openGuarded(t)
	h := w.adminPages()
	f := func(want int, method, host, path string, header ...string) {
		t.Helper()
		rq := httptest.NewRequest(method, path, nil)
		rq.Host = host
		for i := 0; i < len(header); i += 2 {
			rq.Header.Add(header[i], header[i+1])
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, rq)
		if rec.Code != want {
			t.Errorf("%s %s at %s %v: %d %s, want %d", method, path, host, header, rec.Code, rec.Body, want)
		}
	}
	for _, host := range []string{"127.0.0.1:8429", "localhost:8429", "LOCALHOST.:8429", "[::1]:8429", "127.0.0.1"} {
		f(200, "POST", host, "/-/reload")
		f(200, "GET", host, "/metrics")
		f(200, "GET", host, "/debug/pprof/cmdline")
	}
	for _, host := range []string{"evil.example:8429", "localhost.evil.example", "127.0.0.1.evil.example:8429", "", "127.0.0.1@evil.example"} {
		f(403, "POST", host, "/-/reload")
		f(403, "GET", host, "/metrics")
		f(403, "GET", host, "/debug/pprof/cmdline")
	}
	f(403, "POST", "localhost:8429", "/-/reload", "Origin", "https://evil.example")
	f(403, "POST", "localhost:8429", "/-/reload", "Origin", "null")
	f(403, "POST", "localhost:8429", "/-/reload", "Sec-Fetch-Site", "cross-site")
	f(403, "GET", "localhost:8429", "/debug/pprof/cmdline", "Origin", "http://localhost:3000")
	f(405, "GET", "localhost:8429", "/-/reload")
	for _, path := range []string{"/-/reload", "/debug/pprof/", "/debug/pprof/heap"} {
		if code, _ := w.as(t, "admin", http.MethodPost, path, ""); code != 404 && code != 405 {
			t.Errorf("%s is on the public port: %d", path, code)
		}
	}
}

// TestAMethodBrowsersAskWithOpensNoPage: OPTIONS comes without credentials, so the answer must contain nothing protected.
// Profiles answer every method alike.
func TestAMethodBrowsersAskWithOpensNoPage(t *testing.T) {
	w := openGuarded(t)
	public, private := w.routes(t)
	pages := http.NewServeMux()
	for _, p := range w.privatePages() {
		pages.Handle(p.pattern, w.guard.Handler(p.need, p.handler)) // as adminPages does off loopback
	}
	ask := func(h http.Handler, routes map[string]access.Need) {
		t.Helper()
		for route, need := range routes {
			if need == access.NeedNothing {
				continue
			}
			_, path, ok := strings.Cut(route, " ")
			if !ok {
				path = route
			}
			path = strings.NewReplacer(":name", "job", "{$}", "").Replace(path)
			if path == "/t/" {
				path += "tenant-a/api/v1/query"
			}
			switch code, text := w.with(t, h, "", http.MethodOptions, path, ""); {
			case code == http.StatusNoContent && text == "", code == http.StatusUnauthorized, code == http.StatusMethodNotAllowed, code == http.StatusNotFound:
			default:
				t.Errorf("OPTIONS %s: %d %.200s", path, code, text)
			}
		}
	}
	ask(w.front, public)
	ask(pages, private)
	if code, text := w.with(t, pages, "admin", http.MethodGet, "/debug/pprof/cmdline", ""); code != http.StatusOK {
		t.Errorf("an administrator's profile: %d %s", code, text)
	}
}
