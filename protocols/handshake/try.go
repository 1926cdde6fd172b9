package handshake

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// hello is what a client of HTTP/2 sends first: the preface and an empty SETTINGS frame. A server answers it, or the alert that refuses the client's certificate.
const hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// Try connects to a server of HTTP/2 at addr, host:port, and returns nil if both sides accept each other's certificates. In TLS 1.3 a client
// hears only after its handshake that its certificate was refused, and gRPC and etcd's client retry until their time is over: callers ask here
// for the reason. Errors are Denied: one of the two refuses the other's certificate; else Unavailable.
func Try(ctx context.Context, addr string, config *tls.Config) error {
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return tried(err, addr)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, err = io.WriteString(conn, hello)
	if _, readErr := conn.Read(make([]byte, 1)); readErr != nil { // it has the alert; the write may have failed because of that
		return tried(readErr, addr)
	}
	return fault.Wrap(err, fault.Unavailable, "%s", addr)
}

// tried gives the error of an attempt its Kind.
func tried(err error, addr string) error {
	var op *net.OpError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return fault.Wrap(err, fault.Denied, "the certificate that %s shows is of no authority that this process accepts", addr)
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return fault.Wrap(err, fault.Denied, "this process does not accept the certificate that %s shows", addr)
	case errors.As(err, &op) && op.Op == "remote error" && refuses(op.Err):
		return fault.Wrap(err, fault.Denied, "%s does not accept the certificate of this process", addr)
	}
	return fault.Wrap(err, fault.Unavailable, "%s", addr)
}

// refuses reports whether an alert is about the certificate of the client. A server that has too many handshakes sends one, too (Gate), and that is no refusal.
func refuses(alert error) bool {
	return slices.ContainsFunc(refusals, func(a tls.AlertError) bool { return a.Error() == alert.Error() }) // the type of a received alert is not exported
}

// refusals are the alerts of RFC 8446, 6.2, about certificates: bad, unsupported, revoked, expired, unknown, of an unknown authority, access denied, required.
var refusals = []tls.AlertError{42, 43, 44, 45, 46, 48, 49, 116}
