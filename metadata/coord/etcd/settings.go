package etcd

import (
	"crypto/tls"
	"errors"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Settings are the user's settings.
type Settings struct {
	// Endpoints of the cluster's members, as host:port or with a scheme.
	Endpoints []string
	// Prefix keeps the rows of several clusters apart in one etcd. Default "spillway".
	Prefix string
	// Username and Password, where etcd requires these.
	Username string
	Password string
	// RequestTimeout ends a request that has no answer. Default 1 s. Larger: fewer requests are abandoned in vain, and a
	// heartbeat has fewer attempts before its leases are lost.
	RequestTimeout time.Duration
	// DialTimeout bounds opening the store. Default 5 s.
	DialTimeout time.Duration
	// PingEvery is how long a connection may be silent before it is tried. Default 5 s. Smaller: a member that went away
	// without a word is noticed sooner; etcd refuses less than its own minimum (5 s by default while requests are rare).
	PingEvery time.Duration
	// Lazy also opens a store that does not answer, for callers that can do without one for a while. Default false: wrong addresses
	// are reported at once. With a user name the store must answer in any case.
	Lazy bool
}

func (s *Settings) setDefaults() {
	if s.Prefix == "" {
		s.Prefix = "spillway"
	}
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{{&s.RequestTimeout, time.Second}, {&s.DialTimeout, 5 * time.Second}, {&s.PingEvery, 5 * time.Second}} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
}

// Validate reports every mistake. Errors are Invalid.
func (s Settings) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fault.Errorf(fault.Invalid, format, args...))
	}
	if len(s.Endpoints) == 0 {
		bad("etcd: no endpoints; name at least one host:port")
	}
	for _, e := range s.Endpoints {
		if strings.TrimSpace(e) == "" {
			bad("etcd: an endpoint is empty")
		}
	}
	if strings.HasPrefix(s.Prefix, "/") || strings.HasSuffix(s.Prefix, "/") {
		bad("etcd: the prefix %q must not begin or end with a slash", s.Prefix)
	}
	if s.RequestTimeout < 0 || s.DialTimeout < 0 || s.PingEvery < 0 {
		bad("etcd: times must be positive")
	}
	if s.Password != "" && s.Username == "" {
		bad("etcd: a password without a user name")
	}
	return errors.Join(errs...)
}

// Deps are the dependencies that the caller hands in.
type Deps struct {
	// TLS, or nil for connections in the clear. The store keeps it.
	TLS *tls.Config
}
