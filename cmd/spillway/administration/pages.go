package administration

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// A standalone process and a gateway carry out the orders of administrators over HTTP, on admin.listen; the commands for people send them:
//
//	GET    /api/v1/admin/tables                                      all
//	GET    /api/v1/admin/tables/TABLE                                one
//	PUT    /api/v1/admin/tables/TABLE                                make it; the body is its settings
//	PATCH  /api/v1/admin/tables/TABLE                                change settings; ?dry_run=true shows what would change, ?confirm=TABLE where rows are deleted
//	GET    /api/v1/admin/tables/TABLE/advice                         how it should be set; ?rows_per_second=, row_bytes=, server_rows=, split_bytes=, whole_ranges=
//	DELETE /api/v1/admin/tables/TABLE                                drop it with all its rows; ?confirm=TABLE, or ?dry_run=true
//	GET    /api/v1/admin/tables/TABLE/partitions/PARTITION           one partition
//	POST   /api/v1/admin/tables/TABLE/partitions/merge               a partitionOrder
//	POST   /api/v1/admin/tables/TABLE/partitions/PARTITION/ACTION    a partitionOrder: split, bump, move, prohibit, allow, offline, online, restore, force-join
//	GET    /api/v1/admin/audit                                       what administrators did; ?limit=50&match=text
//
// Answers are {"status": "success", "data": …} or {"status": "error", "error": text}; ?by= and ?reason= are for the audit. With ?output=table data is
// {"text": …}, as a command prints it.
const (
	TablesPath = "/api/v1/admin/tables"
	AuditPath  = "/api/v1/admin/audit"
)

func partitionsPath(table string) string {
	return TablesPath + "/" + url.PathEscape(table) + "/partitions"
}

// tableBody is the body of PUT and PATCH. A missing setting stays as it is, or has its default.
type tableBody struct {
	PartitionWidth *setting.Span `json:"partition_width,omitempty"`
	Retention      *setting.Span `json:"retention,omitempty"`
	Replicas       *int          `json:"replicas,omitempty"`
	MinInSync      *int          `json:"min_in_sync,omitempty"`
	Weights        []uint32      `json:"weights,omitempty"`
	RingBy         *string       `json:"ring_by,omitempty"`
	Smear          *string       `json:"smear,omitempty"`
	SmearBelow     *setting.Span `json:"smear_below,omitempty"`
	SmearMax       *setting.Span `json:"smear_max,omitempty"`
	SmearKafka     *string       `json:"smear_kafka,omitempty"`
}

// partitionOrder is the body of an order about a partition. Which fields count depends on the order.
type partitionOrder struct {
	At         string              `json:"at,omitempty"`         // split
	Partitions []partitionID       `json:"partitions,omitempty"` // merge
	Server     topology.ServerID   `json:"server,omitempty"`     // prohibit, allow, force-join
	To         topology.ServerID   `json:"to,omitempty"`         // move
	From       topology.ServerID   `json:"from,omitempty"`       // move
	Force      bool                `json:"force,omitempty"`      // move
	Cancel     bool                `json:"cancel,omitempty"`     // move, split
	Holds      []topology.ServerID `json:"holds,omitempty"`      // restore
	Confirm    string              `json:"confirm,omitempty"`    // restore
	Yes        bool                `json:"yes,omitempty"`        // force-join
	Reason     string              `json:"reason,omitempty"`
	DryRun     bool                `json:"dry_run,omitempty"` // split, merge
}

// order is a command that runs in the process.
type order interface {
	run(ctx context.Context, a *admin) error
}

// Orders are how a process carries out the orders of administrators, and those of Influx clients about tables. The zero value carries out none.
type Orders struct {
	open  func(ctx context.Context) (*admin, error)                                        // who answers them; its output is set by the page
	May   func() error                                                                     // why nothing may be changed; nil: it may be
	asks  bool                                                                             // a token is needed on loopback, too, where the process knows any: a cluster is changed
	fit   func(TableSettings) (TableSettings, error)                                       // the settings that a table may have here
	drops func(ctx context.Context, a *admin, c *TableDrop) error                          // drops a table
	steer func(table string, id partitionID, what string, o partitionOrder) (order, error) // an order about a partition
}

// Keeping has a process note that a table is to have the map next, of another retention, before it has it; seen: a person confirmed the loss.
type Keeping func(ctx context.Context, m, next *topology.Map, seen bool) error

// OrdersAlone are those of a process that is alone. drop drops a table with its rows.
func OrdersAlone(store coord.Store, all *tables.Tables, log *slog.Logger, drop func(ctx context.Context, table string) error, keeping Keeping) Orders {
	one := 1
	return Orders{
		open: func(context.Context) (*admin, error) {
			return &admin{store: store, tables: all, log: log, rng: seeded(), out: io.Discard, keeping: keeping}, nil
		},
		May: func() error { return nil },
		fit: func(s TableSettings) (TableSettings, error) {
			err := s.ofOneProcess()
			s.Replicas = &one
			return s, err
		},
		drops: func(ctx context.Context, a *admin, c *TableDrop) error {
			return c.drop(ctx, a, func() error { return drop(ctx, c.Table) })
		},
		steer: func(_ string, _ partitionID, what string, _ partitionOrder) (order, error) {
			return nil, fault.Errorf(fault.Invalid, "a process that is alone leads all partitions, on one server: there is nothing to %s", what)
		},
	}
}

// Cluster are the parts of a gateway that orders about its cluster need.
type Cluster struct {
	Store   coord.Store
	Servers *registry.View
	Tables  *tables.Tables
	Peers   *peers.Peers
	Log     *slog.Logger
}

// OrdersOfCluster are those of a gateway about its cluster. may is why nothing may be changed; nil: it may be.
func OrdersOfCluster(d Cluster, may func() error) Orders {
	return Orders{
		open: func(ctx context.Context) (*admin, error) {
			a := &admin{store: d.Store, servers: d.Servers, tables: d.Tables, peers: d.Peers, log: d.Log, rng: seeded(), out: io.Discard, listen: listenFor}
			return a, a.missing(ctx)
		},
		May:   may,
		asks:  true,
		fit:   func(s TableSettings) (TableSettings, error) { return s, nil },
		drops: func(ctx context.Context, a *admin, c *TableDrop) error { return c.run(ctx, a) },
		steer: steerPartition,
	}
}

// steerPartition makes the command for an order. Errors are NotFound: there is none of that name.
func steerPartition(table string, id partitionID, what string, o partitionOrder) (order, error) {
	if o.DryRun && what != "split" && what != "merge" { // it would be carried out
		return nil, fault.Errorf(fault.Invalid, "an order to %s has no dry run", what)
	}
	at := PartitionArg{Table: table, ID: id}
	switch what {
	case "split":
		return &PartitionSplit{PartitionArg: at, At: o.At, Cancel: o.Cancel, Reason: o.Reason, DryRun: o.DryRun}, nil
	case "merge":
		return &partitionMergeCmd{Table: table, IDs: o.Partitions, Reason: o.Reason, DryRun: o.DryRun}, nil
	case "bump":
		return &partitionBumpCmd{PartitionArg: at, Reason: o.Reason}, nil
	case "move":
		return &PartitionMove{PartitionArg: at, To: o.To, From: o.From, Force: o.Force, Cancel: o.Cancel, Reason: o.Reason}, nil
	case "prohibit":
		return &partitionProhibitCmd{PartitionArg: at, Server: o.Server, Reason: o.Reason}, nil
	case "allow":
		return &partitionAllowCmd{PartitionArg: at, Server: o.Server, Reason: o.Reason}, nil
	case "offline":
		return &partitionOfflineCmd{PartitionArg: at, Reason: o.Reason}, nil
	case "online":
		return &partitionOnlineCmd{PartitionArg: at, Reason: o.Reason}, nil
	case "restore":
		return &PartitionRestore{PartitionArg: at, Holds: o.Holds, Confirm: o.Confirm, Reason: o.Reason}, needsReason(o)
	case "force-join":
		return &PartitionForceJoin{PartitionArg: at, Server: o.Server, Reason: o.Reason, Yes: o.Yes}, needsReason(o)
	}
	return nil, fault.Errorf(fault.NotFound, "there is no order %q for a partition: split, bump, move, prohibit, allow, offline, online, restore, force-join", what)
}

// needsReason refuses an order that loses rows and has no reason, as the command does.
func needsReason(o partitionOrder) error {
	if o.Reason == "" {
		return fault.Errorf(fault.Invalid, "a reason is missing: it is shown in the audit")
	}
	return nil
}

// Pages lists the pages for administrators, all of which need access.NeedAdminAll.
func (o Orders) Pages(guard *access.Guard, list func(pattern string, h http.Handler)) {
	if o.open == nil {
		return
	}
	add := func(pattern string, changes bool, make func(r *http.Request) (order, error)) {
		list(pattern, o.Guarded(guard, o.page(guard, changes, make)))
	}
	add("GET "+TablesPath, false, func(*http.Request) (order, error) { return &TableList{}, nil })
	add("GET "+TablesPath+"/{table}", false, func(r *http.Request) (order, error) { return &TableShow{Table: r.PathValue("table")}, nil })
	add("GET "+TablesPath+"/{table}/advice", false, func(r *http.Request) (order, error) { return adviceOf(r.PathValue("table"), r.URL.Query()) })
	add("PUT "+TablesPath+"/{table}", true, func(r *http.Request) (order, error) {
		s, err := o.settings(r)
		dry, bad := dryRun(r.URL.Query())
		if dry { // it would be made
			bad = fault.Errorf(fault.Invalid, "making a table has no dry run")
		}
		return &TableCreate{Table: r.PathValue("table"), TableSettings: s}, errors.Join(err, bad)
	})
	add("PATCH "+TablesPath+"/{table}", true, func(r *http.Request) (order, error) {
		s, err := o.settings(r)
		q := r.URL.Query()
		dry, bad := dryRun(q)
		return &TableSet{Table: r.PathValue("table"), TableSettings: s, Confirm: q.Get("confirm"), Reason: q.Get("reason"), DryRun: dry}, errors.Join(err, bad)
	})
	add("DELETE "+TablesPath+"/{table}", true, func(r *http.Request) (order, error) {
		q := r.URL.Query()
		dry, err := dryRun(q)
		return droppedBy{&TableDrop{Table: r.PathValue("table"), Confirm: q.Get("confirm"), Reason: q.Get("reason"), DryRun: dry}, o}, err
	})
	add("GET "+TablesPath+"/{table}/partitions/{partition}", false, func(r *http.Request) (order, error) {
		id, err := partitionOf(r)
		return &PartitionShow{PartitionArg: PartitionArg{Table: r.PathValue("table"), ID: id}}, err
	})
	add("POST "+TablesPath+"/{table}/partitions/merge", true, func(r *http.Request) (order, error) { return o.steered(r, 0, "merge") })
	add("POST "+TablesPath+"/{table}/partitions/{partition}/{action}", true, func(r *http.Request) (order, error) {
		id, err := partitionOf(r)
		if err != nil {
			return nil, err
		}
		return o.steered(r, id, r.PathValue("action"))
	})
	add("GET "+AuditPath, false, func(r *http.Request) (order, error) {
		limit, err := 50, error(nil)
		if text := r.URL.Query().Get("limit"); text != "" {
			limit, err = strconv.Atoi(text)
		}
		return &Audit{Limit: limit, Match: r.URL.Query().Get("match")}, fault.Wrap(err, fault.Invalid, "limit")
	})
}

// Guarded returns h, or on a gateway a handler that asks for the credentials of an administrator of all tables first, on loopback too, if the gateway has any credentials:
// h reads or changes the whole cluster.
func (o Orders) Guarded(guard *access.Guard, h http.Handler) http.Handler {
	if o.asks {
		return guard.Handler(access.NeedAdminAll, h)
	}
	return h
}

// droppedBy is a drop as the process does it.
type droppedBy struct {
	c *TableDrop
	o Orders
}

func (d droppedBy) run(ctx context.Context, a *admin) error { return d.o.drops(ctx, a, d.c) }

func partitionOf(r *http.Request) (id partitionID, err error) {
	return id, id.UnmarshalText([]byte(r.PathValue("partition")))
}

// settings reads the body of PUT and PATCH. Errors are Invalid.
func (o Orders) settings(r *http.Request) (TableSettings, error) {
	var b tableBody
	if err := readBody(r, &b, "settings of a table"); err != nil {
		return TableSettings{}, err
	}
	return o.fit(TableSettings(b))
}

// steered reads an order about a partition. Errors are Invalid or NotFound.
func (o Orders) steered(r *http.Request, id partitionID, what string) (order, error) {
	var b partitionOrder
	if err := readBody(r, &b, "an order about a partition"); err != nil {
		return nil, err
	}
	q := r.URL.Query() // as the orders about tables have them
	dry, err := dryRun(q)
	if err != nil {
		return nil, err
	}
	b.DryRun, b.Reason = b.DryRun || dry, cmp.Or(b.Reason, q.Get("reason"))
	return o.steer(r.PathValue("table"), id, what, b)
}

// readBody reads a body of JSON; none is one without fields. Errors are Invalid.
func readBody(r *http.Request, v any, what string) error {
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, adminBodyMax))
	d.DisallowUnknownFields()
	switch err := d.Decode(v); {
	case err == io.EOF:
		return nil
	case err != nil:
		return fault.Wrap(err, fault.Invalid, "the body is not %s", what)
	}
	if _, err := d.Token(); err != io.EOF {
		return fault.Errorf(fault.Invalid, "the body is not %s: something follows it, which would not be carried out", what)
	}
	return nil
}

// orderParams are the parameters in the URL of an order that changes something. One with another name, such as dryrun, is refused: the order would be carried out as if
// it were not there.
var orderParams = [...]string{"by", "reason", "output", "confirm", "dry_run"}

func checkOrderParams(q url.Values) error {
	for name := range q {
		if !slices.Contains(orderParams[:], name) {
			return fault.Errorf(fault.Invalid, "the URL of an order has the parameter %q, and there are only %s", name, strings.Join(orderParams[:], ", "))
		}
	}
	return nil
}

// dryRun reads ?dry_run=. Errors are Invalid: what cannot be read is no "no".
func dryRun(q url.Values) (bool, error) {
	text := q.Get("dry_run")
	if text == "" {
		return false, nil
	}
	dry, err := strconv.ParseBool(text)
	return dry, fault.Wrap(err, fault.Invalid, "dry_run is true or false")
}

// page answers with the output of a command.
func (o Orders) page(guard *access.Guard, changes bool, read func(r *http.Request) (order, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var out bytes.Buffer
		table, err := o.carryOut(guard, r, changes, read, &out)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(adminStatus(err))
			_ = json.NewEncoder(w).Encode(map[string]string{"status": "error", "error": err.Error()})
			return
		}
		data := json.RawMessage(out.Bytes())
		if table {
			data, _ = json.Marshal(map[string]string{"text": out.String()}) // a map of strings always encodes
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": data})
	}
}

// carryOut runs the command of a request. table reports whether its output is for people.
func (o Orders) carryOut(guard *access.Guard, r *http.Request, changes bool, read func(r *http.Request) (order, error), out io.Writer) (table bool, err error) {
	// Parameters are those of the URL: r.FormValue would read a body that a sender calls a form, as curl -d does, and the
	// settings in it would be gone.
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return false, fault.Wrap(err, fault.Invalid, "the parameters of the URL")
	}
	if changes {
		if err := checkOrderParams(q); err != nil {
			return false, err
		}
		if err := o.May(); err != nil {
			return false, err
		}
	}
	c, err := read(r)
	if err != nil {
		return false, err
	}
	a, err := o.open(r.Context())
	if err != nil {
		return false, err
	}
	table = q.Get("output") == "table"
	a.unasked = true
	a.out, a.json, a.by = out, !table, cmp.Or(q.Get("by"), "http")
	if id := access.From(r.Context()); id != nil && !guard.Open() {
		a.by = id.Name + " (" + a.by + ")" // a sender can choose any name, but not that its token is another's
	}
	return table, c.run(r.Context(), a)
}

// show asks for something, and prints the answer.
func (f *TableFlags) show(path string, query url.Values) error {
	return f.answer(http.MethodGet, path, query, nil)
}

// order sends an order about a partition, and prints the answer.
func (f *TableFlags) order(path string, o partitionOrder) error {
	return f.answer(http.MethodPost, path, nil, o)
}

func (f *TableFlags) answer(method, path string, query url.Values, body any) error {
	if query == nil {
		query = url.Values{}
	}
	if f.Output == "json" {
		var data json.RawMessage
		if err := f.ask(method, path, query, body, &data); err != nil {
			return err
		}
		var out bytes.Buffer
		if err := json.Indent(&out, data, "", "  "); err != nil {
			return fault.Wrap(err, fault.Corrupt, "answer of %s", f.URL)
		}
		out.WriteByte('\n')
		_, err := out.WriteTo(os.Stdout)
		return err
	}
	query.Set("output", "table")
	var data struct{ Text string }
	if err := f.ask(method, path, query, body, &data); err != nil {
		return err
	}
	_, err := io.WriteString(os.Stdout, data.Text)
	return err
}
