package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// The tables of a standalone process are administered over HTTP, on admin.listen, by the same commands as those of a
// cluster:
//
//	GET    /api/v1/admin/tables            all
//	GET    /api/v1/admin/tables/TABLE      one
//	PUT    /api/v1/admin/tables/TABLE      make it; the body is its settings
//	PATCH  /api/v1/admin/tables/TABLE      change settings; ?dry_run=true shows what would change
//	DELETE /api/v1/admin/tables/TABLE      drop it with all its rows; ?confirm=TABLE, or ?dry_run=true
//
// Answers are {"status": "success", "data": …} or {"status": "error", "error": text}; ?by= and ?reason= are for the audit.
const tablesPath = "/api/v1/admin/tables"

// tableBody is the body of PUT and PATCH. A missing setting stays as it is, or has its default.
type tableBody struct {
	PartitionWidth *duration `json:"partition_width,omitempty"`
	Retention      *duration `json:"retention,omitempty"`
	Weights        []uint32  `json:"weights,omitempty"`
}

func (b *tableBody) settings() tableSettings {
	alone := 1
	return tableSettings{PartitionWidth: b.PartitionWidth, Retention: b.Retention, Replicas: &alone, Weights: b.Weights}
}

// tablePages are the pages of a standalone process.
func (p *standalone) tablePages() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET " + tablesPath: p.tablePage(func(r *http.Request, a *admin, _ string, _ *tableBody) error {
			return (&tableListCmd{}).run(r.Context(), a)
		}),
		"GET " + tablesPath + "/{table}": p.tablePage(func(r *http.Request, a *admin, table string, _ *tableBody) error {
			return (&tableShowCmd{Table: table}).run(r.Context(), a)
		}),
		"PUT " + tablesPath + "/{table}": p.tablePage(func(r *http.Request, a *admin, table string, b *tableBody) error {
			return (&tableCreateCmd{Table: table, tableSettings: b.settings()}).run(r.Context(), a)
		}),
		"PATCH " + tablesPath + "/{table}": p.tablePage(func(r *http.Request, a *admin, table string, b *tableBody) error {
			return (&tableSetCmd{Table: table, tableSettings: b.settings(), Reason: r.URL.Query().Get("reason"), DryRun: r.URL.Query().Get("dry_run") == "true"}).run(r.Context(), a)
		}),
		"DELETE " + tablesPath + "/{table}": p.tablePage(func(r *http.Request, a *admin, table string, _ *tableBody) error {
			q := r.URL.Query()
			c := &tableDropCmd{Table: table, Confirm: q.Get("confirm"), Reason: q.Get("reason"), DryRun: q.Get("dry_run") == "true"}
			return c.drop(r.Context(), a, func() error { return p.dropTable(r.Context(), table) })
		}),
	}
}

// tablePage answers with the output of a command.
func (p *standalone) tablePage(run func(r *http.Request, a *admin, table string, b *tableBody) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b tableBody
		// Parameters are those of the URL: r.FormValue would read a body that a sender calls a form, as curl -d does, and the
		// its settings would be lost.
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			err = fault.Wrap(err, fault.Invalid, "the parameters of the URL")
		}
		if r.Method == http.MethodPut || r.Method == http.MethodPatch {
			d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
			d.DisallowUnknownFields()
			if derr := d.Decode(&b); derr != nil && derr != io.EOF {
				err = fault.Wrap(derr, fault.Invalid, "the body is no settings of a table")
			}
		}
		var out bytes.Buffer
		a := &admin{store: p.coord, tables: p.tables, log: p.log, rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), out: &out, json: true, by: or(q.Get("by"), "http")}
		if err == nil {
			err = run(r, a, r.PathValue("table"), &b)
		}
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(adminStatus(err))
			_ = json.NewEncoder(w).Encode(map[string]string{"status": "error", "error": err.Error()})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": json.RawMessage(out.Bytes())})
	}
}

// adminStatus is the HTTP status for an administrator's request that failed.
func adminStatus(err error) int {
	switch fault.KindOf(err) {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Stale:
		return http.StatusConflict
	case fault.Throttled, fault.Unavailable, fault.Canceled:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// dropByInflux does what `spillway table drop` does, for DROP DATABASE. What began goes on although its sender goes away.
func (p *standalone) dropByInflux(ctx context.Context, name, by string) error {
	ctx = context.WithoutCancel(ctx)
	a := &admin{store: p.coord, tables: p.tables, log: p.log, rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), out: io.Discard, by: by}
	c := &tableDropCmd{Table: name, Confirm: name, Reason: "DROP DATABASE"}
	return c.drop(ctx, a, func() error { return p.dropTable(ctx, name) })
}

// dropTable deletes a table with its rows: first it accepts no more writes, then the rows are deleted, then the table.
// finishDrops finishes a drop after a crash.
func (p *standalone) dropTable(ctx context.Context, name string) error {
	if err := p.tables.BeginDrop(ctx, name); err != nil {
		return err
	}
	for _, h := range p.server.Held() {
		if h.Table == name {
			if err := p.server.DropPartition(name, h.Partition); err != nil {
				return err
			}
		}
	}
	return p.tables.DropTable(ctx, name)
}

// finishDrops finishes drops that an earlier process began.
func (p *standalone) finishDrops(ctx context.Context) {
	for _, name := range p.tables.Names() {
		if !p.tables.Dropping(name) {
			continue
		}
		if err := p.dropTable(ctx, name); err != nil && ctx.Err() == nil {
			p.log.Error("a table whose drop began could not be dropped; it is tried again", "table", name, "error", err)
		}
	}
}

// tableFlags are the flags of commands about tables: of a cluster, or of a standalone process.
type tableFlags struct {
	adminFlags `embed:""`
	URL        string      `name:"url" help:"Where a process that is alone listens for administrators (its admin.listen); used where no cluster is named." default:"http://127.0.0.1:8429" env:"SPILLWAY_ADMIN_URL"`
	Client     clientFlags `embed:""`
}

// alone reports whether no cluster is named: then the command asks the process at URL.
func (f *tableFlags) alone() bool { return len(f.Servers) == 0 && f.Coord.URL == nil }

// ask sends a request to a standalone process, and reads its answer's data into v.
func (f *tableFlags) ask(method, path string, query url.Values, body *tableBody, v any) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if query == nil {
		query = url.Values{}
	}
	query.Set("by", or(f.By, whoami()))
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	rq, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(f.URL, "/")+path+"?"+query.Encode(), bytes.NewReader(text))
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "--url")
	}
	rq.Header.Set("Content-Type", "application/json")
	resp, err := f.Client.send(rq, f.Timeout)
	if err != nil {
		return fault.Annotate(err, "%s (--url names a process that is alone, --servers a storage server of a cluster)", f.URL)
	}
	defer resp.Body.Close()
	var answer struct {
		Data  json.RawMessage
		Error string
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&answer)
	switch {
	case resp.StatusCode == http.StatusNotFound && err != nil:
		return fault.Errorf(fault.Invalid, "%s does not administer tables: is it the admin.listen of `spillway standalone`?", f.URL)
	case answer.Error != "":
		return errors.New(answer.Error)
	case err != nil:
		return fault.Errorf(fault.Unavailable, "%s answered %s, and nothing that can be read: %v", f.URL, resp.Status, err)
	}
	return fault.Wrap(json.Unmarshal(answer.Data, v), fault.Corrupt, "answer of %s", f.URL)
}

// local prints like the commands about a cluster.
func (f *tableFlags) local() *admin { return &admin{out: os.Stdout, json: f.Output == "json"} }

// doneBody is the JSON answer of admin.done.
type doneBody struct {
	Done string `json:"done"`
}

// change sends a request that changes something, and prints the result.
func (f *tableFlags) change(method, table string, query url.Values, body *tableBody) error {
	var d doneBody
	if err := f.ask(method, tablesPath+"/"+url.PathEscape(table), query, body, &d); err != nil {
		return err
	}
	return f.local().done("%s", d.Done)
}
