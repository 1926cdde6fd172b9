package process

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
)

// apiDocument is the OpenAPI document of the HTTP API.
const apiDocument = "../../../docs/openapi.yaml"

// Extensions of the document.
const (
	scopeKey    = "x-spillway-scope"    // as the list of routes names it
	listenerKey = "x-spillway-listener" // http, admin or both
	storageKey  = "x-spillway-storage"  // the scope on the port of a storage server, where it has the route
	routeKey    = "x-spillway-route"    // the route, where it is not the method and the path
	prefixesKey = "x-spillway-prefixes" // routes of the list that are no operations
)

func loadAPIDocument(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile(apiDocument)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// operations calls f for each operation of the document.
func operations(doc *openapi3.T, f func(method, path string, item *openapi3.PathItem, op *openapi3.Operation)) {
	for _, path := range doc.Paths.InMatchingOrder() {
		item := doc.Paths.Value(path)
		for method, op := range item.Operations() {
			f(method, path, item, op)
		}
	}
}

// listed returns the lines of the list of routes for one route of the document.
func listed(t *testing.T, extensions map[string]any, route string) []string {
	t.Helper()
	if r, ok := extensions[routeKey].(string); ok {
		route = r
	}
	listeners, _ := extensions[listenerKey].([]any)
	if len(listeners) == 0 {
		t.Errorf("%s: %s is missing", route, listenerKey)
	}
	var out []string
	for _, l := range listeners {
		out = append(out, fmt.Sprintf("%s.listen %s %s", l, extensions[scopeKey], route))
	}
	if need, ok := extensions[storageKey]; ok {
		out = append(out, fmt.Sprintf("%s %s %s", storagePort, need, route))
	}
	return out
}

// TestTheDocumentOfTheAPIHasEveryRoute of the list, and no others, each with its scope.
func TestTheDocumentOfTheAPIHasEveryRoute(t *testing.T) {
	doc := loadAPIDocument(t)
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var has []string
	operations(doc, func(method, path string, _ *openapi3.PathItem, op *openapi3.Operation) {
		has = append(has, listed(t, op.Extensions, method+" "+path)...)
		if op.Extensions[scopeKey] == "open" {
			return
		}
		for _, status := range []string{"401", "403"} {
			if op.Responses.Value(status) == nil {
				t.Errorf("%s %s needs credentials, and the document has no answer %s", method, path, status)
			}
		}
	})
	prefixes, _ := doc.Extensions[prefixesKey].([]any)
	for _, p := range prefixes {
		m := p.(map[string]any)
		has = append(has, listed(t, m, m["route"].(string))...)
	}
	text, err := os.ReadFile("testdata/routes.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	listener := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if l, ok := strings.CutPrefix(line, "# "); ok {
			listener = l
			continue
		}
		need, route := strings.TrimSpace(line[:11]), line[11:]
		want = append(want, listener+" "+need+" "+route)
	}
	for _, r := range want {
		if !slices.Contains(has, r) {
			t.Errorf("docs/openapi.yaml lacks %s", r)
		}
	}
	for _, r := range has {
		if !slices.Contains(want, r) {
			t.Errorf("docs/openapi.yaml has %s, and there is no such route", r)
		}
	}
}

// untried are operations that no request is sent to: they make a profile of this process, which may be making one.
var untried = []string{"GET /debug/pprof/profile", "GET /debug/pprof/trace"}

// apiAsk is a request, and the status of its answer.
type apiAsk struct {
	admin  bool // on admin.listen
	token  string
	method string
	target string
	ctype  string
	body   string
	want   int
}

const (
	jsonType  = "application/json"
	formType  = "application/x-www-form-urlencoded"
	protoType = "application/x-protobuf"
)

// apiAsks are requests for every operation of the document, in this order.
func apiAsks(backup string) []apiAsk {
	var asks []apiAsk
	get := func(want int, token string, targets ...string) {
		for _, target := range targets {
			asks = append(asks, apiAsk{token: token, method: "GET", target: target, want: want})
		}
	}
	send := func(want int, token, method, target, ctype, body string) {
		asks = append(asks, apiAsk{token: token, method: method, target: target, ctype: ctype, body: body, want: want})
	}
	administer := func(want int, method, target, ctype, body string) {
		asks = append(asks, apiAsk{admin: true, method: method, target: target, ctype: ctype, body: body, want: want})
	}
	const db = "db=tenant-a"
	send(204, "writer-a", "POST", "/write?precision=s&"+db, "text/plain", "cpu,host=a usage=1.5 1795388996")
	get(200, "reader-a", "/api/v1/query?query=cpu_usage&time=1795388997&stats=all&"+db, "/api/v1/query_range?query=cpu_usage&start=1795388990&end=1795388999&step=1&"+db,
		"/api/v1/query?query=1&"+db, "/api/v1/query_exemplars?query=cpu_usage&start=0&end=1&"+db, "/api/v1/format_query?query=sum(a)by(b)&"+db, "/api/v1/parse_query?query=1&"+db,
		"/api/v1/labels?"+db, "/api/v1/label/host/values?"+db, "/api/v1/series?match[]=cpu_usage&"+db, "/api/v1/metadata?"+db, "/api/v1/export?match[]=cpu_usage&"+db,
		"/federate?match[]=cpu_usage&"+db, "/api/v1/rules?type=alert&"+db, "/api/v1/alerts?"+db, "/api/v1/alertmanagers?"+db, "/api/v1/targets?"+db, "/api/v1/targets/metadata?"+db,
		"/api/v1/scrape_pools?"+db, "/api/v1/notifications?"+db, "/api/v1/status/walreplay?"+db, "/api/v1/features?"+db, "/api/v1/status/buildinfo?"+db, "/api/v1/status/tsdb?limit=3&"+db)
	for _, p := range []string{"query", "query_range", "query_exemplars", "format_query", "parse_query", "labels", "series", "export"} {
		form := url.Values{"query": {"cpu_usage"}, "match[]": {"cpu_usage"}, "start": {"1795388990"}, "end": {"1795388999"}, "step": {"1"}}
		send(200, "reader-a", "POST", "/api/v1/"+p+"?"+db, formType, form.Encode())
	}
	get(200, "reader", "/api/v1/status/runtimeinfo", "/api/v1/status/flags", "/api/v1/status/ha", "/api/v1/status/kafka", "/api/v1/status/cluster", "/api/v1/status/cluster?partitions=none",
		"/api/v1/status/tables", "/api/v1/status/queries", "/api/v1/status/rates", "/metrics", "/api/v2/buckets", "/api/v2/orgs", "/query?q=SHOW+DATABASES")
	get(200, "admin", "/api/v1/status/config")
	get(200, "", "/-/healthy", "/-/ready", "/", "/icon.svg", "/NOTICE.txt", "/api/v1/openapi.yaml", "/ping?verbose=true", "/health", "/ready")
	get(404, "", "/assets/none.js", "/t/$", "/t/$/")
	get(302, "", "/t/tenant-a", "/t/tenant-a/")
	get(204, "", "/ping", "/api/v2/ping")
	for path, want := range map[string]int{"/ping": 204, "/api/v2/ping": 204, "/health": 200, "/ready": 200} {
		send(want, "", "HEAD", path, "", "")
	}
	raw, _ := (&prompb.WriteRequest{}).Marshal() // an empty one has no errors
	empty := string(snappy.Encode(nil, raw))
	for _, p := range []string{"/api/v1/write", "/api/v1/push", "/api/v1/prom/write"} {
		send(204, "writer-a", "POST", p+"?"+db, protoType, empty)
		send(400, "writer-a", "POST", p+"?"+db, protoType, "x")
		send(415, "writer-a", "POST", p+"?"+db, "image/png", "x")
	}
	for _, p := range []string{"/v1/metrics", "/otlp/v1/metrics", "/api/v1/otlp/v1/metrics", "/opentelemetry/v1/metrics"} {
		send(200, "writer-a", "POST", p+"?"+db, jsonType, `{"resourceMetrics":[]}`)
		send(400, "writer-a", "POST", p+"?"+db, jsonType, `{`)
		send(401, "", "POST", p+"?"+db, jsonType, `{}`)
	}
	send(200, "reader-a", "POST", "/api/v1/read?"+db, protoType, empty)
	send(400, "reader-a", "POST", "/api/v1/read?"+db, protoType, "x")
	for path, name := range map[string]string{"/write": "db", "/api/v2/write": "bucket", "/api/v3/write_lp": "db"} {
		target := path + "?" + name + "=tenant-a"
		send(204, "writer-a", "POST", target, "text/plain", "cpu,host=a usage=1.5")
		send(400, "writer-a", "POST", target, "text/plain", "garbage")
		send(403, "reader-a", "POST", target, "text/plain", "cpu,host=a usage=1.5")
		send(401, "", "POST", target, "text/plain", "cpu,host=a usage=1.5")
	}
	get(200, "reader", "/api/v1/status/refusals", "/api/v1/status/senders", "/api/v1/status/senders?table=tenant-a")
	send(200, "admin", "POST", "/query", formType, "q=CREATE+DATABASE+x")
	get(400, "reader", "/query")
	send(201, "admin", "POST", "/api/v2/buckets", jsonType, `{"name":"web","retentionRules":[{"type":"expire","everySeconds":86400}]}`)
	send(400, "admin", "POST", "/api/v2/buckets", jsonType, `{`)
	send(403, "reader-a", "POST", "/api/v2/buckets", jsonType, `{"name":"web"}`)
	get(404, "reader", "/api/v2/buckets?name=none")
	send(200, "admin", "PATCH", processtest.BucketAt("web"), jsonType, `{"retentionRules":[{"type":"expire","everySeconds":172800}]}`)
	send(400, "admin", "PATCH", processtest.BucketAt("web"), jsonType, `{"name":"other"}`)
	get(200, "admin", processtest.BucketAt("web"))
	get(404, "admin", processtest.BucketAt("none"))
	send(403, "reader", "DELETE", processtest.BucketAt("web"), "", "")
	send(204, "admin", "DELETE", processtest.BucketAt("web"), "", "")
	send(204, "admin-a", "POST", "/api/v2/delete?bucket=tenant-a", jsonType, `{"start":"2020-01-01T00:00:00Z","stop":"2020-01-02T00:00:00Z"}`)
	send(400, "admin-a", "POST", "/api/v2/delete?bucket=tenant-a", jsonType, `{`)
	for _, m := range []string{"POST", "PUT"} {
		send(204, "admin-a", m, "/api/v1/admin/tsdb/delete_series?match[]=none&"+db, "", "")
		send(400, "admin-a", m, "/api/v1/admin/tsdb/delete_series?"+db, "", "")
		send(204, "admin-a", m, "/api/v1/admin/tsdb/clean_tombstones?"+db, "", "")
	}
	get(400, "reader-a", "/api/v1/query?query=((&"+db, "/federate?match[]=((&"+db)
	get(400, "reader", "/api/v1/status/tables?limit=x")
	get(401, "", "/api/v1/query?query=1&"+db, "/metrics", "/federate?"+db, "/api/v1/status/cluster", "/api/v2/buckets", "/query?q=SHOW+DATABASES")
	get(403, "reader-a", "/api/v1/query?query=1&db=tenant-b", "/api/v1/status/config", "/metrics")
	for _, p := range []string{"/metrics", "/-/healthy", "/-/ready", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/api/v1/admin/tables", "/api/v1/admin/tables/tenant-a"} {
		administer(200, "GET", p, "", "")
	}
	administer(404, "GET", "/api/v1/admin/tables/none", "", "")
	administer(200, "PUT", "/api/v1/admin/tables/made", jsonType, `{"retention":"30d"}`)
	administer(409, "PUT", "/api/v1/admin/tables/made", jsonType, `{"retention":"30d"}`)
	administer(400, "PUT", "/api/v1/admin/tables/other", jsonType, `{"retention":"3q"}`)
	administer(200, "PATCH", "/api/v1/admin/tables/made?dry_run=true", jsonType, `{"retention":"31d"}`)
	administer(400, "PATCH", "/api/v1/admin/tables/made", jsonType, `{"retention":"3q"}`)
	administer(200, "GET", "/api/v1/admin/tables/tenant-a/partitions/p1", "", "")
	administer(200, "GET", "/api/v1/admin/tables/tenant-a/partitions/1?output=json", "", "")
	administer(400, "GET", "/api/v1/admin/tables/tenant-a/partitions/first", "", "")
	administer(404, "GET", "/api/v1/admin/tables/tenant-a/partitions/p99", "", "")
	administer(400, "POST", "/api/v1/admin/tables/tenant-a/partitions/p1/offline", jsonType, `{"reason":"test"}`)
	administer(400, "POST", "/api/v1/admin/tables/tenant-a/partitions/merge", jsonType, `{"partitions":["p1","p2"]}`)
	administer(200, "GET", "/api/v1/admin/tables/tenant-a/advice?rows_per_second=1000&row_bytes=2&server_rows=100000&split_bytes=1GiB&whole_ranges=false", "", "")
	administer(400, "GET", "/api/v1/admin/tables/tenant-a/advice?rows_per_second=many", "", "")
	administer(404, "GET", "/api/v1/admin/tables/none/advice?rows_per_second=1000", "", "")
	administer(200, "GET", "/api/v1/admin/audit?limit=3", "", "")
	administer(400, "GET", "/api/v1/admin/audit?limit=few", "", "")
	administer(400, "PUT", "/api/v1/admin/tables/copies", jsonType, `{"replicas":3}`)
	administer(400, "DELETE", "/api/v1/admin/tables/made", "", "")
	administer(200, "DELETE", "/api/v1/admin/tables/made?confirm=made&reason=test", "", "")
	administer(200, "POST", "/-/reload", "", "")
	administer(200, "PUT", "/-/reload", "", "")
	administer(200, "POST", "/api/v1/admin/backup", jsonType, fmt.Sprintf(`{"to":%q}`, backup))
	administer(400, "POST", "/api/v1/admin/backup", jsonType, `{"to":"relative"}`)
	administer(415, "POST", "/api/v1/admin/backup", "text/plain", `{}`)
	administer(200, "POST", "/api/v1/admin/restore", jsonType, fmt.Sprintf(`{"from":%q}`, backup)) // 200, and the last line of the answer refuses: it is a backup of a store, not of a cluster
	administer(400, "POST", "/api/v1/admin/restore", jsonType, `{"from":"relative"}`)
	administer(415, "POST", "/api/v1/admin/restore", "text/plain", `{}`)
	return asks
}

// TestAnswersAreAsTheDocumentOfTheAPISays sends requests for every operation, and compares requests and answers with the document:
// parameters, statuses, content types, and JSON, in which no property may be that the document does not have.
func TestAnswersAreAsTheDocumentOfTheAPISays(t *testing.T) {
	w := openGuarded(t)
	doc := loadAPIDocument(t)
	operations(doc, func(_, _ string, _ *openapi3.PathItem, op *openapi3.Operation) {
		for _, r := range op.Responses.Map() {
			for _, c := range r.Value.Content {
				closeObjects(c.Schema, map[*openapi3.Schema]bool{})
			}
		}
	})
	asked := map[string]bool{}
	admin := w.adminPages()
	for _, a := range apiAsks(t.TempDir()) {
		path, route := routeOf(t, doc, &a)
		asked[a.method+" "+path] = true
		rq := httptest.NewRequest(a.method, a.target, strings.NewReader(a.body))
		rq.Host = "localhost"
		if a.ctype != "" {
			rq.Header.Set("Content-Type", a.ctype)
		}
		if a.ctype == protoType {
			rq.Header.Set("Content-Encoding", "snappy")
		}
		if a.token != "" {
			rq.Header.Set("Authorization", "Bearer "+w.tokens[a.token])
		}
		rec := httptest.NewRecorder()
		if a.admin {
			admin.ServeHTTP(rec, rq)
		} else {
			w.front.ServeHTTP(rec, rq)
		}
		if rec.Code != a.want {
			t.Errorf("%s %s as %q: %d %.300s, want %d", a.method, a.target, a.token, rec.Code, rec.Body, a.want)
			continue
		}
		if err := checkAgainst(t, route, &a, rq, rec); err != nil {
			t.Errorf("%s %s: %d %v\n%.600s", a.method, a.target, rec.Code, err, rec.Body)
		}
	}
	operations(doc, func(method, path string, _ *openapi3.PathItem, _ *openapi3.Operation) {
		if r := method + " " + path; asked[r] == slices.Contains(untried, r) {
			t.Errorf("%s: tried %v", r, asked[r])
		}
	})
}

// routeOf finds the operation of a request.
func routeOf(t *testing.T, doc *openapi3.T, a *apiAsk) (path string, route *routers.Route) {
	t.Helper()
	target, _, _ := strings.Cut(a.target, "?")
	for _, path := range doc.Paths.InMatchingOrder() {
		item := doc.Paths.Value(path)
		op := item.GetOperation(a.method)
		if op == nil || !matchesPath(path, target) {
			continue
		}
		if listeners := op.Extensions[listenerKey].([]any); slices.Contains(listeners, any("admin")) != a.admin && len(listeners) == 1 {
			continue
		}
		return path, &routers.Route{Spec: doc, Path: path, PathItem: item, Method: a.method, Operation: op}
	}
	t.Fatalf("the document has no operation for %s %s", a.method, target)
	return "", nil
}

// matchesPath reports whether a path is of the pattern, where {name} is one segment.
func matchesPath(pattern, path string) bool {
	ps, ss := strings.Split(pattern, "/"), strings.Split(path, "/")
	return slices.EqualFunc(ps, ss, func(p, s string) bool { return p == s || strings.HasPrefix(p, "{") && s != "" })
}

// checkAgainst compares a request and its answer with the operation.
func checkAgainst(t *testing.T, route *routers.Route, a *apiAsk, rq *http.Request, rec *httptest.ResponseRecorder) error {
	t.Helper()
	for name := range rq.URL.Query() {
		declared := route.Operation.Parameters.GetByInAndName("query", name) != nil
		if !declared && (name != "db" || !strings.HasPrefix(a.target, "/api/v1/write") && !strings.HasPrefix(a.target, "/api/v1/p") && !strings.Contains(a.target, "/v1/metrics")) {
			return fmt.Errorf("the parameter %s is not in the document", name)
		}
	}
	in := &openapi3filter.RequestValidationInput{
		Request: rq, PathParams: pathParams(route.Path, rq.URL.Path), QueryParams: rq.URL.Query(), Route: route,
		Options: &openapi3filter.Options{ExcludeRequestBody: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
	if a.want < 300 {
		if err := openapi3filter.ValidateRequest(t.Context(), in); err != nil {
			return fmt.Errorf("the request: %w", err)
		}
	}
	response := route.Operation.Responses.Status(rec.Code)
	if response == nil {
		return fmt.Errorf("the document has no such status")
	}
	if a.method == http.MethodHead || rec.Body.Len() == 0 {
		return nil
	}
	ctype, _, err := mime.ParseMediaType(rec.Header().Get("Content-Type"))
	if err != nil {
		return err
	}
	if response.Value.Content.Get(ctype) == nil {
		return fmt.Errorf("the document has no content type %s there", ctype)
	}
	return openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: rec.Code, Header: rec.Header(), Body: io.NopCloser(strings.NewReader(rec.Body.String())),
		Options: &openapi3filter.Options{ExcludeResponseBody: ctype != jsonType, IncludeResponseStatus: true, MultiError: true},
	})
}

func pathParams(pattern, path string) map[string]string {
	out := map[string]string{}
	ss := strings.Split(path, "/")
	for i, p := range strings.Split(pattern, "/") {
		if strings.HasPrefix(p, "{") {
			out[strings.Trim(p, "{}")] = ss[i]
		}
	}
	return out
}

// closeObjects refuses properties that a schema does not list, so that the document lacks none.
func closeObjects(ref *openapi3.SchemaRef, seen map[*openapi3.Schema]bool) {
	if ref == nil || ref.Value == nil || seen[ref.Value] {
		return
	}
	s := ref.Value
	seen[s] = true
	if len(s.Properties) > 0 {
		closed := false
		s.AdditionalProperties.Has = &closed
	}
	closeObjects(s.Items, seen)
	closeObjects(s.AdditionalProperties.Schema, seen)
	for _, p := range s.Properties {
		closeObjects(p, seen)
	}
	for _, p := range s.OneOf {
		closeObjects(p, seen)
	}
}

// TestAProcessServesTheDocumentOfItsAPI: byte for byte, also to a reader without credentials.
func TestAProcessServesTheDocumentOfItsAPI(t *testing.T) {
	p := open(t)
	want, err := os.ReadFile(apiDocument)
	if err != nil {
		t.Fatal(err)
	}
	if code, text := p.do(t, http.MethodGet, openAPIPath, ""); code != http.StatusOK || text != string(want) {
		t.Errorf("%d, %d bytes of %d", code, len(text), len(want))
	}
}

// TestTheFlagsOfAProcessAreItsSettings: /api/v1/status/flags was empty, so that programs for Prometheus showed none.
func TestTheFlagsOfAProcessAreItsSettings(t *testing.T) {
	cfg := config{Config: settings.Default()}
	cfg.Kafka = slices.Clone(unreadTopics)
	cfg.Kafka[0].SASL.Password = "not-for-pages"
	cfg.Coord.URL = "etcd://root:not-for-pages@host:2379"
	p := openWith(t, t.TempDir(), cfg)
	code, text := p.do(t, http.MethodGet, "/api/v1/status/flags", "")
	var answer struct{ Data map[string]string }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s %v", code, text, err)
	}
	for flag, want := range map[string]string{"http.listen": "127.0.0.1:0", "retention": "0s", "create-on-write": "true", "storage.flush-age": "1h", "self.scrape-interval": "15s", "config.file": ""} {
		if got, ok := answer.Data[flag]; !ok || got != want {
			t.Errorf("%s is %q, want %q", flag, got, want)
		}
	}
	for _, other := range []string{"coord", "id", "peer.listen"} {
		if v, ok := answer.Data[other]; ok {
			t.Errorf("%s of other processes is there: %q", other, v)
		}
	}
	if strings.Contains(text, "not-for-pages") {
		t.Errorf("a password is shown: %s", text)
	}
	p.cfg.Coord.URL = "etcd://root:not-for-pages@host:2379"
	p.role = settings.Gateway // has the coordination store
	if got := p.flagValues()["coord"]; got != "etcd://root:xxxxx@host:2379" {
		t.Errorf("the coordination store's URL is %q", got)
	}
}
