package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/handshake"
)

// certificates are the files of a TLS as credentials that check them again at each handshake. Files that changed and
// cannot be read are a warning: the old ones stay in force.
type certificates struct {
	settings TLS
	server   string // the server that a client calls; "": any storage server
	log      *slog.Logger

	strangers strangers       // of a server
	gate      *handshake.Gate // of a server; set before it serves

	mu struct {
		sync.Mutex
		seen    fileStates
		config  *tls.Config
		revoked revoked
		unread  string                 // why the files cannot be read now, as it was logged; "": they can
		open    map[*openConn]struct{} // connections of which the other side's certificate may be revoked
	}
}

// fileStates are those of the authority's certificate, the own certificate, its key and the list of revoked certificates.
type fileStates [4]fileState

// fileState detects that a file changed.
type fileState struct {
	modified time.Time
	size     int64
}

// newCredentials reads the files once, so that a mistake shows at the start. server is the one that a client calls. Errors are
// Invalid.
func newCredentials(t TLS, server string, log *slog.Logger) (credentials.TransportCredentials, error) {
	if t.Insecure {
		return insecure.NewCredentials(), nil
	}
	c := &certificates{settings: t, server: server, log: log}
	seen, err := c.look()
	if err != nil {
		return nil, err
	}
	if c.mu.config, c.mu.revoked, err = c.load(); err != nil {
		return nil, err
	}
	c.mu.seen, c.mu.open = seen, map[*openConn]struct{}{}
	return c, nil
}

func (c *certificates) look() (seen fileStates, err error) {
	for i, name := range [len(seen)]string{c.settings.CAFile, c.settings.CertFile, c.settings.KeyFile, c.settings.CRLFile} {
		if name == "" {
			continue // no list of revoked certificates
		}
		info, err := os.Stat(name)
		if err != nil {
			return seen, fault.Wrap(err, fault.Invalid, "peer TLS")
		}
		seen[i] = fileState{info.ModTime(), info.Size()}
	}
	return seen, nil
}

// read reads the own certificate with its key, and those of the authorities as PEM. Errors: Invalid.
func (t *TLS) read() (own tls.Certificate, authorities []byte, err error) {
	if own, err = tls.LoadX509KeyPair(t.CertFile, t.KeyFile); err != nil {
		return own, nil, fault.Wrap(err, fault.Invalid, "peer TLS: certificate %s and key %s", t.CertFile, t.KeyFile)
	}
	authorities, err = os.ReadFile(t.CAFile)
	return own, authorities, fault.Wrap(err, fault.Invalid, "peer TLS: CA")
}

func (c *certificates) load() (*tls.Config, revoked, error) {
	pair, pem, err := c.settings.read()
	if err != nil {
		return nil, nil, err
	}
	if err := c.settings.Own.check(pair.Leaf); err != nil {
		return nil, nil, fault.Wrap(err, fault.Invalid, "peer TLS: certificate %s", c.settings.CertFile)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fault.Errorf(fault.Invalid, "peer TLS: no certificate in the CA file %s", c.settings.CAFile)
	}
	list, err := readRevoked(c.settings.CRLFile, pem)
	if err != nil {
		return nil, nil, err
	}
	return handshake.Gated(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		// A resumed session would not be checked against a replaced authority.
		SessionTicketsDisabled: true,
	}), list, nil
}

// current is the configuration from the current files.
func (c *certificates) current() credentials.TransportCredentials {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshLocked()
	return credentials.NewTLS(c.mu.config)
}

// refreshLocked reads the files again if they changed.
func (c *certificates) refreshLocked() {
	seen, err := c.look()
	if err == nil && seen != c.mu.seen {
		var config *tls.Config
		var list revoked
		if config, list, err = c.load(); err == nil {
			c.mu.config, c.mu.revoked, c.mu.seen = config, list, seen
			c.log.Info("peer certificates re-read", "ca", c.settings.CAFile, "cert", c.settings.CertFile, "revoked", len(list))
		}
	}
	switch {
	case err == nil:
		c.mu.unread = ""
	case err.Error() != c.mu.unread:
		c.mu.unread = err.Error()
		c.log.Warn("peer certificates changed and cannot be read; the old ones stay in force", "error", err)
	}
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *certificates) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := c.current().ClientHandshake(ctx, authority, conn)
	if err != nil {
		return nil, nil, err
	}
	if t, ok := info.(credentials.TLSInfo); ok {
		if err := (Identity{RoleStorage, c.server}).check(t.State.PeerCertificates[0]); err != nil {
			_ = secure.Close()
			return nil, nil, fault.Wrap(err, fault.Denied, "the server at %s", conn.RemoteAddr())
		}
	}
	return c.admit(secure, info)
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *certificates) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	gated := c.gate.Conn(conn, "peer")
	leave := c.strangers.enter(gated)
	secure, info, err := c.current().ServerHandshake(gated)
	gated.End()
	leave()
	if err != nil {
		return nil, nil, err
	}
	return c.admit(secure, info)
}

// Info implements credentials.TransportCredentials.
func (c *certificates) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials; the files are the same for all.
func (c *certificates) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials; TLS.ServerName is the way.
func (c *certificates) OverrideServerName(string) error {
	return fault.Errorf(fault.Invalid, "the name of servers is a setting")
}
