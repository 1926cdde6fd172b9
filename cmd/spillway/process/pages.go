package process

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/docs"
	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// page is a route outside intake, with the right that it needs.
type page struct {
	pattern string
	need    access.Need
	handler http.Handler
}

// publicPages are the pages of the port for writes and queries. The API checks each of its routes for its own need;
// status pages show only tables that their reader may read.
func (d *door) publicPages(promAPI http.Handler) []page {
	var files []page
	shown := ui.Page()
	for _, pattern := range ui.Files() { // without data: the page fetches its data with credentials
		files = append(files, page{pattern, access.NeedNothing, shown})
	}
	return append(files, []page{
		{"/api/v1/", access.NeedIdentity, promAPI},
		{"GET " + openAPIPath, access.NeedNothing, http.HandlerFunc(openAPI)}, // without data: it is part of the program
		{"/federate", access.NeedIdentity, promAPI},
		{"/t/", access.NeedIdentity, promAPI},
		{"GET /t/{table}/{$}", access.NeedNothing, http.HandlerFunc(tablePage)},
		{"GET /t/{table}", access.NeedNothing, http.HandlerFunc(tablePage)},
		{"GET " + kafka.StatusPath, access.NeedReadAll, http.HandlerFunc(d.kafkaStatus)},
		{"GET " + replicasPath, access.NeedReadAll, http.HandlerFunc(d.replicasPage)},
		{"GET " + administration.TableUsePath, access.NeedIdentity, http.HandlerFunc(d.tableUse)},
		{"GET " + queriesPath, access.NeedIdentity, http.HandlerFunc(d.shownQueries)},
		{"GET " + refusalsPath, access.NeedIdentity, http.HandlerFunc(d.shownRefusals)},
		{"GET " + sendersPath, access.NeedIdentity, http.HandlerFunc(d.shownSenders)},
		{"GET " + ratesPath, access.NeedIdentity, http.HandlerFunc(d.shownRates)},
		{"GET " + ui.Path, access.NeedIdentity, ui.JSON(d.status)},
		{"GET /metrics", access.NeedMetrics, d.metricsPage()},
		{"GET /-/healthy", access.NeedNothing, http.HandlerFunc(healthy)},
		{"GET /-/ready", access.NeedNothing, http.HandlerFunc(d.readiness)},
	}...)
}

// openAPIPath is where a process serves the document of its HTTP API.
const openAPIPath = "/api/v1/openapi.yaml"

func openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(docs.OpenAPI())
}

// tablePage leads from the address of a table's API, which clients try first and people open, to the page with the table chosen. It says nothing
// of whether there is such a table. The way is relative: a proxy may add a prefix.
func tablePage(w http.ResponseWriter, r *http.Request) {
	table := r.PathValue("table")
	if tablename.Check(table) != nil {
		http.NotFound(w, r)
		return
	}
	up := "../"
	if strings.HasSuffix(r.URL.Path, "/") {
		up += "../"
	}
	w.Header().Set("Location", up+"#/explore?table="+table)
	w.WriteHeader(http.StatusFound)
}

// privatePages are the pages of admin.listen. On loopback any user of the host may use them.
func (d *door) privatePages() []page {
	out := profilePages()
	for path, h := range map[string]http.HandlerFunc{backups.Path: d.backupPage, backups.RestorePath: d.restorePage} {
		out = append(out, page{"POST " + path, access.NeedAdminAll, d.behind.administer.Guarded(d.guard, h)})
	}
	out = append(out, d.orderPages()...)
	return append(append(out, reloadPages(d.reloader())...),
		page{"GET /metrics", access.NeedMetrics, d.metricsPage()},
		page{"GET /-/healthy", access.NeedNothing, http.HandlerFunc(healthy)},
		page{"GET /-/ready", access.NeedNothing, http.HandlerFunc(d.readiness)},
	)
}

// reloadPages are the reload by the methods that Prometheus has it by.
func reloadPages(r *reloader) []page {
	h := http.HandlerFunc(r.page)
	return []page{{"POST /-/reload", access.NeedAdminAll, h}, {"PUT /-/reload", access.NeedAdminAll, h}}
}

// profilePages are on no public port.
func profilePages() []page {
	var out []page
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		out = append(out, page{path, access.NeedAdminAll, h})
	}
	return out
}

// pages serves everything on the public port outside intake.
func (d *door) pages(promAPI http.Handler) http.Handler {
	mux := http.NewServeMux()
	for _, p := range d.publicPages(promAPI) {
		mux.Handle(p.pattern, d.guard.Handler(p.need, p.handler))
	}
	return pointElsewhere(mux)
}

// adminPages serves admin.listen.
func (d *door) adminPages() http.Handler {
	loopback := isLoopback(d.admin.Addr())
	mux := http.NewServeMux()
	for _, p := range d.privatePages() {
		h := p.handler
		if !loopback {
			h = d.guard.Handler(p.need, h)
		}
		mux.Handle(p.pattern, h)
	}
	return localOnly(loopback, d.cfg.Admin.Hosts, pointTo(onPublicPort, mux))
}

// localOnly checks the host name in requests for admin pages. Where they are not on loopback, scrapers and probes may use
// any name for the pages they need.
func localOnly(loopback bool, hosts []string, pages http.Handler) http.Handler {
	checked := access.LocalOnly(hosts, pages)
	if loopback {
		return checked
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" || strings.HasPrefix(r.URL.Path, "/-/") && r.Method == http.MethodGet {
			pages.ServeHTTP(w, r)
			return
		}
		checked.ServeHTTP(w, r)
	})
}

// isLoopback reports whether only the host itself reaches an address.
func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

func (d *door) metricsPage() http.Handler {
	return promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{Registry: d.registry})
}

func healthy(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "Spillway is healthy.\n")
}

// readiness answers 200 while writes and queries are accepted, 503 with the reason otherwise.
func (d *door) readiness(w http.ResponseWriter, _ *http.Request) {
	if d.behind.health != nil {
		if err := d.behind.health(); err != nil {
			http.Error(w, "The store is fenced: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	if d.behind.stalled != nil {
		if err := d.behind.stalled(); err != nil {
			http.Error(w, "Writes wait: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	if !d.ready.Load() {
		http.Error(w, "Spillway is stopping.", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "Spillway is ready.\n")
	if d.behind.unreached != nil {
		if n := d.behind.unreached(); n > 0 { // it is ready all the same: other gateways may reach no more servers. Names need a credential
			fmt.Fprintf(w, "Storage servers that send heartbeats and are not reached from here: %d. The page and `spillway doctor --url` name them.\n", n)
		}
	}
}
