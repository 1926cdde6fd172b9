package access

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Verb is a kind of use of a table; a set of them is their sum.
type Verb uint8

const (
	// Read is queries, look-ups, remote read, federation and the table's status.
	Read Verb = 1 << iota
	// Write is writing samples by every protocol, which may create the table.
	Write
	// Admin is deleting series. It includes Read and Write.
	Admin
	// Metrics is the counters of the process at /metrics, which are not of one table.
	Metrics
)

var verbNames = map[string]Verb{"read": Read, "write": Write, "admin": Admin | Read | Write, "metrics": Metrics}

// String names a single verb.
func (v Verb) String() string {
	switch v {
	case Read:
		return "read"
	case Write:
		return "write"
	case Admin:
		return "admin"
	case Metrics:
		return "metrics"
	}
	return fmt.Sprintf("verb(%d)", uint8(v))
}

// Identity is the sender of a request. It never changes.
type Identity struct {
	// Name is for logs: the token's, or the user's.
	Name    string
	scopes  []scope
	expires time.Time // zero: never
	digest  digest    // of the token; zero: not a token
}

// scope lets the verbs be done in tables that match a pattern.
type scope struct {
	tables []string // patterns: "*" stands for any text
	may    Verb
}

// Everyone makes the identity of all requests where there is no access control: it may do everything.
func Everyone() *Identity { return full("anonymous") }

// full is an identity that may do everything.
func full(name string) *Identity {
	return &Identity{Name: name, scopes: []scope{{[]string{anyTable}, Read | Write | Admin | Metrics}}}
}

// anyTable is the pattern of all tables.
const anyTable = "*"

// May reports whether the identity may do v in a table. Nil may do nothing.
func (id *Identity) May(v Verb, table string) bool {
	if id == nil {
		return false
	}
	for i := range id.scopes {
		if s := &id.scopes[i]; s.may&v == v && s.covers(table) {
			return true
		}
	}
	return false
}

// MayAll reports whether the identity may do v in every present and future table: routes that show the whole process ask
// it.
func (id *Identity) MayAll(v Verb) bool { return id.May(v, anyTable) }

// covers reports whether a pattern matches. The name "*", which no table has, is matched by the pattern "*" alone.
func (s *scope) covers(table string) bool {
	for _, p := range s.tables {
		if p == table || p == anyTable {
			return true
		}
		if table != anyTable && strings.Contains(p, anyTable) {
			if ok, _ := path.Match(p, table); ok { // the pattern was checked when it was read
				return true
			}
		}
	}
	return false
}

// Check gives an error if the identity may not do v in a table. The error is a *Refusal with status 403.
func (id *Identity) Check(v Verb, table string) error {
	if id.May(v, table) {
		return nil
	}
	return id.forbidden("the right %q on table %q", v, table)
}

// CheckAll is Check for every table.
func (id *Identity) CheckAll(v Verb) error {
	if id.MayAll(v) {
		return nil
	}
	return id.forbidden("the right %q on every table, as a route about the whole process needs it", v)
}

func (id *Identity) forbidden(format string, args ...any) error {
	subject := "the request"
	if id != nil {
		subject = fmt.Sprintf("%q", id.Name)
	}
	return &Refusal{Status: 403, Reason: "forbidden", Text: subject + " lacks " + fmt.Sprintf(format, args...)}
}

type identityKey struct{}

// With gives a context that carries the identity of its request.
func With(ctx context.Context, id *Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// From gives the identity that a context carries, or nil, which may do nothing.
func From(ctx context.Context) *Identity {
	id, _ := ctx.Value(identityKey{}).(*Identity)
	return id
}

// Refusal is the reason why a request is not served. It is of Kind Denied, or Throttled where Status is 429.
type Refusal struct {
	// Status is 401 (no valid credentials), 403 (not permitted) or 429 (too many attempts).
	Status int
	// Reason is one of a few words, for metrics: missing, malformed, unknown, expired, throttled, forbidden.
	Reason string
	// Text is for the sender; it says nothing that helps to guess.
	Text string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

// Unwrap gives the same refusal as an error with its Kind.
func (r *Refusal) Unwrap() error {
	if r.Status == 429 {
		return fault.Errorf(fault.Throttled, "%s", r.Text)
	}
	return fault.Errorf(fault.Denied, "%s", r.Text)
}

// Challenge is the value of WWW-Authenticate that goes with a 401: browsers ask for a password then, and a token may be
// one.
const Challenge = `Basic realm="Spillway", charset="UTF-8"`

// RetryAfter is the wait that a refusal for too many attempts advises.
const RetryAfter = 5 * time.Second
