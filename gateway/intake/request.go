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

// Response is an answer, for whichever server sends it.
type Response struct {
	Status int
	Header []Field
	Body   []byte

	sent func() // releases the memory of Body, which is a long one; nil: it is in no account
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
