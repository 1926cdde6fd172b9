package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Need is the permission that a route asks of a request's identity. No identity satisfies the zero Need, so that a route
// without a Need is closed.
type Need uint8

const (
	_ Need = iota
	// NeedNothing is for probes: they need no credentials.
	NeedNothing
	// NeedIdentity asks for good credentials; the handler checks its actions and answers against the identity.
	NeedIdentity
	// NeedRead, NeedWrite and NeedAdmin ask for the verb in the request's table.
	NeedRead
	NeedWrite
	NeedAdmin
	// NeedMetrics, NeedReadAll and NeedAdminAll ask for the verb in every table: the route shows or changes the process.
	NeedMetrics
	NeedReadAll
	NeedAdminAll
)

var needNames = [...]string{
	0: "unset", NeedNothing: "open", NeedIdentity: "identity", NeedRead: "read", NeedWrite: "write", NeedAdmin: "admin",
	NeedMetrics: "metrics", NeedReadAll: "read *", NeedAdminAll: "admin *",
}

// String names the need as the list of routes does.
func (n Need) String() string {
	if int(n) < len(needNames) {
		return needNames[n]
	}
	return fmt.Sprintf("need(%d)", uint8(n))
}

// Check checks an identity against the need. The error is a *Refusal with status 403.
func (n Need) Check(id *Identity, table string) error {
	switch n {
	case NeedNothing:
		return nil
	case NeedIdentity:
		if id != nil {
			return nil
		}
	case NeedRead:
		return id.Check(Read, table)
	case NeedWrite:
		return id.Check(Write, table)
	case NeedAdmin:
		return id.Check(Admin, table)
	case NeedMetrics:
		if id.MayAll(Read) {
			return nil
		}
		if id.MayAll(Metrics) {
			return nil
		}
		return id.forbidden("the right %q, or %q on every table", Metrics, Read)
	case NeedReadAll:
		return id.CheckAll(Read)
	case NeedAdminAll:
		return id.CheckAll(Admin)
	}
	return id.forbidden("an identity that this route takes")
}

// Handler lets requests through if their identity satisfies a need, and puts the identity into the context (From). Needs of a
// table are checked further in, where the table is found; giving one here is a defect.
//
// Browsers ask with OPTIONS before they send credentials. It passes without them only where a handler further in
// distinguishes it from a request (NeedIdentity): profiles answer every method alike.
func (g *Guard) Handler(n Need, next http.Handler) http.Handler {
	switch n {
	case NeedNothing:
		return next
	case NeedIdentity, NeedMetrics, NeedReadAll, NeedAdminAll:
	default:
		fault.Bug("a handler with the need %s", n)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n == NeedIdentity && r.Method == http.MethodOptions {
			next.ServeHTTP(w, r)
			return
		}
		id, err := g.Identify(Credentials{Authorization: r.Header.Values("Authorization"), Remote: func() string { return r.RemoteAddr }})
		if err == nil {
			err = g.Forbidden(n.Check(id, ""))
		}
		if err != nil {
			Refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(With(r.Context(), id)))
	})
}

// Refuse answers a request with a *Refusal: in the envelope of the Prometheus API where a route belongs to that, in a sentence
// elsewhere.
func Refuse(w http.ResponseWriter, r *http.Request, err error) {
	ref := &Refusal{Status: http.StatusForbidden, Text: err.Error()}
	errors.As(err, &ref)
	h := w.Header()
	switch ref.Status {
	case http.StatusUnauthorized:
		if r.Header.Get("X-Requested-With") == "" { // a page that says so asks its reader itself
			h.Set("WWW-Authenticate", Challenge)
		}
	case http.StatusTooManyRequests:
		h.Set("Retry-After", strconv.Itoa(int(RetryAfter.Seconds())))
	}
	h.Set("X-Content-Type-Options", "nosniff")
	if !strings.HasPrefix(r.URL.Path, "/api/") && !strings.HasPrefix(r.URL.Path, "/t/") {
		http.Error(w, ref.Text, ref.Status)
		return
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(ref.Status)
	_ = json.NewEncoder(w).Encode(map[string]string{"status": "error", "errorType": ref.Type(), "error": ref.Text})
}

// Type is the errorType of the Prometheus API.
func (r *Refusal) Type() string {
	switch r.Status {
	case http.StatusUnauthorized:
		return "unauthorized"
	case http.StatusTooManyRequests:
		return "too_many_requests"
	}
	return "forbidden"
}
