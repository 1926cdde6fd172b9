package process

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/gateway/tablename"
)

// elsewhere says of a path that tools ask for and that this port does not serve where to go instead. A path that ends with a slash stands for
// all that begin with it.
var elsewhere = []struct{ path, instead string }{
	{"/api/v2/query", askPromQL},
	{"/api/v2/query/", askPromQL},
	{"/api/v3/query_sql", askPromQL},
	{"/api/v3/query_influxql", askPromQL},
	{"/v1/traces", onlyMetrics},
	{"/v1/logs", onlyMetrics},
	{"/otlp/v1/traces", onlyMetrics},
	{"/otlp/v1/logs", onlyMetrics},
	{"/loki/api/v1/push", onlyMetrics},
	{"/metrics/job/", noPushgateway},
	{"/metrics/job@base64/", noPushgateway},
	{"/api/v1/import", importHere},
	{"/api/v1/import/", importHere},
	{"/api/put", "OpenTSDB's protocol is not taken: " + writeHere},
	{"/-/reload", onAdminPort},
	{"/debug/pprof/", onAdminPort},
	{administration.TablesPath, onAdminPort},
	{administration.TablesPath + "/", onAdminPort},
	{administration.AuditPath, onAdminPort},
	{backups.Path, onAdminPort},
	{backups.RestorePath, onAdminPort},
}

const (
	writeHere     = "send remote write to /api/v1/write, line protocol to /write, or OTLP to /v1/metrics"
	noPushgateway = "this is no Pushgateway: let Prometheus or an agent scrape the job, or " + writeHere
	askPromQL     = "Flux, SQL and InfluxQL are not evaluated here: ask in PromQL, at /api/v1/query or /api/v1/query_range; a field usage of the measurement cpu is the metric cpu_usage"
	onlyMetrics   = "only metrics are kept here: traces and logs have no place; OTLP metrics go to /v1/metrics"
	importHere    = "files are imported by the command `spillway import FILE --url URL`; programs " + writeHere
	onAdminPort   = "this is on the administration's port, admin.listen (127.0.0.1:8429 unless it is set)"
)

// instead returns what elsewhere says of a path; "": nothing.
func instead(path string) string {
	_, path, _ = tablename.Cut(path)
	for _, e := range elsewhere {
		if path == e.path || strings.HasSuffix(e.path, "/") && strings.HasPrefix(path, e.path) {
			return e.instead
		}
	}
	return ""
}

// pointElsewhere answers 404 with what elsewhere says, in the words of Influx' APIs where it is one of their paths; pages has the others.
func pointElsewhere(pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := instead(r.URL.Path)
		if text == "" {
			pages.ServeHTTP(w, r)
			return
		}
		if text != askPromQL {
			http.Error(w, text, http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]string{"code": "not found", "message": text, "error": text})
	})
}

// What the admin ports answer to paths that they do not have.
const (
	onPublicPort = "this port is for administrators: writes, queries and status pages are on the port of http.listen (127.0.0.1:8428 unless it is set)"
	onGateways   = "this port of a storage server has health, metrics and profiles: writes, queries and status pages are on the port of a gateway's http.listen (8428 unless it is set), and orders go to its peer.listen, with --servers"
)

// pointTo answers 404 with text where pages have no such path for any method.
func pointTo(text string, pages *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := pages.Handler(r); pattern == "" && !served(pages, r) {
			http.Error(w, text, http.StatusNotFound)
			return
		}
		pages.ServeHTTP(w, r)
	})
}

// served reports whether pages have the path of a request, be it for another method.
func served(pages *http.ServeMux, r *http.Request) bool {
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		asked := *r
		asked.Method = method
		if _, pattern := pages.Handler(&asked); pattern != "" {
			return true
		}
	}
	return false
}
