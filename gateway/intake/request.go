package intake

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Request is an HTTP request, whichever server read it. It is valid until the door that serves it returns.
type Request struct {
	Method string
	Path   string     // without the table's prefix and the query
	Query  url.Values // of the URL

	// Name is the table that the request names, "default" when it names none. TableErr (Invalid) says why it is invalid;
	// then Table is empty.
	tablename.Name
	TableErr error

	from source
}

// source is the server's side of a Request.
type source interface {
	// header gives the first value of a header, "" when it is absent.
	header(name string) string
	// headers gives all values of a header, in order.
	headers(name string) []string
	// remote is the sender's address.
	remote() string
	// body is read at most once. It ends with io.EOF.
	body() io.Reader
	// declared is the body's Content-Length, -1 when it has none.
	declared() int64
}

// Header gives the first value of a header.
func (rq *Request) Header(name string) string { return rq.from.header(name) }

// newRequest reads the request's target. The error is Invalid.
func newRequest(method, path, rawQuery string, from source) (*Request, error) {
	rq := &Request{Method: method, from: from}
	if rawQuery != "" {
		q, err := url.ParseQuery(rawQuery)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "query of the URL")
		}
		rq.Query = q
	}
	rq.Name, rq.Path, rq.TableErr = tablename.Of(path, from.headers, rq.tableParam)
	return rq, nil
}

// named reports whether the request names a table, be it a wrong one.
func (rq *Request) named() bool { return rq.By != tablename.ByDefault || rq.TableErr != nil }

// tableParam maps Influx' names to tables: of a v2 bucket "db/rp" the table is db. A retention policy, here or in the
// parameter rp, is ignored: the table's own retention counts.
func (rq *Request) tableParam(name string) []string {
	values := rq.Query[name]
	for i, v := range values {
		if db := databaseOf(v); db != v {
			values = slices.Clone(values)
			values[i] = db
		}
	}
	return values
}

func databaseOf(bucket string) string {
	db, _, _ := strings.Cut(bucket, "/")
	return db
}

// AckHeader is the header in which a request of any protocol says when it wants its answer.
const AckHeader = "X-Spillway-Ack"

// level is the ack level the header asks for, else byProtocol. The error is Invalid.
func (rq *Request) level(byProtocol point.Level) (point.Level, error) {
	switch v := rq.Header(AckHeader); v {
	case "":
		return byProtocol, nil
	case "all":
		return point.All, nil
	case "one":
		return point.One, nil
	case "received":
		return point.Received, nil
	default:
		return 0, fault.Errorf(fault.Invalid, "invalid %s %q (use received, one or all)", AckHeader, v)
	}
}

// AtomicHeader is the header, and AtomicParam the parameter of the URL, by which all rows of a request are kept, or none (C94).
const (
	AtomicHeader = "X-Spillway-Atomic"
	AtomicParam  = "atomic"
)

// atomic reports whether all rows of the request are to be kept, or none. The error is Invalid.
func (rq *Request) atomic() (bool, error) {
	for _, v := range []string{rq.Header(AtomicHeader), rq.Query.Get(AtomicParam)} {
		if v == "" {
			continue
		}
		on, err := strconv.ParseBool(v)
		if err != nil {
			return false, fault.Errorf(fault.Invalid, "invalid %s %q (use true or false)", AtomicHeader, v)
		}
		if on {
			return true, nil
		}
	}
	return false, nil
}

// SmearHeader is the header, and SmearParam the parameter of the URL, by which the rows of a request do not wait on their way to narrow partitions: off (C41).
const (
	SmearHeader = "X-Spillway-Smear"
	SmearParam  = "smear"
)

// smear is the sender's wish: off in either place wins. The error is Invalid.
func (rq *Request) smear() (wish point.Smear, err error) {
	for _, v := range []string{rq.Header(SmearHeader), rq.Query.Get(SmearParam)} {
		w, err := point.ParseSmear(v)
		if err != nil {
			return 0, fault.Annotate(err, "%s", SmearHeader)
		}
		wish = wish.Over(w)
	}
	return wish, nil
}

// Response is an answer, for whichever server sends it.
type Response struct {
	Status int
	Header []Field
	Body   []byte
}

// Field is one header of a Response.
type Field struct{ Name, Value string }

func (r *Response) set(name, value string) { r.Header = append(r.Header, Field{name, value}) }

const (
	typeJSON = "application/json"
	typeText = "text/plain; charset=utf-8"
)

func jsonResponse(status int, body []byte) Response {
	return Response{Status: status, Header: []Field{{"Content-Type", typeJSON}}, Body: append(body, '\n')}
}

func textResponse(status int, text string) Response {
	return Response{Status: status, Header: []Field{{"Content-Type", typeText}, {"X-Content-Type-Options", "nosniff"}}, Body: []byte(text + "\n")}
}

// seconds writes a duration as Retry-After wants it.
func seconds(s int64) string { return strconv.FormatInt(s, 10) }

// known reports which methods the fast server passes on at all.
func known(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return true
	}
	return false
}
