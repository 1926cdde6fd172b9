package administration

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// adminStatus is the HTTP status for an administrator's request that failed.
func adminStatus(err error) int {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.TooLarge:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Denied:
		return http.StatusForbidden
	case fault.Stale:
		return http.StatusConflict
	case fault.Throttled, fault.Unavailable, fault.Canceled:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// influxOrderMax bounds an order of an Influx client: of a cluster a drop waits for the servers that hold partitions of the table.
const influxOrderMax = 2 * time.Minute

var _ intake.Tables = Orders{}

// Drop implements intake.Tables, as the command for people does it.
func (o Orders) Drop(ctx context.Context, name, by string) error {
	return o.carryOutFor(ctx, by, func(ctx context.Context, a *admin) error {
		return o.drops(ctx, a, &TableDrop{Table: name, Confirm: name, Reason: "DROP DATABASE"})
	})
}

// Keep implements intake.Tables, as the command for people does it.
func (o Orders) Keep(ctx context.Context, name string, keep time.Duration, by string) error {
	return o.carryOutFor(ctx, by, func(ctx context.Context, a *admin) error {
		retention := setting.Span(keep)
		s, err := o.fit(TableSettings{Retention: &retention})
		if err != nil {
			return err
		}
		a.unseen = true
		return (&TableSet{Table: name, TableSettings: s, Confirm: name, Reason: "by an Influx client"}).run(ctx, a)
	})
}

// carryOutFor runs an order of a client. One that began goes on although its sender goes away.
func (o Orders) carryOutFor(ctx context.Context, by string, order func(ctx context.Context, a *admin) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), influxOrderMax)
	defer cancel()
	if err := o.May(); err != nil {
		return err
	}
	a, err := o.open(ctx)
	if err != nil {
		return err
	}
	a.by, a.unasked = by, true
	return order(ctx, a)
}

// TableFlags are the flags of commands about tables, partitions and the audit: of a cluster, or through the administrators' port of a process.
type TableFlags struct {
	Flags  `embed:""`
	URL    string       `name:"url" help:"Where a standalone process or a gateway listens for administrators (its admin.listen); used where no cluster is named." default:"http://127.0.0.1:8429" env:"SPILLWAY_ADMIN_URL"`
	Client client.Flags `embed:""`
}

// alone reports whether no cluster is named: then the command asks the process at URL.
func (f *TableFlags) alone() bool { return len(f.Servers) == 0 && f.Coord.URL == "" }

// ask sends a request to a standalone process or a gateway, and reads its answer's data into v. A body of nil is none.
func (f *TableFlags) ask(method, path string, query url.Values, body any, v any) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if query == nil {
		query = url.Values{}
	}
	if slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool { return part == "." || part == ".." }) { // to HTTP it is a folder
		return fault.Errorf(fault.Invalid, "no table has the name \".\" or \"..\"")
	}
	query.Set("by", cmp.Or(f.By, whoami()))
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	rq, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(f.URL, "/")+path+"?"+query.Encode(), bytes.NewReader(text))
	if err != nil {
		return client.NoURL(f.URL)
	}
	rq.Header.Set("Content-Type", "application/json")
	resp, err := f.Client.Send(rq, f.Timeout)
	if err != nil {
		return fault.Annotate(err, "--url (SPILLWAY_ADMIN_URL) names the admin.listen of a standalone process or a gateway, --servers storage servers of a cluster")
	}
	defer resp.Body.Close()
	var answer struct {
		Data  json.RawMessage
		Error string
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&answer)
	switch {
	case resp.StatusCode == http.StatusNotFound && err != nil:
		return fault.Errorf(fault.Invalid, "%s does not take orders of administrators: --url is the admin.listen of a standalone process or a gateway, port 8429 unless it is set; a storage server is named with --servers", f.URL)
	case answer.Error != "":
		return errors.New(answer.Error)
	case err != nil:
		return fault.Errorf(fault.Unavailable, "%s answered %s, and nothing that can be read: %v", f.URL, resp.Status, err)
	}
	return fault.Wrap(json.Unmarshal(answer.Data, v), fault.Corrupt, "answer of %s", f.URL)
}

// local prints like the commands about a cluster.
func (f *TableFlags) local() *admin { return &admin{out: os.Stdout, json: f.Output == "json"} }

// doneBody is the JSON answer of admin.done.
type doneBody struct {
	Done string `json:"done"`
}

// change sends a request that changes something, and prints the result.
func (f *TableFlags) change(method, table string, query url.Values, body *tableBody) error {
	var d doneBody
	var text any
	if body != nil {
		text = body
	}
	if err := f.ask(method, TablesPath+"/"+url.PathEscape(table), query, text, &d); err != nil {
		return err
	}
	return f.local().done("%s", d.Done)
}
