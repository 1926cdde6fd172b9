package intake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/lineproto"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// deletion is the rows in [lo, hi] of series that match. Of its measurement and field, "" stands for any.
type deletion struct {
	measurement, field string
	tags               []peer.Matcher
	lo, hi             point.Nanos
}

// deleteRequest is the body of a v2 deletion. Start and stop are both included.
type deleteRequest struct {
	Start     string `json:"start"`
	Stop      string `json:"stop"`
	Predicate string `json:"predicate"`
}

// influxDelete serves POST /api/v2/delete?org=&bucket=. The organisation is ignored.
func (f *Front) influxDelete(ctx context.Context, c *call) Response {
	r := f.deleteResponse(ctx, c)
	f.signInflux(c, &r)
	return r
}

func (f *Front) deleteResponse(ctx context.Context, c *call) (r Response) {
	if err := f.mayDelete(c); err != nil {
		r.takeInflux(lineproto.V2.Forbidden(err.Error()))
		return r
	}
	err := c.TableErr
	if err == nil {
		err = missing(c, "bucket is required")
	}
	var d deletion
	if err == nil {
		d, err = f.readDeletion(ctx, c)
	}
	var t Table
	if err == nil {
		t, err = f.existing(ctx, c.Table)
	}
	if err == nil {
		err = f.delete(ctx, c.asker(), c.Table, t, d, f.metricOf)
	}
	if err != nil {
		return f.failure2(err, c.Table)
	}
	return Response{Status: http.StatusNoContent}
}

// mayDelete refuses where deletions are switched off, and requests that a page of another origin makes a browser send.
func (f *Front) mayDelete(c *call) error {
	if !f.settings.Delete {
		return fault.Errorf(fault.Denied, "deleting is switched off here: --enable-delete switches it on")
	}
	if c.Method == http.MethodGet {
		return fault.Errorf(fault.Denied, "what deletes must be sent by POST")
	}
	if c.crossOrigin() {
		return fault.Errorf(fault.Denied, "pages of other origins may not delete")
	}
	return nil
}

// mayCreate refuses to make tables for requests that a page of another origin makes a browser send. Clients that are no browsers send
// none of the headers that say so.
func (c *call) mayCreate() error {
	if c.crossOrigin() {
		return fault.Errorf(fault.Denied, "pages of other origins may not create databases")
	}
	return nil
}

// crossOrigin reports whether the headers of a request say that a page of another origin sent it, whatever its method.
func (c *call) crossOrigin() bool {
	rq := &http.Request{Method: http.MethodPost, Host: c.Header("Host"), URL: &url.URL{Path: c.Path}, Header: http.Header{}}
	for _, name := range []string{"Origin", "Sec-Fetch-Site"} {
		if v := c.Header(name); v != "" {
			rq.Header.Set(name, v)
		}
	}
	return http.NewCrossOriginProtection().Check(rq) != nil
}

// readDeletion reads the body of a v2 deletion. The error is Invalid, or one of load's.
func (f *Front) readDeletion(ctx context.Context, c *call) (d deletion, err error) {
	packed, err := c.single("Content-Encoding")
	if err != nil {
		return d, err
	}
	enc := encodingOf(packed)
	if enc == encUnknown {
		return d, fault.Errorf(fault.Invalid, "unsupported content encoding %.100q (use gzip, deflate, snappy, zstd or none)", packed)
	}
	body, err := f.load(ctx, c, enc)
	if err != nil {
		return d, err
	}
	defer f.buffers.free(&body)
	if len(body.b) > queryBytesMax {
		return d, tooLarge(queryBytesMax)
	}
	rq, err := readDeleteRequest(body.b)
	if err != nil {
		return d, err
	}
	lo, err := wallTime("start", rq.Start)
	if err != nil {
		return d, err
	}
	hi, err := wallTime("stop", rq.Stop)
	if err != nil {
		return d, err
	}
	if lo > hi {
		return d, fault.Errorf(fault.Invalid, "start %s is after stop %s", rq.Start, rq.Stop)
	}
	if d, err = readPredicate(rq.Predicate); err != nil {
		return d, fault.Wrap(err, fault.Invalid, "predicate")
	}
	d.lo, d.hi = lo, hi
	return d, nil
}

// readDeleteRequest reads one object. A key that is not known is an error, though InfluxDB ignores it: a mistyped predicate would delete the rows of all
// series. The error is Invalid.
func readDeleteRequest(body []byte) (rq deleteRequest, err error) {
	in := json.NewDecoder(bytes.NewReader(body))
	in.DisallowUnknownFields()
	if err = in.Decode(&rq); err == nil && in.InputOffset() < int64(len(bytes.TrimRight(body, " \t\r\n"))) {
		err = fmt.Errorf("something follows the object, at byte %d", in.InputOffset())
	}
	return rq, fault.Wrap(err, fault.Invalid, "the body is not the JSON of a deletion, which has start, stop and predicate")
}

// wallTime reads a time in RFC 3339. One beyond the times that rows can have is the nearest such time, since clients send
// 1970-01-01 and 9999-12-31 for "all".
func wallTime(name, text string) (point.Nanos, error) {
	if text == "" {
		return 0, fault.Errorf(fault.Invalid, "%s is required, in RFC 3339 as 2026-01-02T15:04:05Z", name)
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, fault.Errorf(fault.Invalid, "invalid %s %q: use RFC 3339 as 2026-01-02T15:04:05Z", name, text)
	}
	return nanosOf(t), nil
}

func nanosOf(t time.Time) point.Nanos {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return point.Nanos(t.UnixNano())
}

// readPredicate reads key="value" AND …, the whole language of Influx' predicates. An empty one means all series.
func readPredicate(text string) (d deletion, err error) {
	list, err := statements(text)
	if err != nil {
		return d, err
	}
	if len(list) == 0 {
		return d, nil
	}
	if len(list) > 1 {
		return d, fmt.Errorf("found ;, expected the end")
	}
	conds, err := readConditions(list[0], false)
	if err != nil {
		return d, err
	}
	for _, c := range conds {
		if err := d.add(c); err != nil {
			return d, err
		}
	}
	if d.field != "" && d.measurement == "" {
		return d, fmt.Errorf("_field needs _measurement: a metric's name is made of both")
	}
	return d, nil
}

// add narrows a deletion by a condition of a predicate.
func (d *deletion) add(c condition) error {
	if c.op != "=" {
		return fmt.Errorf("%s %s: only = is supported", c.key, c.op)
	}
	if c.value == "" {
		return fmt.Errorf("%s has an empty value, which no series has", c.key)
	}
	part := map[string]*string{"_measurement": &d.measurement, "_field": &d.field}[c.key]
	switch {
	case part == nil && c.key == point.MetricName, part == nil && c.key == "_time", part == nil && c.key == "_value":
		return fmt.Errorf("%s is not supported: use _measurement, _field and tags", c.key)
	case part == nil:
		d.tags = append(d.tags, peer.Matcher{Type: peer.MatchEqual, Name: c.key, Value: c.value})
	case *part != "" && *part != c.value:
		return fmt.Errorf("%s is both %q and %q, which no series is", c.key, *part, c.value)
	default:
		*part = c.value
	}
	return nil
}

// condition is one comparison.
type condition struct {
	key, op, value string
	moment         []token // of time in InfluxQL, in place of the value
}

// onTime reports whether a condition of InfluxQL is on the time of rows.
func (c *condition) onTime() bool { return strings.EqualFold(c.key, "time") }

// conditionsMax bounds the comparisons of one deletion.
const conditionsMax = 100

// opBytesMax bounds the operator of a comparison: no language has a longer one, and a megabyte of = would be put together for minutes.
const opBytesMax = 2

// readConditions reads key op value, joined by AND; of InfluxQL time op moment, too. Anything else is an error for the sender: to ignore it would delete
// more.
func readConditions(ts []token, influxQL bool) (all []condition, err error) {
	for {
		c, rest, err := readCondition(ts, influxQL)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
		switch {
		case len(rest) == 0:
			return all, nil
		case !rest[0].is("AND"):
			return nil, fmt.Errorf("found %s, expected AND: only conditions joined by AND are supported, and a value that is not one word stands in quotes", rest[0].text)
		case len(all) == conditionsMax:
			return nil, fmt.Errorf("more than %d conditions", conditionsMax)
		}
		ts = rest[1:]
	}
}

// unread are parts of conditions that are not supported, by their first token.
var unread = map[string]string{"(": "parentheses around conditions are not supported", "/": "regular expressions are not supported"}

func readCondition(ts []token, influxQL bool) (c condition, rest []token, err error) {
	isName := func(t token) bool { return t.quoted || t.text != "" && isWord(t.text[0]) }
	if len(ts) == 0 {
		return c, nil, fmt.Errorf(`found the end, expected a condition as host="a"`)
	}
	if !isName(ts[0]) || ts[0].text == "" {
		return c, nil, refused(ts[0], `found %s, expected a condition as host="a"`, ts[0].text)
	}
	if influxQL && ts[0].is("now") {
		return c, nil, errors.New("found now, expected a condition as host='a' or time < now() - 30d: the name comes first")
	}
	c.key, ts = ts[0].text, ts[1:]
	for len(ts) > 0 && len(c.op) < opBytesMax && !ts[0].quoted && strings.Contains("=<>!~", ts[0].text) {
		c.op, ts = c.op+ts[0].text, ts[1:]
	}
	if influxQL && c.op != "" && c.onTime() {
		end := slices.IndexFunc(ts, func(t token) bool { return t.is("AND", "OR", "TZ") })
		if end < 0 {
			end = len(ts)
		}
		c.moment = ts[:end]
		return c, ts[end:], nil
	}
	if c.op == "" || len(ts) == 0 || !isName(ts[0]) {
		var at token
		if len(ts) > 0 {
			at = ts[0]
		}
		return c, nil, refused(at, `%s %s: expected a condition as host="a"`, c.key, c.op)
	}
	c.value = ts[0].text
	return c, ts[1:], nil
}

// refused is an error at a token, and names what begins there.
func refused(at token, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if why := unread[at.text]; why != "" && !at.quoted {
		err = fmt.Errorf("%w: %s", err, why)
	}
	return err
}

// existing finds a table without making it. The error is NotFound.
func (f *Front) existing(ctx context.Context, name string) (Table, error) {
	t, err := f.writer.Existing(ctx, name)
	if fault.Is(err, fault.NotFound) {
		err = fault.Errorf(fault.NotFound, "database not found: %s", name)
	}
	return t, err
}

// delete removes the rows of a deletion; metric finds the metric of its measurement and field.
func (f *Front) delete(ctx context.Context, by asker, name string, t Table, d deletion, metric func(context.Context, Table, deletion) (string, error)) error {
	deleter, ok := t.(Deleter)
	if !ok {
		return fault.Errorf(fault.Unavailable, "this store does not delete")
	}
	match := peer.Matcher{Type: peer.MatchRegexp, Name: point.MetricName, Value: ".+"}
	if d.measurement != "" {
		m, err := metric(ctx, t, d)
		if err != nil {
			return err
		}
		match = peer.Matcher{Type: peer.MatchEqual, Name: point.MetricName, Value: m}
	}
	ms := append([]peer.Matcher{match}, d.tags...)
	if err := deleter.Delete(ctx, d.lo, d.hi, ms); err != nil && !fault.Is(err, fault.NotFound) { // NotFound: the table has no rows
		return err
	}
	f.metrics.deletions.Inc()
	f.log.Info("series deleted", "table", name, "match", fmt.Sprint(ms), "from_ns", int64(d.lo), "to_ns", int64(d.hi), "by", by.identity.Name)
	return nil
}

// metricOf is the metric of a measurement and a field. Without a field it must be clear which metrics are meant: cpu_load_x may
// be the field load_x of cpu, or the field x of cpu_load, and rows of a measurement that was not named must stay.
func (f *Front) metricOf(ctx context.Context, t Table, d deletion) (string, error) {
	switch d.field {
	case "value":
		return d.measurement, nil
	case "":
	default:
		return d.measurement + f.settings.Influx.Separator + d.field, nil
	}
	names, err := metricsOf(ctx, t)
	if err != nil {
		return "", err
	}
	var fields []string
	for _, n := range names {
		if field, ok := strings.CutPrefix(n, d.measurement+f.settings.Influx.Separator); ok {
			fields = append(fields, fmt.Sprintf("_field=%q", field))
		}
	}
	if len(fields) == 0 {
		return d.measurement, nil
	}
	if slices.Contains(names, d.measurement) {
		fields = append([]string{`_field="value"`}, fields...)
	}
	return "", fault.Errorf(fault.Invalid, "_measurement=%q alone is ambiguous: names of metrics do not keep where a measurement ends and a field begins; add one of %s, in a request each", d.measurement, someOf(fields))
}

// metricNamed is the metric that InfluxQL calls a measurement, as SHOW MEASUREMENTS does.
func (f *Front) metricNamed(ctx context.Context, t Table, d deletion) (string, error) {
	names, err := metricsOf(ctx, t)
	if err != nil || slices.Contains(names, d.measurement) {
		return d.measurement, err
	}
	similar := slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, d.measurement+f.settings.Influx.Separator) })
	if len(similar) == 0 {
		return "", fault.Errorf(fault.Invalid, "measurement not found: %s", d.measurement)
	}
	return "", fault.Errorf(fault.Invalid, "measurement not found: %s; each of its fields is one, as SHOW MEASUREMENTS lists them: %s", d.measurement, someOf(similar))
}

// metricsOf lists all metrics of a table.
func metricsOf(ctx context.Context, t Table) ([]string, error) {
	cat, ok := t.(Catalogue)
	if !ok {
		return nil, errNoCatalogue
	}
	names, err := cat.MetricNames(ctx, scanMax+1)
	switch {
	case fault.Is(err, fault.NotFound): // the table has no rows
		return nil, nil
	case err == nil && len(names) > scanMax:
		return nil, fault.Errorf(fault.Invalid, "there are more than %d metrics: name one by _measurement and _field", scanMax)
	}
	return slices.Clone(names), err
}

// someOf lists the first names.
func someOf(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// tableOf is the table of a statement that has no ON.
func (by asker) tableOf() (string, error) {
	if by.By == tablename.ByDefault {
		return "", fault.Errorf(fault.Invalid, "database name required")
	}
	return by.Table, nil
}
