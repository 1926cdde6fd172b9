package intake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/point"
)

// result is the answer to one statement.
type result struct {
	StatementID int    `json:"statement_id"`
	Series      []rows `json:"series,omitempty"`
	Error       string `json:"error,omitempty"`
}

type rows struct {
	Name    string   `json:"name,omitempty"`
	Columns []string `json:"columns"`
	Values  [][]any  `json:"values,omitempty"`
}

// Bounds on the memory and the answer of one query.
const (
	queryBytesMax = 1 << 20
	statementsMax = 100
	showMax       = 10_000 // rows of one SHOW without a LIMIT
)

// query serves /query: as much InfluxQL as writers and their set-up need. Data is read through the Prometheus API.
func (f *Front) query(ctx context.Context, c *call) Response {
	r := f.queryResponse(ctx, c)
	f.signInflux(c, &r)
	return r
}

func (f *Front) queryResponse(ctx context.Context, c *call) Response {
	arrived := nowOf(f.clock)
	if c.TableErr != nil {
		return f.failure1(c.TableErr)
	}
	all := c.Query["q"]
	if c.Method == http.MethodPost {
		form, err := f.form(c)
		if err == nil {
			err = c.nameIn(form)
		}
		if err != nil {
			return f.failure1(err)
		}
		all = slices.Concat(all, form["q"])
	}
	q, err := onlyQuery(all)
	if err != nil {
		return f.failure1(err)
	}
	if q == "" {
		return f.failure1(fault.Errorf(fault.Invalid, `missing required parameter "q"`))
	}
	list, err := statements(q)
	if err == nil && len(list) > statementsMax {
		err = fmt.Errorf("error parsing query: %d statements, at most %d are taken", len(list), statementsMax)
	}
	if err != nil {
		return f.failure1(fault.Errorf(fault.Invalid, "%w", err))
	}
	results := make([]result, len(list))
	by := c.asker()
	by.deletes, by.creates, by.now = f.mayDelete(c), c.mayCreate(), arrived
	booked := int64(0)
	for i, ts := range list {
		series, err := f.statement(ctx, ts, by)
		if err == nil && len(series) > 0 { // not after CREATE, DROP and the like: the budget may be full, and they are done
			n := answerBytes(series)
			if err = fault.Annotate(c.charge.take(n), "the answer is long"); err == nil {
				booked += n
			}
		}
		if results[i].StatementID = i; err != nil {
			results[i].Error = err.Error()
			continue
		}
		results[i].Series = series
	}
	r := asJSON(http.StatusOK, struct {
		Results []result `json:"results"`
	}{results})
	if booked > 0 {
		r.sent = c.charge.handOver(min(booked, int64(cap(r.Body))))
	}
	return r
}

// nameIn adds the databases that a form names to those that the URL and the header name.
func (rq *Request) nameIn(form url.Values) error {
	for _, p := range tablename.Params {
		for _, v := range form[p] {
			if err := rq.Agree(databaseOf(v), tablename.ByParam, p+" in the body"); err != nil {
				return err
			}
		}
	}
	return nil
}

// onlyQuery gives the statements that a request asks for, "" for none. A proxy in front may have checked the one q,
// and we would run the other, which may delete. The error is Invalid.
func onlyQuery(all []string) (q string, err error) {
	for _, v := range all {
		if v == "" {
			continue
		}
		if q != "" && v != q {
			return "", fault.Errorf(fault.Invalid, "the request contradicts itself: the parameter q says %.100q and %.100q", q, v)
		}
		q = v
	}
	return q, nil
}

// failure1 is an error in v1's words.
func (f *Front) failure1(err error) Response {
	a := lineproto.V1.Answer(lineproto.Outcome{Err: err, RetryAfter: f.settings.RetryAfter})
	r := Response{Status: a.Status, Body: a.Body}
	for _, h := range a.Header {
		r.set(h.Name, h.Value)
	}
	return r
}

// form reads a POSTed form, of either kind, as the original does: with curl -F "q=@file" q is a file. Another content type holds no parameters.
func (f *Front) form(c *call) (url.Values, error) {
	if c.from.declared() > queryBytesMax {
		return nil, tooLarge(queryBytesMax)
	}
	body, err := f.buffers.readAll(c.from.body(), queryBytesMax, &c.charge, nil)
	if err != nil {
		return nil, bodyError(err)
	}
	defer f.buffers.free(&body)
	var form url.Values
	switch media, params, _ := mime.ParseMediaType(c.Header(contentType)); media {
	case "application/x-www-form-urlencoded":
		form, err = url.ParseQuery(string(body.b))
	case "multipart/form-data":
		form, err = readParts(multipart.NewReader(bytes.NewReader(body.b), params["boundary"]))
	}
	return form, fault.Wrap(err, fault.Invalid, "error parsing form values")
}

// readParts reads the parts of a form that is in memory; q may be a file.
func readParts(from *multipart.Reader) (url.Values, error) {
	parts, err := from.ReadForm(queryBytesMax) // of files: as many bytes as there are, so that none goes to the disk
	if err != nil {
		return nil, err
	}
	form := url.Values(parts.Value)
	for _, file := range parts.File["q"] {
		in, err := file.Open()
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(in)
		if err = errors.Join(err, in.Close()); err != nil {
			return nil, err
		}
		form.Add("q", string(text))
	}
	return form, nil
}

// statement answers one statement of a request for a table.
func (f *Front) statement(ctx context.Context, ts []token, by asker) ([]rows, error) {
	word := func(i int, keywords ...string) bool { return i < len(ts) && ts[i].is(keywords...) }
	switch {
	case word(0, "CREATE") && word(1, "DATABASE"):
		return nil, f.createDatabase(ctx, ts[2:], by)
	case word(0, "DROP") && word(1, "DATABASE"):
		return nil, f.dropDatabase(ctx, ts[2:], by)
	case word(0, "DROP") && word(1, "MEASUREMENT"):
		d, err := readDropMeasurement(ts[2:])
		return nil, f.dropRows(ctx, d, err, by)
	case word(0, "DROP") && word(1, "SERIES"):
		d, err := readDelete(ts[2:], nil)
		return nil, f.dropRows(ctx, d, err, by)
	case word(0, "DELETE"):
		d, err := readDelete(ts[1:], &by.now)
		return nil, f.dropRows(ctx, d, err, by)
	case word(0, "SHOW") && word(1, "DATABASES"):
		return f.showDatabases(ctx, ts[2:], by)
	case word(0, "SHOW") && word(1, "RETENTION") && word(2, "POLICIES"):
		return f.showPolicies(ctx, ts[3:], by)
	case word(0, "SHOW") && word(1, "MEASUREMENTS"):
		return f.showMeasurements(ctx, ts[2:], by)
	case word(0, "SHOW") && word(1, "FIELD") && word(2, "KEYS"):
		return f.showSeries(ctx, ts[3:], by, scanMax, fieldKeys)
	case word(0, "SHOW") && word(1, "TAG") && word(2, "KEYS"):
		return f.showSeries(ctx, ts[3:], by, scanMax, tagKeys)
	case word(0, "SHOW") && word(1, "TAG") && word(2, "VALUES"):
		return f.showTagValues(ctx, ts[3:], by)
	case word(0, "SELECT"):
		return nil, errors.New(selectHint(ts[1:]))
	case word(0, "CREATE", "ALTER", "DROP") && word(1, "RETENTION") && word(2, "POLICY"):
		return nil, f.setPolicy(ctx, ts, by)
	case word(0, "SHOW") && word(1, "SERIES"):
		return f.showSeries(ctx, ts[2:], by, showMax, seriesKeys)
	}
	said := make([]string, 0, 3)
	for _, t := range ts[:min(len(ts), 3)] {
		said = append(said, t.text)
	}
	return nil, fmt.Errorf("%s is not supported here: read data through the Prometheus API, /api/v1/query", strings.Join(said, " "))
}

// createDatabase makes a table that keeps its rows for the DURATION of WITH. The rest of the policy is ignored: Telegraf
// skips a database it may not create.
func (f *Front) createDatabase(ctx context.Context, ts []token, by asker) error {
	switch {
	case len(ts) == 0:
		return errors.New("error parsing query: found EOF, expected identifier")
	case len(ts) > 1 && !ts[1].is("WITH"):
		return fmt.Errorf("error parsing query: found %s, expected WITH", ts[1].text)
	case by.creates != nil:
		return by.creates
	}
	if err := tablename.Check(ts[0].text); err != nil {
		return err
	}
	if err := f.allows(by, access.Write, ts[0].text); err != nil {
		return err
	}
	keep, err := durationIn(ts[1:])
	if err != nil {
		return err
	}
	return f.create(ctx, ts[0].text, keep)
}

// asker bounds the tables that statements and lists reach: the table that the request names by path or header, and the
// sender's permissions.
type asker struct {
	tablename.Name
	identity *access.Identity
	charge   *charge
	deletes  error   // why the request may delete nothing; nil: its permissions decide
	creates  error   // why it may make no table; nil: its permissions decide
	now      present // of its statements
}

func (c *call) asker() asker { return asker{Name: c.Name, identity: c.identity, charge: &c.charge} }

// allows refuses access to a table that the request does not reach. Errors: Invalid, or an *access.Refusal.
func (f *Front) allows(by asker, v access.Verb, table string) error {
	if by.Pinned() && table != by.Table {
		return fault.Errorf(fault.Invalid, "the request is for the table %q, the statement for %q", by.Table, table)
	}
	if by.identity.May(v, table) {
		return nil
	}
	return f.access.Forbidden(by.identity.Check(v, table))
}

// list names the tables that the request reaches.
func (f *Front) list(ctx context.Context, by asker) ([]string, error) {
	names, err := f.writer.List(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return by.Pinned() && n != by.Table || !by.identity.May(access.Read, n) && !by.identity.May(access.Write, n)
	}), nil
}

func (f *Front) showDatabases(ctx context.Context, ts []token, by asker) ([]rows, error) {
	if len(ts) > 0 {
		return nil, fmt.Errorf("%s is not supported here", ts[0].text)
	}
	names, err := f.list(ctx, by)
	if err != nil {
		return nil, err
	}
	return []rows{{Name: "databases", Columns: []string{"name"}, Values: column(names)}}, nil
}

func column(names []string) [][]any {
	values := make([][]any, len(names))
	for i, n := range names {
		values[i] = []any{n}
	}
	return values
}

// open finds the table of a SHOW without making it, and the number of rows it may be answered with.
func (f *Front) open(ctx context.Context, ts []token, by asker) (Table, int, error) {
	on, limit, err := clauses(ts)
	if err != nil {
		return nil, 0, err
	}
	return f.openOn(ctx, on, limit, by)
}

// openOn is open after the clauses were read.
func (f *Front) openOn(ctx context.Context, db string, limit int, by asker) (Table, int, error) {
	if db == "" && by.By != tablename.ByDefault {
		db = by.Table
	}
	if db == "" {
		return nil, 0, errors.New("database name required")
	}
	if err := f.allows(by, access.Read, db); err != nil {
		return nil, 0, err
	}
	t, err := f.existing(ctx, db)
	if limit == 0 || limit > showMax {
		limit = showMax
	}
	return t, limit, err
}

func (f *Front) showPolicies(ctx context.Context, ts []token, by asker) ([]rows, error) {
	t, _, err := f.open(ctx, ts, by)
	if err != nil {
		return nil, err
	}
	duration := "0s"
	if keep := keptSeconds(t); keep > 0 {
		duration = influxDuration(keep)
	}
	return []rows{{
		Columns: []string{"name", "duration", "shardGroupDuration", "replicaN", "default"},
		Values:  [][]any{{"autogen", duration, "168h0m0s", 1, true}},
	}}, nil
}

func influxDuration(seconds int64) string {
	return fmt.Sprintf("%dh%dm%ds", seconds/3600, seconds/60%60, seconds%60)
}

var errNoCatalogue = errors.New("this is not supported here: read names through the Prometheus API, /api/v1/labels")

func (f *Front) showMeasurements(ctx context.Context, ts []token, by asker) ([]rows, error) {
	t, limit, err := f.open(ctx, ts, by)
	if err != nil {
		return nil, err
	}
	cat, ok := t.(Catalogue)
	if !ok {
		return nil, errNoCatalogue
	}
	names, err := cat.MetricNames(ctx, limit)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	return []rows{{Name: "measurements", Columns: []string{"name"}, Values: column(names)}}, nil
}

// showSeries answers from the table's series, all of which it needs if scan is scanMax; view makes their rows.
func (f *Front) showSeries(ctx context.Context, ts []token, by asker, scan int, view func([]point.Labels) []rows) ([]rows, error) {
	s, err := readShow(ts)
	if err != nil {
		return nil, err
	}
	series, release, err := f.seriesOf(ctx, &s, by, scan)
	if err != nil || len(series) == 0 {
		return nil, err
	}
	defer release()
	return limited(view(series), s.limit), nil
}

// scanMax bounds the series that a SHOW looks through. With more it is an error: an answer of a part would look whole.
const scanMax = 100_000

// seriesOf lists series. The request has booked their memory until it calls release.
func (f *Front) seriesOf(ctx context.Context, s *show, by asker, scan int) (series []point.Labels, release func(), err error) {
	t, limit, err := f.openOn(ctx, s.db, s.limit, by)
	if err != nil {
		return nil, nil, err
	}
	s.limit = limit
	cat, ok := t.(Catalogue)
	if !ok {
		return nil, nil, errNoCatalogue
	}
	if scan == showMax { // of SHOW SERIES, which has a row for each
		scan = limit
	}
	series, err = cat.Series(ctx, s.from, scan+1)
	if err == nil && scan == scanMax && len(series) > scan {
		err = fmt.Errorf("there are more than %d series: name a measurement with FROM, or read names through the Prometheus API, /api/v1/labels", scanMax)
	}
	if err != nil {
		return nil, nil, err
	}
	held := int64(0)
	for _, l := range series {
		held += cellBytes + 2*int64(len(l))
	}
	if err := by.charge.take(held); err != nil {
		return nil, nil, fault.Annotate(err, "the series are many")
	}
	return series, func() { by.charge.give(held) }, nil
}

// The memory of a value in an answer: for itself, and for each byte of its text, which is copied into JSON that grows.
const (
	cellBytes = 64
	textBytes = 5
)

// answerBytes is the memory of the answer to a statement until it is sent.
func answerBytes(all []rows) (n int64) {
	for i := range all {
		n += 4*cellBytes + textBytes*int64(len(all[i].Name)) // its columns, too
		for _, row := range all[i].Values {
			n += cellBytes
			for _, cell := range row {
				text, _ := cell.(string)
				n += cellBytes + textBytes*int64(len(text))
			}
		}
	}
	return n
}

// limited cuts the values of each measurement.
func limited(all []rows, limit int) []rows {
	for i := range all {
		all[i].Values = all[i].Values[:min(limit, len(all[i].Values))]
	}
	return all
}

// A metric is shown as a measurement with the one field "value": where measurement ends and field begins in its name is
// not kept.

func fieldKeys(series []point.Labels) []rows {
	return byMetric(series, []string{"fieldKey", "fieldType"}, func(r *rows, _ point.Labels) {
		if len(r.Values) == 0 {
			r.Values = [][]any{{"value", "float"}}
		}
	})
}

func tagKeys(series []point.Labels) []rows {
	type key struct{ metric, name string }
	seen := map[key]bool{}
	return byMetric(series, []string{"tagKey"}, func(r *rows, l point.Labels) {
		l.Range(func(name, _ string) bool {
			if k := (key{r.Name, name}); name != point.MetricName && !seen[k] {
				seen[k] = true
				r.Values = append(r.Values, []any{strings.Clone(name)}) // of the series nothing stays
			}
			return true
		})
	})
}

// byMetric makes one set of rows a metric; series come in label order, so a metric's stand together or are found again.
func byMetric(series []point.Labels, columns []string, add func(*rows, point.Labels)) []rows {
	var all []rows
	at := map[string]int{}
	for _, l := range series {
		name := l.Get(point.MetricName)
		i, ok := at[name]
		if !ok {
			i = len(all)
			at[name] = i
			all = append(all, rows{Name: strings.Clone(name), Columns: columns})
		}
		add(&all[i], l)
	}
	return all
}

func seriesKeys(series []point.Labels) []rows {
	keys := make([]string, len(series))
	escape := strings.NewReplacer(",", `\,`, "=", `\=`, " ", `\ `)
	for i, l := range series {
		key := escape.Replace(l.Get(point.MetricName))
		l.Range(func(name, value string) bool {
			if name != point.MetricName {
				key += "," + escape.Replace(name) + "=" + escape.Replace(value)
			}
			return true
		})
		keys[i] = key
	}
	return []rows{{Columns: []string{"key"}, Values: column(keys)}}
}
