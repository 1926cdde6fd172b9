package api

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/tablename"
)

// call is one request on its way through a handler.
type call struct {
	*http.Request
	ctx      context.Context // the request's, which collects warnings
	warnings *query.Warnings
	table    *query.Table
	param    string // the part of the path that varies
	// enveloped: the answer has warnings.
	enveloped bool
}

// route lists the methods of a path with their handlers.
type route struct {
	name    string // of the handler, in metrics
	methods []string
	need    access.Need
	handle  func(*call) (answer, error)
	raw     func(http.ResponseWriter, *call) // instead of handle, for answers outside the envelope
}

func (rt route) allows(method string) bool {
	for _, m := range rt.methods {
		if m == method {
			return true
		}
	}
	return false
}

// prefix begins every path of the API; labelPrefix and labelSuffix surround the one path that contains a name.
const (
	prefix      = "/api/v1/"
	labelPrefix = "label/"
	labelSuffix = "/values"
	labelValues = "label/:name/values"
)

// table lists the paths behind the prefix. Their needs concern the request's table, except where the process is shown.
func (a *API) table() map[string]route {
	routes := map[string]route{}
	needs := func(need access.Need, methods, path string, handle func(*call) (answer, error)) {
		routes[path] = route{name: path, methods: strings.Fields(methods), need: need, handle: handle}
	}
	add := func(methods, path string, handle func(*call) (answer, error)) {
		needs(access.NeedRead, methods, path, handle)
	}
	add("GET POST", "query", a.limited(a.instant))
	add("GET POST", "query_range", a.limited(a.ranged))
	add("GET POST", "query_exemplars", a.limited(a.placed(a.exemplars)))
	add("GET POST", "format_query", a.formatQuery)
	add("GET POST", "parse_query", a.parseQuery)
	add("GET POST", "labels", a.limited(a.placed(a.labelNames)))
	add("GET", labelValues, a.limited(a.placed(a.labelValues)))
	add("GET POST", "series", a.limited(a.placed(a.series)))
	add("GET", "metadata", a.placed(a.metadata))
	add("GET", "rules", a.rules)
	add("GET", "alerts", constant(`{"alerts":[]}`))
	add("GET", "alertmanagers", constant(`{"activeAlertmanagers":[],"droppedAlertmanagers":[]}`))
	add("GET", "targets", constant(`{"activeTargets":[],"droppedTargets":[],"droppedTargetCounts":{}}`))
	add("GET", "targets/metadata", constant(`[]`))
	add("GET", "scrape_pools", constant(`{"scrapePools":[]}`))
	add("GET", "notifications", constant(`[]`))
	add("GET", "status/walreplay", constant(`{"min":0,"max":0,"current":0}`))
	add("GET", "status/buildinfo", a.buildInfo)
	needs(access.NeedReadAll, "GET", "status/runtimeinfo", a.runtimeInfo)
	needs(access.NeedAdminAll, "GET", "status/config", a.configYAML)
	needs(access.NeedReadAll, "GET", "status/flags", a.flagValues)
	add("GET", "status/tsdb", a.placed(a.tsdbStatus))
	add("GET", "features", a.features)
	needs(access.NeedAdmin, "POST PUT", "admin/tsdb/delete_series", a.deleteSeries)
	needs(access.NeedAdmin, "POST PUT", "admin/tsdb/clean_tombstones", a.cleanTombstones)
	routes["export"] = route{name: "export", methods: []string{http.MethodGet, http.MethodPost}, need: access.NeedRead, raw: a.limitedRaw(a.export)}
	routes["read"] = route{name: "read", methods: []string{http.MethodPost}, need: access.NeedRead, raw: a.limitedRaw(a.read)}
	routes[federatePath] = route{name: "federate", methods: []string{http.MethodGet}, need: access.NeedRead, raw: a.limitedRaw(a.federate)}
	return routes
}

// limited lets a handler answer within its table's limits on queries.
func (a *API) limited(handle func(*call) (answer, error)) func(*call) (answer, error) {
	return func(c *call) (answer, error) {
		ctx, leave, err := a.limits.EnterQuery(c.ctx, c.table.Name())
		if err != nil {
			return answer{}, err
		}
		defer leave()
		c.ctx = ctx
		return handle(c)
	}
}

// limitedRaw is limited for answers outside the envelope, which are read from storage while they are written.
func (a *API) limitedRaw(answer func(http.ResponseWriter, *call)) func(http.ResponseWriter, *call) {
	return func(w http.ResponseWriter, c *call) {
		ctx, leave, err := a.limits.EnterQuery(c.ctx, c.table.Name())
		if err != nil {
			a.failPlain(w, err)
			return
		}
		defer leave()
		c.ctx = ctx
		answer(w, c)
	}
}

// Routes lists the paths with their methods and the rights that they need, for the test of all routes.
func (a *API) Routes() map[string]access.Need {
	out := map[string]access.Need{}
	for path, rt := range a.routes {
		if path != federatePath {
			path = prefix + path
		}
		for _, m := range rt.methods {
			out[m+" "+path] = rt.need
		}
	}
	return out
}

// find cuts the name out of a path that contains one.
func (a *API) find(path string) (rt route, param string, ok bool) {
	if path == federatePath {
		return a.routes[path], "", true
	}
	path, ok = strings.CutPrefix(path, prefix)
	if !ok || path == federatePath {
		return route{}, "", false
	}
	if rt, ok = a.routes[path]; ok && path != labelValues {
		return rt, "", true
	}
	if name, ok := strings.CutPrefix(path, labelPrefix); ok {
		if name, ok = strings.CutSuffix(name, labelSuffix); ok && !strings.Contains(name, "/") {
			return a.routes[labelValues], name, true
		}
	}
	return route{}, "", false
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.allowOrigin(w, r)
	table, path, err := tablename.Of(r.URL.EscapedPath(), r.Header.Values, urlParam(r.URL))
	if err != nil {
		a.fail(w, err)
		return
	}
	rt, param, ok := a.find(path)
	switch {
	case !ok:
		http.NotFound(w, r)
		return
	case r.Method == http.MethodOptions:
		w.WriteHeader(http.StatusNoContent)
		return
	case !rt.allows(r.Method):
		w.Header().Set("Allow", strings.Join(rt.methods, ", "))
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	if a.checked {
		if err := rt.need.Check(access.From(r.Context()), table.Table); err != nil {
			access.Refuse(w, r, err)
			return
		}
	}
	c := &call{Request: r, table: a.query.Table(table.Table), param: param, enveloped: rt.raw == nil}
	c.ctx, c.warnings = query.WithWarnings(r.Context())
	seen := &seenWriter{ResponseWriter: w, status: http.StatusOK}
	start := time.Now()
	defer func() { a.metrics.observe(rt.name, seen, time.Since(start)) }()
	if rt.raw != nil {
		if err := c.staged(urlParam(r.URL)("staged")); err != nil {
			a.failPlain(seen, err)
			return
		}
		rt.raw(seen, c)
		return
	}
	a.serve(seen, c, rt.handle)
}

// urlParam reads the URL's parameters only when one of that name may be there, perhaps percent-encoded.
func urlParam(u *url.URL) func(string) []string {
	return func(name string) []string {
		if !strings.Contains(u.RawQuery, name+"=") && !strings.Contains(u.RawQuery, "%") {
			return nil
		}
		return u.Query()[name]
	}
}

// nameInBody refuses a body that names another table than the URL and the header do: those decide, before it is read.
func (c *call) nameInBody() error {
	for _, p := range tablename.Params {
		for _, v := range c.PostForm[p] {
			if v != "" && v != c.table.Name() {
				return badDataf("the request is for the table %q, %s in its body says %q; name the table in the URL", c.table.Name(), p, v)
			}
		}
	}
	return nil
}

// serve reads the parameters, lets a handler answer, and writes the answer.
func (a *API) serve(w http.ResponseWriter, c *call, handle func(*call) (answer, error)) {
	release, err := a.parse(w, c)
	if err != nil {
		a.fail(w, err)
		return
	}
	defer release()
	ans, err := handle(c)
	if ans.close != nil {
		defer ans.close()
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	if ans.data == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	ans.warnings = append(ans.warnings, c.warnings.Texts()...)
	a.respond(w, c.Request, ans)
}

// A form of formSmall bytes costs too little to be counted; a larger one costs formCost times its size, read and parsed.
const (
	formSmall = 16 << 10
	formCost  = 6
)

// parse reads the parameters. The memory of a large form is booked before it is read.
func (a *API) parse(w http.ResponseWriter, c *call) (release func(), err error) {
	release = func() {}
	size := c.ContentLength
	if size < 0 {
		size = int64(a.settings.FormBytesMax)
	}
	if size += int64(len(c.URL.RawQuery)); c.ContentLength <= int64(a.settings.FormBytesMax) && size > formSmall {
		if release, err = a.query.Reserve(formCost * size); err != nil {
			return nil, err
		}
	}
	c.Body = http.MaxBytesReader(w, c.Body, int64(a.settings.FormBytesMax))
	if err = c.readForm(int64(a.settings.FormBytesMax)); err != nil {
		err = formError(err)
	} else if err = c.nameInBody(); err == nil {
		if err = c.mayBePartial(); err == nil {
			err = c.consistency()
		}
		if err == nil {
			err = c.staged(c.Form["staged"])
		}
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// readForm reads the parameters of the URL and of the body, be it a form of either kind, as Prometheus does.
func (c *call) readForm(bytesMax int64) error {
	if err := c.ParseForm(); err != nil {
		return err
	}
	media, _, _ := mime.ParseMediaType(c.Header.Get("Content-Type"))
	if media != "multipart/form-data" || c.Method != http.MethodPost && c.Method != http.MethodPut {
		return nil
	}
	return c.ParseMultipartForm(bytesMax) // only content counts, so that its files, which are no parameters, stay off the disk
}

// placed lets a handler answer in a place among look-ups, with its own memory until the answer is written.
func (a *API) placed(handle func(*call) (answer, error)) func(*call) (answer, error) {
	return func(c *call) (answer, error) {
		ctx, l, err := a.query.Lookup(c.ctx)
		if err != nil {
			return answer{}, err
		}
		kept := false
		defer func() {
			if !kept { // net/http goes on after a panic too
				l.End()
			}
		}()
		var ans answer
		err = l.Ask(ctx, func(ctx context.Context) (err error) {
			c.ctx = ctx
			ans, err = handle(c)
			return err
		})
		c.ctx = ctx
		if err = l.Leave(err); err != nil {
			return answer{}, err
		}
		ans.close, kept = l.End, true
		return ans, nil
	}
}

// mayBePartial lets the answer lack rows that are unavailable now, with a warning, if the request allows that; if it forbids it, an answer
// that may lack rows is refused.
func (c *call) mayBePartial() error {
	text, err := onlyValue("partial_response", c.Form["partial_response"])
	if err != nil || text == "" {
		return err
	}
	allowed, err := strconv.ParseBool(text)
	if err != nil {
		return invalidParam("partial_response", err)
	}
	if allowed {
		c.ctx = query.WithPartial(c.ctx)
	} else {
		c.ctx = query.WithWhole(c.ctx)
	}
	return nil
}

// consistency chooses the servers that rows are read from, if the request does.
func (c *call) consistency() error {
	text, err := onlyValue("consistency", c.Form["consistency"])
	if err != nil {
		return err
	}
	switch text {
	case "":
	case "any", "leader":
		c.ctx = query.WithLeaderOnly(c.ctx, text == "leader")
	default:
		return invalidParam("consistency", fmt.Errorf("%.40q is none of any, leader", text))
	}
	return nil
}

// errStagedPlace refuses to skip staged rows where an answer cannot have the watermark.
var errStagedPlace = errors.New("skip: this kind of answer has no place for the watermark; leave the parameter out")

// staged leaves staged rows out of the answer, with a warning, if the request wants it.
func (c *call) staged(values []string) error {
	text, err := onlyValue("staged", values)
	if err != nil {
		return err
	}
	switch text {
	case "", "read":
	case "skip":
		if !c.enveloped {
			return invalidParam("staged", errStagedPlace)
		}
		c.ctx = query.WithoutStaged(c.ctx)
	default:
		return invalidParam("staged", fmt.Errorf("%.40q is none of read, skip", text))
	}
	return nil
}

// allowOrigin lets pages of other origins read the answer, where the settings allow it, as Prometheus' --web.cors.origin
// does. The origin is named rather than *, as some clients compare it; no credentials of a browser are sent along either way.
func (a *API) allowOrigin(w http.ResponseWriter, r *http.Request) {
	if a.origin == nil {
		return
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if origin == "" || !a.origin.MatchString(origin) {
		return
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type, Origin")
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	h.Set("Access-Control-Expose-Headers", "Date")
}
